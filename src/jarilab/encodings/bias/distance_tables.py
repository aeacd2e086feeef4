"""Learned tables of biases by distance: T5 for sequences, Swin's table for images."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Annotated, final

import torch
from annotated_types import Ge, Le
from torch import Generator, nn

from jarilab.core.devices import constant
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import check_integer, interpolate_plane, zero_out
from jarilab.positions.coordinates import Positions, distance, offsets, undefined_pairs


@final
@registry.register("t5")
class T5(Encoding):
    """Adds a learned bias per head and bucket of distances to the score.

    Near distances have a bucket each. Far ones share buckets that grow logarithmically, and all beyond `distance` share
    the last. One table serves all layers. The bias is added after scaling. If queries never see later keys, all buckets
    are for keys before the query; otherwise half of them are for each direction.

    Source: T5's scalar bias: *Exploring the Limits of Transfer Learning* (Raffel et al. 2020), section 2.1, and its
    code.

    buckets: rows of the table. distance: from here on all distances share a bucket. scaled: false omits the scale of
        q.k, as T5 was trained; queries then have to start smaller, by 1 / sqrt(E).
    """

    integer_only = True

    def __init__(
        self,
        site: Site,
        *,
        buckets: Annotated[int, Ge(2)] = 32,
        distance: Annotated[int, Ge(2)] = 128,
        scaled: bool = True,
    ):
        super().__init__(site)
        one_way = buckets if site.causal else buckets // 2
        if not site.causal and buckets % 2:
            raise UserError(
                f"t5 splits its buckets between both directions: expected an even number, got {buckets}; use "
                f"buckets={buckets + 1}"
            )
        if one_way < 2 or distance <= one_way // 2:
            raise UserError(
                f"t5 has a bucket for each of {one_way // 2} distances before its logarithmic buckets: expected at "
                f"least 2 buckets each way and a larger distance, got buckets={buckets}, distance={distance}"
            )
        self.buckets, self.distance, self.scaled = buckets, distance, scaled
        self.starts = _bucket_starts(one_way, distance)
        # sqrt(E) cancels the attention's scale.
        self.scale_factor = 1.0 if scaled else math.sqrt(site.d_head)
        self.table = nn.Parameter(torch.empty(buckets, site.n_heads))
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        nn.init.normal_(parameter, std=0.3, generator=generator)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        ahead = check_integer("t5", distance(q_pos, k_pos))
        # Look up the 2 distance + 1 different biases, then select columns for the pairs: the gradient of selecting
        # whole columns is cheap, that of a lookup for each pair is not.
        end, heads = self.distance, self.site.n_heads
        near_R = torch.arange(-end, end + 1, device=ahead.device)
        row_RH = nn.functional.embedding(self.bucket(near_R), self.table)
        row_HR = row_RH.t().contiguous()
        columns = (ahead.clamp(-end, end) + end).flatten()
        bias_H = row_HR.index_select(1, columns).view(heads, *ahead.shape)
        bias = bias_H.movedim(0, -3)
        return zero_out(bias, undefined_pairs(q_pos, k_pos))

    def bucket(self, ahead: Int[Tensor, "*P"]) -> Int[Tensor, "*P"]:
        """The bucket of each distance key - query."""
        if self.site.causal:
            first, away = 0, (-ahead).clamp_min(0)
        else:
            first, away = (ahead > 0).long() * (self.buckets // 2), ahead.abs()
        # Compared one by one, since a page can compute no `bucketize`.
        starts = constant(self.starts, away.device)
        return first + (away.unsqueeze(-1) >= starts).sum(-1)


def _bucket_starts(buckets: int, distance: int) -> list[int]:
    """The least distance of each bucket after the first, of one direction."""
    # In integers: a logarithm at the border of two buckets is rounded differently by each library.
    exact = buckets // 2
    far = buckets - exact
    borders = (exact ** (far - k) * distance**k for k in range(1, far))
    starts = (bisect_left(range(distance), border, key=lambda d: d**far) for border in borders)
    return [*range(1, exact + 1), *starts]


@final
@registry.register("table2d", "swin")
class Table2d(Encoding):
    """Adds a learned bias per head and offset in rows and columns to the score.

    One table serves all layers. It has `(2 rows + 1)(2 columns + 1)` entries: a grid of h x w needs rows = h - 1 and
    columns = w - 1. Offsets between integers are interpolated bilinearly. Tokens without a position have no bias.

    Source: A learned bias for each offset in the plane: *Swin Transformer* (Liu et al. 2021), equation 4; BEiT has it
    too.

    rows, columns: the largest offset in the table. clip: treat larger offsets as the largest instead of raising an
        error.
    """

    axes = (2,)

    def __init__(
        self,
        site: Site,
        *,
        rows: Annotated[int, Ge(0), Le(2**11)] = 31,
        columns: Annotated[int, Ge(0), Le(2**11)] = 31,
        clip: bool = False,
    ):
        super().__init__(site)
        self.rows, self.columns, self.clip = rows, columns, clip
        self.table = nn.Parameter(torch.empty((2 * rows + 1) * (2 * columns + 1), site.n_heads))
        self.reset()

    @property
    def max_distance(self) -> int | None:
        return None if self.clip else min(self.rows, self.columns)

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        nn.init.normal_(parameter, std=0.3, generator=generator)  # as t5

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        down, right = offsets(q_pos, k_pos)
        row = self._clamp_to_table("rows", down, self.rows) + self.rows
        column = self._clamp_to_table("columns", right, self.columns) + self.columns
        bias = interpolate_plane(self._bias_of, row, column).movedim(-1, -3)
        return zero_out(bias, undefined_pairs(q_pos, k_pos))

    def _bias_of(self, row: Tensor, column: Tensor) -> Float[Tensor, "*P H"]:
        # The gradient of selecting whole columns is cheap, that of a lookup for each pair is not.
        columns = (row * (2 * self.columns + 1) + column).flatten()
        table_HR = self.table.t().contiguous()
        bias_H = table_HR.index_select(1, columns).view(-1, *row.shape)
        return bias_H.movedim(0, -1)

    def _clamp_to_table(self, axis: str, ahead: Tensor, largest: int) -> Tensor:
        if not self.clip and not torch.compiler.is_compiling() and ahead.numel():
            away = ahead.abs().max().item()
            if away > largest:
                raise UserError(
                    f"table2d has offsets of up to {largest} {axis}, got {away:g}; "
                    f"use table2d:{axis}={-int(-away // 1)} or clip=true"
                )
        return ahead.clamp(-largest, largest)
