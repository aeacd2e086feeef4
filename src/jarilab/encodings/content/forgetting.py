"""Forgetting attention: gates that lower the scores of earlier keys."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Generator, nn
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Site, registry
from jarilab.encodings.numbers import at_least_float32, zero_out
from jarilab.positions.coordinates import Positions, undefined_pairs


@final
@registry.register("forgetting", "fox")
class Forgetting(Encoding):
    """Adds the logarithms of forget gates between key and query to the scaled score.

    The bias is the sum of `log sigmoid(w.x_t + b)` over the tokens t after key j up to query i, with one gate per head
    and layer. Tokens that the query cannot see do not count.

    Source: Forgetting attention: *Forgetting Transformer: Softmax Attention with a Forget Gate* (Lin et al. 2025),
    section 3.

    remembered: initial value of b; with 5 a gate is 0.993 at every token.
    """

    causal_only = True
    shared = False

    def __init__(self, site: Site, *, remembered: float = 5.0):
        super().__init__(site)
        self.start = remembered
        self.gate = nn.Linear(site.d_model, site.n_heads)
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        if name == "gate.bias":
            parameter.fill_(self.start)
        else:
            super().initial_value(name, parameter, generator)

    def remember(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B H K 1"]:
        """The logarithm of each token's gates, in float32: bfloat16 has too few numbers near 1."""
        # The bias is added separately: with it, PyTorch's exporter takes the length for a constant.
        gate_BKH = functional.linear(x, self.gate.weight.to(x.dtype)) + self.gate.bias.to(x.dtype)
        log_BKH = functional.logsigmoid(at_least_float32(gate_BKH))
        return log_BKH.transpose(1, 2).unsqueeze(-1)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"] | None:
        """True for pairs in which a token has no position."""
        return undefined_pairs(q_pos, k_pos)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Any,
        *,
        allowed: Bool[Tensor, "#B 1 #Q K"] | None = PROVIDED,
        scale: float = PROVIDED,
        state: Float[Tensor, "B H K 1"] = PROVIDED,
    ) -> Float[Tensor, "B H Q K"]:
        log_BH1K = state.transpose(-1, -2)
        last_BQ = _last_keys(allowed, q.shape[2], k.shape[2])
        if last_BQ is None:
            sum_BHQK = _sum_after_keys(log_BH1K.expand(*q.shape[:3], -1), allowed) / scale
        else:
            sum_BHQK = _sum_without_gaps(log_BH1K / scale, allowed, last_BQ.to(q.device))
        return zero_out(sum_BHQK, relation).to(q.dtype)


def _sum_after_keys(log_BHQK: Tensor, allowed: Tensor | None) -> Float[Tensor, "B H Q K"]:
    """For each key the sum over the later keys that the query can see."""
    if allowed is not None:
        log_BHQK = log_BHQK.masked_fill(~allowed, 0.0)
    cumulative_BHQK = log_BHQK.cumsum(-1)
    return cumulative_BHQK[..., -1:] - cumulative_BHQK


def _sum_without_gaps(
    log_BH1K: Tensor, allowed: Tensor | None, last_BQ: Tensor
) -> Float[Tensor, "B H Q K"]:
    """The same in a quarter of the time, for queries that see consecutive keys up to `last_BQ`."""
    if allowed is not None:
        log_BH1K = log_BH1K.masked_fill(~allowed.any(-2, keepdim=True), 0.0)
    cumulative_BH1K = log_BH1K.cumsum(-1)
    last_BHQ = last_BQ.unsqueeze(1).expand(*log_BH1K.shape[:2], -1)
    return cumulative_BH1K.squeeze(2).gather(-1, last_BHQ).unsqueeze(-1) - cumulative_BH1K


def _last_keys(allowed: Tensor | None, queries: int, keys: int) -> Int[Tensor, "#B Q"] | None:
    """The last key that each query can see, if every query sees consecutive keys.

    Keys that no query can see are not counted as gaps. None if there are gaps, or while a graph is compiled.
    """
    if allowed is None:
        return torch.full((1, queries), keys - 1)
    if torch.compiler.is_compiling() or not allowed.numel():
        return None
    allowed_BQK = allowed.squeeze(1)
    visible_B1K = allowed_BQK.any(-2, keepdim=True)
    number_B1K = visible_B1K.long().cumsum(-1)
    key_K = torch.arange(keys, device=allowed.device)
    last_BQ = (allowed_BQK * key_K).amax(-1)
    first_BQ = allowed_BQK.int().argmax(-1)
    number_BK = number_B1K.squeeze(1)
    span_BQ = number_BK.gather(-1, last_BQ) - number_BK.gather(-1, first_BQ) + 1
    has_no_gaps = bool((span_BQ == allowed_BQK.sum(-1)).all())
    return last_BQ.expand(-1, queries) if has_no_gaps else None
