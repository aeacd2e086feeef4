"""Hooks in closed form by distance, which kernels use instead of tensors of all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from jarilab.core.shapes import Float, Int, Tensor


@dataclass(frozen=True, eq=False)
class VectorTable:
    """A vector for each distance j - i from `first` on, per head or for all heads.

    rows: `(H or 1, R, E)`. Distances beyond either end have the vector at that end.
    """

    rows: Float[Tensor, "#H R E"]
    first: int

    def at(self, ahead: Int[Tensor, "Q K"]) -> Float[Tensor, "#H Q K E"]:
        """The vectors of these distances."""
        return self.rows[:, (ahead - self.first).clamp(0, self.rows.shape[1] - 1)]


@dataclass(frozen=True, eq=False)
class DistanceVectors:
    """The hooks `terms` and `values` as products with vectors by distance:

    `terms = (q_i + position_bias).keys[j - i] + queries[j - i].k_j + content_bias.k_j`
    `values = sum_j weights_ij values[j - i]`

    A field is None if its summand is missing.
    """

    keys: VectorTable | None = None
    queries: VectorTable | None = None
    values: VectorTable | None = None
    content_bias: Float[Tensor, "H E"] | None = None
    position_bias: Float[Tensor, "H E"] | None = None

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], ahead: Int[Tensor, "Q K"]
    ) -> Float[Tensor, "B H Q K"]:
        """`terms` of all pairs: the definition. ahead: j - i."""
        total = q.new_zeros(*q.shape[:3], k.shape[2])
        if self.keys is not None:
            biased_q = q if self.position_bias is None else q + self.position_bias.unsqueeze(1)
            vectors = _vectors_of_pairs(self.keys, q, ahead)
            total = total + torch.einsum("bhqe,hqke->bhqk", biased_q, vectors)
        if self.queries is not None:
            vectors = _vectors_of_pairs(self.queries, q, ahead)
            total = total + torch.einsum("bhke,hqke->bhqk", k, vectors)
        if self.content_bias is not None:
            total = total + torch.einsum("he,bhke->bhk", self.content_bias, k).unsqueeze(2)
        return total

    def weighted_sum(
        self, weights: Float[Tensor, "B H Q K"], ahead: Int[Tensor, "Q K"]
    ) -> Float[Tensor, "B H Q W"] | None:
        """`values` of all pairs: the definition. ahead: j - i."""
        if self.values is None:
            return None
        vectors = _vectors_of_pairs(self.values, weights, ahead)
        return torch.einsum("bhqk,hqke->bhqe", weights, vectors)


def _vectors_of_pairs(table: VectorTable, like: Tensor, ahead: Tensor) -> Float[Tensor, "H Q K E"]:
    return table.at(ahead).to(like.dtype).expand(like.shape[1], -1, -1, -1)


@dataclass(frozen=True, eq=False)
class RankOneBias:
    """A summand of an `AffineBias` at consecutive distances: `head_factor[h] * pair_factor[q, d]`."""

    distances: slice
    head_factor: Float[Tensor, " H"]
    pair_factor: Float[Tensor, "Q R"]


@dataclass(frozen=True, eq=False)
class AffineBias:
    """The hook `bias` at consecutive distances: `level[h, d] + query_factor[q] * slope[h, d]`, plus extra terms.

    query_factor, slope: None if the bias is the same for all queries.
    """

    level: Float[Tensor, "H R"]
    query_factor: Float[Tensor, " Q"] | None = None
    slope: Float[Tensor, "H R"] | None = None
    extra_terms: Sequence[RankOneBias] = ()

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of `gradients`."""
        tensors = [x for x in (self.level, self.query_factor, self.slope) if x is not None]
        for term in self.extra_terms:
            tensors += [term.head_factor, term.pair_factor]
        return tensors

    def detached(self) -> AffineBias:
        """The same without gradients."""
        tensors = iter([x.detach() for x in self.tensors])
        level = next(tensors)
        query_factor, slope = None, None
        if self.query_factor is not None:
            query_factor, slope = next(tensors), next(tensors)
        extra_terms = [
            RankOneBias(term.distances, next(tensors), next(tensors)) for term in self.extra_terms
        ]
        return AffineBias(level, query_factor, slope, extra_terms)

    def materialized(self, queries: int) -> Float[Tensor, "H Q R"]:
        """The bias of each query at each distance: the definition."""
        total_HQR = self.level.unsqueeze(1).expand(-1, queries, -1)
        if self.query_factor is not None and self.slope is not None:
            total_HQR = total_HQR + self.query_factor.unsqueeze(1) * self.slope.unsqueeze(1)
        for term in self.extra_terms:
            term_HQR = term.head_factor.view(-1, 1, 1) * term.pair_factor
            padding = term.distances.start, total_HQR.shape[2] - term.distances.stop
            total_HQR = total_HQR + nn.functional.pad(term_HQR, padding)
        return total_HQR

    def write(self, heads: slice, out: Float[Tensor, "H Q R"]) -> None:
        """Write the bias of some heads into `out`, without gradients."""
        level_H1R = self.level[heads].unsqueeze(1)
        if self.query_factor is None or self.slope is None:
            out.copy_(level_H1R.expand_as(out))
        else:
            slope_H1R = self.slope[heads].unsqueeze(1)
            torch.addcmul(level_H1R, self.query_factor.unsqueeze(1), slope_H1R, out=out)
        for term in self.extra_terms:
            head_factor_H11 = term.head_factor[heads].view(-1, 1, 1)
            out[..., term.distances].addcmul_(head_factor_H11, term.pair_factor)

    def gradients(self, heads: slice, d_out: Float[Tensor, "H Q R"], into: list[Tensor]) -> None:
        """Add the gradients of `tensors` to `into`. d_out: gradient of the bias of some heads."""
        gradient = iter(into)
        if self.query_factor is None or self.slope is None:
            next(gradient)[heads] += d_out.sum(1)
        else:
            # One product for both, since reading d_out takes most of the time.
            factors_2Q = torch.stack((torch.ones_like(self.query_factor), self.query_factor))
            factors_H2Q = factors_2Q.expand(len(d_out), -1, -1)
            d_level_HR, d_slope_HR = torch.bmm(factors_H2Q, d_out).unbind(1)
            d_factor_HQ1 = torch.bmm(d_out, self.slope[heads].unsqueeze(2))
            next(gradient)[heads] += d_level_HR
            next(gradient).add_(d_factor_HQ1.sum((0, 2)))
            next(gradient)[heads] += d_slope_HR
        for term in self.extra_terms:
            d_term_HN = d_out[..., term.distances].flatten(1)
            next(gradient)[heads] += d_term_HN @ term.pair_factor.flatten()
            next(gradient).add_((term.head_factor[heads] @ d_term_HN).view_as(term.pair_factor))
