"""Which distances of a table a block needs: from table rows to pairs and back, by strides only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jarilab.attention.cpu.score_terms import ScratchBuffers
from jarilab.core.shapes import Float
from jarilab.encodings.skew import skewed_view


@dataclass(frozen=True)
class DistanceBand:
    """How the distances of a block map to the rows of a table.

    size: of the block, its lines and columns. band: the columns in which lines differ; later columns share the last
    row, earlier ones have nothing. before, inside, after: how many distances of the band lie before the table rows, in
    them and behind them. rows: the table rows in use.
    """

    size: tuple[int, int]
    band: slice
    before: int
    inside: int
    after: int
    rows: slice

    @staticmethod
    def of_table(
        size: tuple[int, int],
        ahead: int,
        table: tuple[int, int],
        far_is_zero: bool,
        max_distance: int | None,
    ) -> DistanceBand:
        """The band of a block and a table.

        size: lines and columns. ahead: distance of the first column from the first line. table: distance of its first
        row, and the number of rows. far_is_zero: nothing is added before the first row. max_distance: larger distances
        are not visible; None if unknown.
        """
        (lines, columns), (first, count) = size, table
        # In a column, line 0 has the largest distance and the last line the smallest. Up to `begin` all lines are
        # before the table; from `end` on, all are at its last row or behind.
        begin = _clamp(first - ahead + 1, 0, columns) if far_is_zero else 0
        end = _clamp(first + count - 1 - ahead + lines - 1, begin, columns)
        lowest, width = ahead + begin - lines + 1, end - begin
        distances = _visible(width + lines - 1, width, lowest, max_distance)
        start = _clamp(lowest - first, 0, count - 1)
        stop = count if end < columns else _clamp(lowest + distances - first, start + 1, count)
        before = _clamp(first + start - lowest, 0, distances)
        inside = max(0, min(lowest + distances, first + stop) - max(lowest, first + start))
        after = distances - before - inside
        return DistanceBand(size, slice(begin, end), before, inside, after, slice(start, stop))

    @staticmethod
    def of_all_distances(
        size: tuple[int, int], ahead: int, max_distance: int | None
    ) -> DistanceBand:
        """The band if each visible distance has a row of its own."""
        lines, columns = size
        distances = _visible(columns + lines - 1, columns, ahead - lines + 1, max_distance)
        return DistanceBand(size, slice(0, columns), 0, distances, 0, slice(0, distances))

    @property
    def is_exact(self) -> bool:
        """Whether each distance has a row of its own."""
        return (
            not self.before and not self.after and self.inside == self.rows.stop - self.rows.start
        )

    @property
    def distances(self) -> int:
        return self.before + self.inside + self.after

    def spread(self, rows_NQR: Float[Tensor, "N Q R"], into: Float[Tensor, "*B N Q K"]) -> None:
        """Add to each pair the entry of its distance."""
        width = self.band.stop - self.band.start
        if width:
            distances_NQD = rows_NQR
            if not self.is_exact:
                # Distances outside the table have the entry of its first or last row.
                parts = [
                    rows_NQR[..., :1].expand(-1, -1, self.before),
                    rows_NQR[..., : self.inside],
                    rows_NQR[..., -1:].expand(-1, -1, self.after),
                ]
                distances_NQD = torch.cat(parts, -1)
            into[..., self.band] += skewed_view(distances_NQD, width)
        if self.band.stop < self.size[1]:
            into[..., self.band.stop :] += rows_NQR[..., -1:]

    def gather(
        self,
        x_NQK: Float[Tensor, "N Q K"],
        buffers: ScratchBuffers,
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "N Q R"]:
        """Gradient of `spread`: for each row, the sum over the pairs of its distances."""
        count, width = len(x_NQK), self.band.stop - self.band.start
        distances_NQD = buffers.buffer("distances", (count, self.size[0], self.distances), dtype)
        if width:
            if self.distances == width + 1:
                # The view covers all but the entries before the first line and behind the last one.
                flat = distances_NQD.flatten(1)
                flat[:, : self.size[0] - 1].zero_()
                flat[:, -1].zero_()
            else:
                distances_NQD.zero_()
            skewed_view(distances_NQD, width).copy_(x_NQK[..., self.band])
        if self.is_exact and self.band.stop == self.size[1]:
            return distances_NQD
        rows_NQR = x_NQK.new_zeros(count, self.size[0], self.rows.stop - self.rows.start)
        if width:
            end = self.before + self.inside
            rows_NQR[..., : self.inside] = distances_NQD[..., self.before : end]
            if self.before:
                rows_NQR[..., 0] += distances_NQD[..., : self.before].sum(-1)
            if self.after:
                rows_NQR[..., -1] += distances_NQD[..., end:].sum(-1)
        if self.band.stop < self.size[1]:
            rows_NQR[..., -1] += x_NQK[..., self.band.stop :].sum(-1)
        return rows_NQR


def _visible(distances: int, columns: int, lowest: int, max_distance: int | None) -> int:
    """How many distances from `lowest` on are visible."""
    if max_distance is None:
        return distances
    # Rows need at least one entry more than there are columns, so that each begins one place earlier than the last.
    return _clamp(max_distance - lowest + 1, min(columns + 1, distances), distances)


def _clamp(number: int, low: int, high: int) -> int:
    return max(low, min(number, high))
