"""One attention, as data, and what it means: the definition that every kernel has to equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from jarilab.attention.geometry import Geometry
from jarilab.core.shapes import Float, Tensor


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Queries, keys and values of all heads, after rotation, and where they are.

    q: `(B, H, Q, E)`; k: `(B, H, K, E)`; v: `(B, H, K, E')`, whose width may differ.
    scale: what q.k is multiplied by, 1 / sqrt(E) as a rule, times the encoding's factor. dropout: the share of weights
        dropped, 0 in evaluation.
    score: compares every query with every key, `(B, H, Q, E), (B, H, K, E) -> (B, H, Q, K)`; None is q.k. A module, so
        that a tape can tell whether its parameters have changed since.
    states: what the encoding remembers of each key beside it, each `(B, _, K, _)`.
    """

    q: Float[Tensor, "B H Q E"]
    k: Float[Tensor, "B H K E"]
    v: Float[Tensor, "B H K W"]
    geometry: Geometry
    scale: float
    dropout: float = 0.0
    score: nn.Module | None = None
    states: tuple[Float[Tensor, "B _ K _"], ...] = ()

    @property
    def materialized(self) -> AttentionCall:
        """The same with bias and mask written out."""
        if self.geometry.blockwise is None:
            return self
        return replace(self, geometry=self.geometry.materialized)

    def terms(
        self, product: Callable[[], Float[Tensor, "B H Q K"]]
    ) -> Float[Tensor, "B H Q K"] | None:
        """What the encoding adds to q.k by content and place, before scaling. product: asked for q.k where the encoding
        asks for that."""
        encoding, geometry = self.geometry.encoding, self.geometry
        if "terms" not in encoding.hooks:
            return None
        around = {"allowed": geometry.allowed, "scale": self.scale, "state": self.states}
        if "product" in encoding.extra_arguments("terms"):
            around["product"] = product()
        return encoding.terms_for(self.q, self.k, geometry.relation, around)


@dataclass(frozen=True, eq=False)
class Summands:
    """A score as the sum it is, `scale * (product + terms) + bias`, before the mask.

    product: q.k, or the call's score in its place. terms, bias: what the encoding adds, by content and place and by
    place alone; None for nothing. Of all heads `(B, H, Q, K)`, of one `(Q, K)`.
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
        """All of it."""
        return self.scaled if self.bias is None else self.scaled + self.bias

    def of_head(self, head: int) -> Summands:
        """Those of one head of the first row of a batch."""
        product_QK = self.product[0, head]
        terms_QK = None if self.terms is None else self.terms[0, head]
        bias_QK = None
        if self.bias is not None:
            bias_BHQK = self.bias.expand_as(self.product)
            bias_QK = bias_BHQK[0, head]
        return Summands(product_QK, terms_QK, bias_QK, self.scale)

    @staticmethod
    def joined(steps: Sequence[Summands]) -> Summands:
        """Those of a head whose queries were asked one after the other."""

        def below(parts: list[Tensor | None]) -> Tensor | None:
            rows = [part for part in parts if part is not None]
            return torch.cat(rows) if rows else None

        product = torch.cat([step.product for step in steps])
        terms = below([step.terms for step in steps])
        bias = below([step.bias for step in steps])
        return Summands(product, terms, bias, steps[0].scale)


def summands(call: AttentionCall) -> Summands:
    """What the scores are the sum of, in float32 or better."""
    states = tuple(_precise(state) for state in call.states)
    precise = replace(call, q=_precise(call.q), k=_precise(call.k), states=states)
    compare = _product if call.score is None else call.score
    product_BHQK = compare(precise.q, precise.k)
    terms_BHQK = precise.terms(lambda: product_BHQK)
    return Summands(product_BHQK, terms_BHQK, call.geometry.bias, call.scale)


def scores(call: AttentionCall) -> Float[Tensor, "B H Q K"]:
    """`scale * (q.k + terms) + bias`, in float32 or better, before the mask; the call's score in place of q.k."""
    return summands(call).scores


def weights(call: AttentionCall) -> Float[Tensor, "B H Q K"]:
    """The attention weights: `softmax(scores)` over the allowed keys, before dropout; this is the definition.

    Rows sum to 1; hidden keys have exactly 0; the row of a query without any key is 0 throughout.
    """
    geometry = call.geometry
    scores_BHQK = scores(call)
    if geometry.allowed is not None:
        scores_BHQK = scores_BHQK.masked_fill(~geometry.allowed, float("-inf"))
    weights_BHQK = scores_BHQK.softmax(-1)
    return weights_BHQK if geometry.has_key is None else weights_BHQK * geometry.has_key


def output(call: AttentionCall) -> Float[Tensor, "B H Q W"]:
    """The weighted sum of the values: `weights . v`, and what the encoding adds to it."""
    return weighted(call, weights(call))


def weighted(
    call: AttentionCall, weights_BHQK: Float[Tensor, "B H Q K"]
) -> Float[Tensor, "B H Q W"]:
    """The output for these weights, whether they are the attention's own or others."""
    geometry = call.geometry
    v_BHKE = _precise(call.v)
    output_BHQE = torch.einsum("bhqk,bhke->bhqe", weights_BHQK, v_BHKE)
    added_BHQE = geometry.encoding.values(weights_BHQK, geometry.relation)
    return output_BHQE if added_BHQE is None else output_BHQE + added_BHQE


def _product(
    q_BHQE: Float[Tensor, "B H Q E"], k_BHKE: Float[Tensor, "B H K E"]
) -> Float[Tensor, "B H Q K"]:
    return torch.einsum("bhqe,bhke->bhqk", q_BHQE, k_BHKE)


def _precise(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()
