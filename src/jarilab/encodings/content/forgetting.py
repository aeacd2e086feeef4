"""Forgetting attention: *Forgetting Transformer: Softmax Attention with a Forget Gate* (Lin et al. 2025), section 3."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import ASKED, Encoding, Site, registry
from jarilab.positions.coordinates import Positions, unrelated


@final
@registry.register("forgetting", "fox")
class Forgetting(Encoding):
    """Each token says how much of what came before it is forgotten: `log sigmoid(w.x_t + b)`, one gate per head, summed
    over the tokens after a key up to the query, is added to the scaled score. Tokens that a query may not look at do
    not count.

    remembered: b at the start; 5 keeps 99.3 % at every token.
    """

    causal_only = True
    shared = False

    def __init__(self, site: Site, *, remembered: float = 5.0):
        super().__init__(site)
        self.start = remembered
        self.gate = nn.Linear(site.width, site.heads)
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        if name == "gate.bias":
            parameter.fill_(self.start)
        else:
            super().initial_value(name, parameter, generator)

    def remember(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B H K 1"]:
        """The logarithm of each token's gates, in float32: near 1 they differ by less than bfloat16 can tell."""
        # The bias apart: with it, PyTorch's exporter takes the length for a constant.
        gate_BKH = functional.linear(x, self.gate.weight.to(x.dtype)) + self.gate.bias.to(x.dtype)
        wide = gate_BKH if x.dtype is torch.float64 else gate_BKH.float()
        return functional.logsigmoid(wide).transpose(1, 2).unsqueeze(-1)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"] | None:
        """True for pairs of which one has no place."""
        return unrelated(q_pos, k_pos)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Any,
        *,
        allowed: Bool[Tensor, "#B 1 #Q K"] | None = ASKED,
        scale: float = ASKED,
        state: Float[Tensor, "B H K 1"] = ASKED,
    ) -> Float[Tensor, "B H Q K"]:
        log_BH1K = state.transpose(-1, -2)
        last_BQ = _last_keys(allowed, q.shape[2], k.shape[2])
        if last_BQ is None:
            since_BHQK = _since(log_BH1K.expand(*q.shape[:3], -1), allowed) / scale
        else:
            since_BHQK = _since_unbroken(log_BH1K / scale, allowed, last_BQ.to(q.device))
        if relation is not None:
            since_BHQK = since_BHQK.masked_fill(relation.unsqueeze(-3), 0.0)
        return since_BHQK.to(q.dtype)


def _since(log_BHQK: Tensor, allowed: Tensor | None) -> Float[Tensor, "B H Q K"]:
    """The sum over the keys after each one that the query may look at."""
    if allowed is not None:
        log_BHQK = log_BHQK.masked_fill(~allowed, 0.0)
    up_to_BHQK = log_BHQK.cumsum(-1)
    return up_to_BHQK[..., -1:] - up_to_BHQK


def _since_unbroken(
    log_BH1K: Tensor, allowed: Tensor | None, last_BQ: Tensor
) -> Float[Tensor, "B H Q K"]:
    """The same where no query has gaps: a difference of two sums over keys alone, and a quarter of the time."""
    if allowed is not None:
        log_BH1K = log_BH1K.masked_fill(~allowed.any(-2, keepdim=True), 0.0)
    up_to_BH1K = log_BH1K.cumsum(-1)
    last_BHQ = last_BQ.unsqueeze(1).expand(*log_BH1K.shape[:2], -1)
    return up_to_BH1K.squeeze(2).gather(-1, last_BHQ).unsqueeze(-1) - up_to_BH1K


def _last_keys(allowed: Tensor | None, queries: int, keys: int) -> Int[Tensor, "#B Q"] | None:
    """The last key that each query may look at, where all may look at every key before it back to their first, but for
    keys that nobody may look at; None where that is not so, or cannot be asked for."""
    if allowed is None:
        return torch.full((1, queries), keys - 1)
    if torch.compiler.is_compiling() or not allowed.numel():
        return None
    seen_BQK = allowed.squeeze(1)
    somebody_B1K = seen_BQK.any(-2, keepdim=True)
    number_B1K = somebody_B1K.long().cumsum(-1)
    key_K = torch.arange(keys, device=allowed.device)
    last_BQ = (seen_BQK * key_K).amax(-1)
    first_BQ = seen_BQK.int().argmax(-1)
    number_BK = number_B1K.squeeze(1)
    between_BQ = number_BK.gather(-1, last_BQ) - number_BK.gather(-1, first_BQ) + 1
    unbroken = bool((between_BQ == seen_BQK.sum(-1)).all())
    return last_BQ.expand(-1, queries) if unbroken else None
