"""What an encoding adds, as vectors by distance: what a kernel reads instead of asking hooks pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from jarilab.core.shapes import Float, Int, Tensor


@dataclass(frozen=True, eq=False)
class Vectors:
    """A vector for each distance j - i from `first` on, of each head or of all alike; what lies beyond either end has
    the vector that is there."""

    rows: Float[Tensor, "#H R E"]
    first: int

    def at(self, ahead: Int[Tensor, "Q K"]) -> Float[Tensor, "#H Q K E"]:
        """Those of some distances, written out."""
        return self.rows[:, (ahead - self.first).clamp(0, self.rows.shape[1] - 1)]


@dataclass(frozen=True, eq=False)
class ByDistance:
    """The hooks `terms` and `values` of an encoding where they are products with vectors by distance, and None where a
    summand is not there:

    `terms = (q_i + position_bias).keys[j - i] + queries[j - i].k_j + content_bias.k_j`
    `values = sum_j weights_ij values[j - i]`
    """

    keys: Vectors | None = None
    queries: Vectors | None = None
    values: Vectors | None = None
    content_bias: Float[Tensor, "H E"] | None = None
    position_bias: Float[Tensor, "H E"] | None = None

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        ahead: Int[Tensor, "Q K"],
    ) -> Float[Tensor, "B H Q K"]:
        """`terms`, written out: what it means. ahead: j - i."""
        total = q.new_zeros(*q.shape[:3], k.shape[2])
        if self.keys is not None:
            moved = q if self.position_bias is None else q + self.position_bias.unsqueeze(1)
            total = total + torch.einsum("bhqe,hqke->bhqk", moved, _of_each(self.keys, q, ahead))
        if self.queries is not None:
            total = total + torch.einsum("bhke,hqke->bhqk", k, _of_each(self.queries, q, ahead))
        if self.content_bias is not None:
            total = total + torch.einsum("he,bhke->bhk", self.content_bias, k).unsqueeze(2)
        return total

    def summed(
        self, weights: Float[Tensor, "B H Q K"], ahead: Int[Tensor, "Q K"]
    ) -> Float[Tensor, "B H Q W"] | None:
        """`values`, written out."""
        if self.values is None:
            return None
        return torch.einsum("bhqk,hqke->bhqe", weights, _of_each(self.values, weights, ahead))


def _of_each(vectors: Vectors, like: Tensor, ahead: Tensor) -> Float[Tensor, "H Q K E"]:
    return vectors.at(ahead).to(like.dtype).expand(like.shape[1], -1, -1, -1)


@dataclass(frozen=True, eq=False)
class RankOneBias:
    """What some distances that follow each other have beside the lines: `of_heads[h] * of_pairs[q, d]`."""

    distances: slice
    of_heads: Float[Tensor, " H"]
    of_pairs: Float[Tensor, "Q R"]


@dataclass(frozen=True, eq=False)
class AffineBias:
    """The hook `bias` for some queries at distances that follow each other: `level[h, d] + share[q] * slope[h, d]`, and
    at some distances more. share, slope: None where all these queries have the same."""

    level: Float[Tensor, "H R"]
    share: Float[Tensor, " Q"] | None = None
    slope: Float[Tensor, "H R"] | None = None
    more: Sequence[RankOneBias] = ()

    @property
    def tensors(self) -> list[Tensor]:
        """All that it is made of."""
        there = [x for x in (self.level, self.share, self.slope) if x is not None]
        return there + [x for each in self.more for x in (each.of_heads, each.of_pairs)]

    def detached(self) -> AffineBias:
        """Without a graph."""
        found = iter([x.detach() for x in self.tensors])
        level = next(found)
        share, slope = (None, None) if self.share is None else (next(found), next(found))
        more = [RankOneBias(each.distances, next(found), next(found)) for each in self.more]
        return AffineBias(level, share, slope, more)

    def materialized(self, queries: int) -> Float[Tensor, "H Q R"]:
        """What it means."""
        total_HQR = self.level.unsqueeze(1).expand(-1, queries, -1)
        if self.share is not None and self.slope is not None:
            total_HQR = total_HQR + self.share.unsqueeze(1) * self.slope.unsqueeze(1)
        for each in self.more:
            more_HQR = each.of_heads.view(-1, 1, 1) * each.of_pairs
            beside = each.distances.start, total_HQR.shape[2] - each.distances.stop
            total_HQR = total_HQR + nn.functional.pad(more_HQR, beside)
        return total_HQR

    def write(self, heads: slice, out: Float[Tensor, "H Q R"]) -> None:
        """The same for some heads, without a graph."""
        level_H1R = self.level[heads].unsqueeze(1)
        if self.share is None or self.slope is None:
            out.copy_(level_H1R.expand_as(out))
        else:
            slope_H1R = self.slope[heads].unsqueeze(1)
            torch.addcmul(level_H1R, self.share.unsqueeze(1), slope_H1R, out=out)
        for each in self.more:
            of_heads_H11 = each.of_heads[heads].view(-1, 1, 1)
            out[..., each.distances].addcmul_(of_heads_H11, each.of_pairs)

    def gradients(self, heads: slice, d_out: Float[Tensor, "H Q R"], into: list[Tensor]) -> None:
        """Of `tensors`, added to what is there. d_out: that of what some heads have."""
        held = iter(into)
        if self.share is None or self.slope is None:
            next(held)[heads] += d_out.sum(1)
        else:
            # Both at once, since d_out is what takes time to read.
            both_H2Q = torch.stack((torch.ones_like(self.share), self.share)).expand(
                len(d_out), -1, -1
            )
            d_level_HR, d_slope_HR = torch.bmm(both_H2Q, d_out).unbind(1)
            d_share_HQ1 = torch.bmm(d_out, self.slope[heads].unsqueeze(2))
            next(held)[heads] += d_level_HR
            next(held).add_(d_share_HQ1.sum((0, 2)))
            next(held)[heads] += d_slope_HR
        for each in self.more:
            d_some_HN = d_out[..., each.distances].flatten(1)
            next(held)[heads] += d_some_HN @ each.of_pairs.flatten()
            next(held).add_((each.of_heads[heads] @ d_some_HN).view_as(each.of_pairs))
