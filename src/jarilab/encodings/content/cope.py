"""Contextual position encoding: *Contextual Position Encoding: Learning to Count What's Important* (Golovneva et al.
2024), section 4 and appendix B."""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import ASKED, Encoding, Site, registry
from jarilab.encodings.numbers import wide
from jarilab.positions.coordinates import Positions, unrelated


@final
@registry.register("cope")
class CoPE(Encoding):
    """A key's position is how many keys from it up to the query the query counts: the sum of `sigmoid(scaled q.k)` over
    those between. The query's product with the learned vector of that position, between two whole ones in proportion,
    is added to the scaled score. Keys that a query may not look at do not count.

    positions: vectors in the table, one set per layer, shared by the heads; what counts to more is the last.
    """

    causal_only = True
    shared = False

    def __init__(self, site: Site, *, positions: Annotated[int, Ge(2)] = 64):
        super().__init__(site)
        self.positions = positions
        self.table = nn.Parameter(torch.empty(positions, site.head_width))
        self.reset()

    def relation(self, q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"] | None:
        """True for pairs of which one has no place."""
        return unrelated(q_pos, k_pos)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Any,
        *,
        product: Float[Tensor, "B H Q K"] = ASKED,
        allowed: Bool[Tensor, "#B 1 #Q K"] | None = ASKED,
        scale: float = ASKED,
    ) -> Float[Tensor, "B H Q K"]:
        gate_BHQK = (scale * product).sigmoid()
        if allowed is not None:
            gate_BHQK = gate_BHQK.masked_fill(~allowed, 0.0)
        # In float32: a sum in bfloat16 stops counting at 256.
        counted_BHQK = _FromTheLast.apply(wide(gate_BHQK)).clamp(max=self.positions - 1)
        row_BHQK = counted_BHQK.detach().long()
        # Each position's product with the query, and how much more the next one's is. On the smallest tensors at hand.
        each_BHQP = q @ (self.table.to(q.dtype) / scale).t()
        rise_BHQP = functional.pad(each_BHQP.diff(dim=-1), (0, 1))
        low_BHQK, rise_BHQK = each_BHQP.gather(-1, row_BHQK), rise_BHQP.gather(-1, row_BHQK)
        part_BHQK = counted_BHQK.frac().to(q.dtype)
        terms_BHQK = torch.addcmul(low_BHQK, part_BHQK, rise_BHQK)
        return (
            terms_BHQK if relation is None else terms_BHQK.masked_fill(relation.unsqueeze(-3), 0.0)
        )


class _FromTheLast(torch.autograd.Function):
    """The sum from each number of the last axis to the end: what is near the query keeps all its digits. Its gradient
    is a sum from the first, which PyTorch would work out by four more turnings of the whole tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.flip(-1).cumsum(-1).flip(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].cumsum(-1)
