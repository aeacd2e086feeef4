"""An attention as data, and its definition, which every kernel must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from jarilab.attention.geometry import Geometry
from jarilab.core.shapes import Float, Tensor


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Queries, keys and values of all heads, after rotation, with their geometry.

    q: `(B, H, Q, E)`. k: `(B, H, K, E)`. v: `(B, H, K, W)`.
    scale: factor of q.k, usually 1 / sqrt(E) times the encoding's factor.
    dropout: rate for the attention weights, 0 in evaluation.
    score: compares queries and keys, `(B, H, Q, E), (B, H, K, E) -> (B, H, Q, K)`; None for q.k. A module, so that a
        tape can check whether its parameters have changed.
    states: the encoding's states of the keys, each `(B, _, K, _)`.
    explicit_weights: `(B, H, Q, K)`, for a recorded call whose weights are no softmax of its scores; else None.
    """

    q: Float[Tensor, "B H Q E"]
    k: Float[Tensor, "B H K E"]
    v: Float[Tensor, "B H K W"]
    geometry: Geometry
    scale: float
    dropout: float = 0.0
    score: nn.Module | None = None
    states: tuple[Float[Tensor, "B _ K _"], ...] = ()
    explicit_weights: Float[Tensor, "B H Q K"] | None = None

    @property
    def materialized(self) -> AttentionCall:
        """The call with a materialized bias and mask."""
        if self.geometry.blockwise is None:
            return self
        return replace(self, geometry=self.geometry.materialized)

    def terms(
        self, product: Callable[[], Float[Tensor, "B H Q K"]]
    ) -> Float[Tensor, "B H Q K"] | None:
        """What the encoding's hook `terms` adds to q.k, before the scale; None without the hook.

        product: computes q.k, if the hook needs it.
        """
        encoding, geometry = self.geometry.encoding, self.geometry
        if "terms" not in encoding.hooks:
            return None
        context = {"allowed": geometry.allowed, "scale": self.scale, "state": self.states}
        if "product" in encoding.extra_arguments("terms"):
            context["product"] = product()
        return encoding.terms_for(self.q, self.k, geometry.relation, context)


@dataclass(frozen=True, eq=False)
class Summands:
    """The summands of scores, `scale * (product + terms) + bias`, before the mask.

    Each is `(B, H, Q, K)` for all heads, or `(Q, K)` for one head.

    product: q.k, or the call's score instead. terms, bias: of the encoding's hooks, or None.
    """

    product: Float[Tensor, "... Q K"]
    terms: Float[Tensor, "... Q K"] | None
    bias: Float[Tensor, "... Q K"] | None
    scale: float

    @property
    def unscaled(self) -> Float[Tensor, "... Q K"]:
        """`product + terms`."""
        return self.product if self.terms is None else self.product + self.terms

    @property
    def scaled(self) -> Float[Tensor, "... Q K"]:
        """`scale * (product + terms)`."""
        return self.scale * self.unscaled

    @property
    def scores(self) -> Float[Tensor, "... Q K"]:
        """`scale * (product + terms) + bias`."""
        return self.scaled if self.bias is None else self.scaled + self.bias

    def of_head(self, head: int) -> Summands:
        """The summands of one head in the first row of the batch."""
        product_QK = self.product[0, head]
        terms_QK = None if self.terms is None else self.terms[0, head]
        bias_QK = None
        if self.bias is not None:
            bias_BHQK = self.bias.expand_as(self.product)
            bias_QK = bias_BHQK[0, head]
        return Summands(product_QK, terms_QK, bias_QK, self.scale)

    @staticmethod
    def joined(steps: Sequence[Summands]) -> Summands:
        """Concatenate the summands of successive queries of one head."""

        def concatenate(parts: list[Tensor | None]) -> Tensor | None:
            rows = [part for part in parts if part is not None]
            return torch.cat(rows) if rows else None

        product = torch.cat([step.product for step in steps])
        terms = concatenate([step.terms for step in steps])
        bias = concatenate([step.bias for step in steps])
        return Summands(product, terms, bias, steps[0].scale)


def summands(call: AttentionCall) -> Summands:
    """The summands of the scores, in float32 or better."""
    states = tuple(_precise(state) for state in call.states)
    precise = replace(call, q=_precise(call.q), k=_precise(call.k), states=states)
    compare = _product if call.score is None else call.score
    product_BHQK = compare(precise.q, precise.k)
    terms_BHQK = precise.terms(lambda: product_BHQK)
    return Summands(product_BHQK, terms_BHQK, call.geometry.bias, call.scale)


def scores(call: AttentionCall) -> Float[Tensor, "B H Q K"]:
    """`scale * (q.k + terms) + bias` before the mask, in float32 or better.

    The call's score replaces q.k if it has one.
    """
    return summands(call).scores


def weights(call: AttentionCall) -> Float[Tensor, "B H Q K"]:
    """The attention weights: softmax of the scores over the allowed keys, before dropout. This is the definition.

    Rows sum to 1. Hidden keys have a weight of exactly 0. Queries without any key have a row of zeros.
    """
    if call.explicit_weights is not None:
        return _precise(call.explicit_weights)
    geometry = call.geometry
    scores_BHQK = scores(call)
    if geometry.allowed is not None:
        scores_BHQK = scores_BHQK.masked_fill(~geometry.allowed, float("-inf"))
    weights_BHQK = scores_BHQK.softmax(-1)
    # `allowed` is True for queries without any key, since the softmax of hidden keys alone would be NaN.
    return weights_BHQK if geometry.has_key is None else weights_BHQK * geometry.has_key


def output(call: AttentionCall) -> Float[Tensor, "B H Q W"]:
    """The output: `weights . v`, plus the encoding's hook `values`."""
    return weighted(call, weights(call))


def weighted(
    call: AttentionCall, weights_BHQK: Float[Tensor, "B H Q K"]
) -> Float[Tensor, "B H Q W"]:
    """Sum of the values with given weights, plus the encoding's hook `values`, in float32 or better."""
    geometry = call.geometry
    v_BHKE = _precise(call.v)
    output_BHQE = torch.einsum("bhqk,bhke->bhqe", weights_BHQK, v_BHKE)
    values_BHQE = geometry.encoding.values(weights_BHQK, geometry.relation)
    return output_BHQE if values_BHQE is None else output_BHQE + values_BHQE


def _product(
    q_BHQE: Float[Tensor, "B H Q E"], k_BHKE: Float[Tensor, "B H K E"]
) -> Float[Tensor, "B H Q K"]:
    return torch.einsum("bhqe,bhke->bhqk", q_BHQE, k_BHKE)


def _precise(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()
