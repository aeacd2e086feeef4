"""CoPE: positions that count keys by their content."""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Site, registry
from jarilab.encodings.numbers import at_least_float32, zero_out
from jarilab.positions.coordinates import Positions, undefined_pairs


@final
@registry.register("cope")
class CoPE(Encoding):
    """Adds the query's product with a learned vector of the key's contextual position to the scaled score.

    The position of key j for query i is the sum of `sigmoid(scaled q_i.k_t)` over t = j ... i, so the query decides
    which keys count. Between integers the product is interpolated. Keys that the query cannot see do not count.

    Source: Contextual position encoding: *Contextual Position Encoding: Learning to Count What's Important* (Golovneva
    et al. 2024), section 4 and appendix B.

    positions: vectors in the table, one table per layer, shared by the heads; larger positions have the last vector.
    """

    causal_only = True
    shared = False

    def __init__(self, site: Site, *, positions: Annotated[int, Ge(2)] = 64):
        super().__init__(site)
        self.positions = positions
        self.table = nn.Parameter(torch.empty(positions, site.d_head))
        self.reset()

    def relation(self, q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"] | None:
        """True for pairs in which a token has no position."""
        return undefined_pairs(q_pos, k_pos)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Any,
        *,
        product: Float[Tensor, "B H Q K"] = PROVIDED,
        allowed: Bool[Tensor, "#B 1 #Q K"] | None = PROVIDED,
        scale: float = PROVIDED,
    ) -> Float[Tensor, "B H Q K"]:
        gate_BHQK = (scale * product).sigmoid()
        if allowed is not None:
            gate_BHQK = gate_BHQK.masked_fill(~allowed, 0.0)
        # In float32: a sum in bfloat16 stops counting at 256.
        position_BHQK = _ReversedCumsum.apply(at_least_float32(gate_BHQK))
        position_BHQK = position_BHQK.clamp(max=self.positions - 1)
        row_BHQK = position_BHQK.detach().long()
        # The query's product with each vector, and its difference to the next: the smallest tensors to gather from.
        # Divided by the scale, since the attention multiplies terms by it.
        product_BHQP = q @ (self.table.to(q.dtype) / scale).t()
        difference_BHQP = functional.pad(product_BHQP.diff(dim=-1), (0, 1))
        low_BHQK = product_BHQP.gather(-1, row_BHQK)
        difference_BHQK = difference_BHQP.gather(-1, row_BHQK)
        fraction_BHQK = position_BHQK.frac().to(q.dtype)
        terms_BHQK = torch.addcmul(low_BHQK, fraction_BHQK, difference_BHQK)
        return zero_out(terms_BHQK, relation)


class _ReversedCumsum(torch.autograd.Function):
    """The sum from each number of the last axis to the end."""

    # Summing from the end keeps all digits of numbers near the query. The gradient is a plain cumsum, for which
    # autograd would flip the tensor four more times.
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.flip(-1).cumsum(-1).flip(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].cumsum(-1)
