"""PaTH: *PaTH Attention: Position Encoding via Accumulating Householder Transformations* (Yang et al. 2025), sections
3.1 and 3.2."""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import ASKED, Encoding, Site, registry
from jarilab.encodings.numbers import uncast, wide
from jarilab.positions.coordinates import Positions, unrelated

CHUNK = 32
"""Keys that are worked out at once. It changes no score, only how long it takes."""


@final
@registry.register("path_attention", "path")
class PathAttention(Encoding):
    """Every token turns what lies before it: the key that a query meets has been multiplied by `I - beta w w'` of each
    token after it, up to the query's own. w is a vector of length 1 and beta lies between 0 and 2, both made of the
    token for each head.

    What this adds to q.k comes from solving a triangular system, chunk by chunk from the last key back, so that no
    product of matrices is written out. w comes from a map of low rank; the authors' short convolution after it is left
    out, since what is remembered of a token would not be of that token alone.

    Tokens without a place turn keys like any other, and are met as they are. The keys that a query may look at are
    taken to follow each other without a gap that others see into: so it is under padding, documents and windows.

    rank: of the map that w comes from.
    """

    causal_only = True
    cross = False
    shared = False

    def __init__(self, site: Site, *, rank: Annotated[int, Ge(1)] = 32):
        super().__init__(site)
        self.rank = rank
        self.low = nn.Linear(site.width, rank, bias=False)
        self.direction = nn.Linear(rank, site.heads * site.head_width, bias=False)
        self.strength = nn.Linear(site.width, site.heads)
        self.reset()

    def remember(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B H K _"]:
        """w and beta of each head, side by side, in float32: w has length 1 to all its digits."""
        low_BKR = functional.linear(x, self.low.weight.to(x.dtype))
        w_BKN = functional.linear(low_BKR, self.direction.weight.to(x.dtype))
        w_BHKE = wide(w_BKN).unflatten(-1, (self.site.heads, -1)).transpose(1, 2)
        weight, bias = self.strength.weight.to(x.dtype), self.strength.bias.to(x.dtype)
        # The bias apart: with it, PyTorch's exporter takes the length for a constant.
        beta_BKH = 2 * wide(functional.linear(x, weight) + bias).sigmoid()
        beta_BHK1 = beta_BKH.transpose(1, 2).unsqueeze(-1)
        return torch.cat((functional.normalize(w_BHKE, dim=-1), beta_BHK1), -1)

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
        state: Float[Tensor, "B H K _"] = ASKED,
    ) -> Float[Tensor, "B H Q K"]:
        with uncast(q.device):
            terms_BHQK = self._terms(wide(q), wide(k), allowed, state)
        if relation is not None:
            terms_BHQK = terms_BHQK.masked_fill(relation.unsqueeze(-3), 0.0)
        return terms_BHQK.to(q.dtype)

    def _terms(
        self, q_BHQE: Tensor, k_BHKE: Tensor, allowed: Tensor | None, state: Tensor
    ) -> Float[Tensor, "B H Q K"]:
        w_BHKE, beta_BHK1 = state[..., :-1], state[..., -1:]
        met_BHQK = q_BHQE @ w_BHKE.transpose(-1, -2)
        if allowed is not None:
            met_BHQK = met_BHQK.masked_fill(~allowed, 0.0)
            seen_BHK1 = allowed.any(-2).unsqueeze(-1)
            beta_BHK1 = beta_BHK1 * seen_BHK1
        starts = range(0, k_BHKE.shape[2], CHUNK) or range(1)
        first = _first_queries(allowed, starts)
        return _turned(met_BHQK, w_BHKE, beta_BHK1 * w_BHKE, k_BHKE, first)


def _first_queries(allowed: Tensor | None, starts: range) -> list[int]:
    """For each chunk of keys the first query that sees it or what comes after it: the others do without it, which is
    half of the work under a causal mask."""
    if allowed is None or not allowed.numel() or torch.compiler.is_compiling():
        return [0] * len(starts)
    key_K = torch.arange(allowed.shape[-1], device=allowed.device)
    seen_QK = allowed.flatten(0, 1).any(0)
    last_Q = (seen_QK * key_K).amax(-1)
    start_C1 = torch.tensor(starts, device=allowed.device).unsqueeze(-1)
    reaches_CQ = last_Q >= start_C1
    return reaches_CQ.int().argmax(-1).tolist()


def _turned(
    met_BHQK: Tensor, w_BHKE: Tensor, scaled_BHKE: Tensor, k_BHKE: Tensor, first: list[int]
) -> Float[Tensor, "B H Q K"]:
    """`-Y tril(beta W K', -1)` where `Y (I + tril(beta W W', -1)) = met`.

    Y says how much of each token's w a query meets once the tokens after it have turned it. Of later chunks the sum of
    `Y beta W` is all that is needed. first: the first query that a chunk matters to.
    """
    batch, heads, queries, _ = met_BHQK.shape
    w_of, scaled_of, k_of = (x.split(CHUNK, -2) for x in (w_BHKE, scaled_BHKE, k_BHKE))
    met_of = met_BHQK.split(CHUNK, -1)
    later_BHQE = met_BHQK.new_zeros(batch, heads, 0, w_BHKE.shape[-1])
    found = []
    for number in reversed(range(len(first))):
        w_BHCE, scaled_BHCE, k_BHCE = w_of[number], scaled_of[number], k_of[number]
        w_BHEC, k_BHEC = w_BHCE.transpose(-1, -2), k_BHCE.transpose(-1, -2)
        # The queries from `start` on: more with each chunk.
        start = first[number]
        new_queries = queries - start - later_BHQE.shape[2]
        later_BHQE = functional.pad(later_BHQE, (0, 0, new_queries, 0))
        here_BHQC = met_of[number][:, :, start:] - later_BHQE @ w_BHEC
        # The diagonal is taken to be 1.
        within_BHCC = scaled_BHCE @ w_BHEC
        y_BHQC = torch.linalg.solve_triangular(
            within_BHCC, here_BHQC, upper=False, left=False, unitriangular=True
        )
        before_BHCC = (scaled_BHCE @ k_BHEC).tril(-1)
        terms_BHQC = later_BHQE @ k_BHEC + y_BHQC @ before_BHCC
        found.append(functional.pad(-terms_BHQC, (0, 0, start, 0)))
        later_BHQE = later_BHQE + y_BHQC @ scaled_BHCE
    return torch.cat(found[::-1], -1)
