"""Where a table by distance meets some queries and some keys: from its rows to pairs and back, by strides alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jarilab.attention.room import Room
from jarilab.core.shapes import Float
from jarilab.encodings.skew import skewed_view


@dataclass(frozen=True)
class Fit:
    """Where a table meets a block.

    size: of the block. band: the columns whose distances differ in what they have. before, inside, after: of the
    distances of the band, how many lie before the rows, in them and beyond. rows: those of the table.
    """

    size: tuple[int, int]
    band: slice
    before: int
    inside: int
    after: int
    rows: slice

    @staticmethod
    def of(
        size: tuple[int, int], ahead: int, table: tuple[int, int], far: bool, seen: int | None
    ) -> Fit:
        """size: lines and columns. ahead: the distance of the first column from the first line. table: the distance of
        its first row, and how many there are. far: what lies before them has nothing. seen: no distance beyond this
        one matters."""
        (lines, columns), (first, count) = size, table
        begin = _within(first - ahead + 1, 0, columns) if far else 0
        end = _within(first + count - 1 - ahead + lines - 1, begin, columns)
        lowest, wide = ahead + begin - lines + 1, end - begin
        distances = wide + lines - 1
        distances = _seen(distances, wide, lowest, seen)
        start = _within(lowest - first, 0, count - 1)
        stop = count if end < columns else _within(lowest + distances - first, start + 1, count)
        before = _within(first + start - lowest, 0, distances)
        inside = max(0, min(lowest + distances, first + stop) - max(lowest, first + start))
        after = distances - before - inside
        return Fit(size, slice(begin, end), before, inside, after, slice(start, stop))

    @staticmethod
    def of_each(size: tuple[int, int], ahead: int, seen: int | None) -> Fit:
        """Where there is a row for each distance that can be seen."""
        lines, columns = size
        distances = _seen(columns + lines - 1, columns, ahead - lines + 1, seen)
        return Fit(size, slice(0, columns), 0, distances, 0, slice(0, distances))

    @property
    def exact(self) -> bool:
        """Each distance has a row of its own."""
        return (
            not self.before and not self.after and self.inside == self.rows.stop - self.rows.start
        )

    @property
    def distances(self) -> int:
        return self.before + self.inside + self.after

    def spread(self, each_NQR: Float[Tensor, "N Q R"], into: Float[Tensor, "*B N Q K"]) -> None:
        """Add to each pair what the row of its distance has."""
        wide = self.band.stop - self.band.start
        if wide:
            by_distance_NQD = each_NQR
            if not self.exact:
                parts = [
                    each_NQR[..., :1].expand(-1, -1, self.before),
                    each_NQR[..., : self.inside],
                    each_NQR[..., -1:].expand(-1, -1, self.after),
                ]
                by_distance_NQD = torch.cat(parts, -1)
            into[..., self.band] += skewed_view(by_distance_NQD, wide)
        if self.band.stop < self.size[1]:
            into[..., self.band.stop :] += each_NQR[..., -1:]

    def gathered(
        self, x_NQK: Float[Tensor, "N Q K"], room: Room, dtype: torch.dtype | None = None
    ) -> Float[Tensor, "N Q R"]:
        """The way back: for each row the sum over the pairs that have it."""
        count, wide = len(x_NQK), self.band.stop - self.band.start
        by_distance_NQD = room.of("distances", (count, self.size[0], self.distances), dtype)
        if wide:
            if self.distances == wide + 1:
                # The shift reaches all but what lies before the first line's numbers and behind the last one's.
                flat = by_distance_NQD.flatten(1)
                flat[:, : self.size[0] - 1].zero_()
                flat[:, -1].zero_()
            else:
                by_distance_NQD.zero_()
            skewed_view(by_distance_NQD, wide).copy_(x_NQK[..., self.band])
        if self.exact and self.band.stop == self.size[1]:
            return by_distance_NQD
        rows = self.rows.stop - self.rows.start
        each_NQR = x_NQK.new_zeros(count, self.size[0], rows)
        if wide:
            end = self.before + self.inside
            each_NQR[..., : self.inside] = by_distance_NQD[..., self.before : end]
            if self.before:
                each_NQR[..., 0] += by_distance_NQD[..., : self.before].sum(-1)
            if self.after:
                each_NQR[..., -1] += by_distance_NQD[..., end:].sum(-1)
        if self.band.stop < self.size[1]:
            each_NQR[..., -1] += x_NQK[..., self.band.stop :].sum(-1)
        return each_NQR


def _seen(distances: int, columns: int, lowest: int, seen: int | None) -> int:
    """How many of the distances from `lowest` on matter. Rows one number longer than there are columns still begin one
    place earlier each."""
    if seen is None:
        return distances
    return _within(seen - lowest + 1, min(columns + 1, distances), distances)


def _within(number: int, least: int, most: int) -> int:
    return max(least, min(number, most))
