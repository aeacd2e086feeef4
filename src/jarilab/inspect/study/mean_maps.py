"""Mean attention maps over examples of different lengths, aligned from the left, from the right, and by offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.study.example import Example, HeadMaps
from jarilab.inspect.study.head import Head

DEFAULT_SIZE = 64
"""Positions of a mean map."""
ALIGNMENTS = ("left", "right", "offset")


@dataclass(frozen=True, eq=False)
class MeanMap:
    """The mean of each head's weights, NaN without examples, and the examples that each mean is of.

    weights, counts: (H, P, P) for `left`, where cell i, j is of query i and key j from 0, and for `right`, where it is
    of query i - P and key j - P from the end, -1 the last; (H, 2 P - 1) for `offset`, of key less query from 1 - P.
    """

    weights: np.ndarray
    counts: np.ndarray


class MeanMaps:
    """The mean map of each head, in memory that does not depend on the number of examples.

    Each cell is divided by the number of examples that have its query and its key, and that query a key to attend to;
    of an offset, by the number of such pairs. Positions are counted without padding; further ones than `size` are left
    out, but all count for offsets. source: the size; a folder with maps of another size is refused.
    """

    name = "mean_maps"

    def __init__(self, heads: Sequence[Head], size: int = DEFAULT_SIZE):
        if size < 1:
            raise UserError(f"expected a size of 1 or more positions for mean maps, got {size}")
        self.heads, self.size, self.source = list(heads), size, f"{size} positions"
        sites = list(dict.fromkeys(head.site for head in heads))
        self._site_of_head = np.array([sites.index(head.site) for head in heads], np.int64)
        # Counts are added with the first head of a site: an example may come in several parts.
        self._first_heads = np.unique(self._site_of_head, return_index=True)[1]
        shapes = {"left": (size, size), "right": (size, size), "offset": (2 * size - 1,)}
        self._sums = {name: np.zeros((len(heads), *shape)) for name, shape in shapes.items()}
        self._counts = {name: np.zeros((len(sites), *shape)) for name, shape in shapes.items()}

    def add(self, example: Example, maps: Sequence[HeadMaps]) -> None:
        """Add maps of an example."""
        for part in maps:
            self.add_weights(part.rows, part.map.weights, part.map.allowed)

    def add_weights(
        self, heads: slice, weights_HQK: Float[Tensor, "H Q K"], allowed_QK: Bool[Tensor, "Q K"]
    ) -> None:
        """Add the weights of consecutive heads for one example without padding."""
        has_key_QK = allowed_QK.any(-1, keepdim=True).expand(allowed_QK.shape).double()
        starts = (self._first_heads >= heads.start) & (self._first_heads < heads.stop)
        sites = self._site_of_head[self._first_heads[starts]]
        for name in ALIGNMENTS:
            _add(name, self._sums[name][heads], weights_HQK.double(), self.size)
            if len(sites):
                counts = np.zeros((1, *self._counts[name].shape[1:]))
                _add(name, counts, has_key_QK.unsqueeze(0), self.size)
                self._counts[name][sites] += counts

    def maps(self, alignment: str) -> MeanMap:
        """The mean maps of all heads, aligned `left`, `right`, or by `offset`."""
        counts = self._counts[alignment][self._site_of_head]
        with np.errstate(invalid="ignore"):
            return MeanMap(self._sums[alignment] / np.where(counts > 0, counts, np.nan), counts)

    def state(self) -> dict[str, np.ndarray]:
        """The sums of weights and their counts."""
        counts = {f"{name}_counts": array for name, array in self._counts.items()}
        return {**self._sums, **counts}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state."""
        self._sums = {name: np.array(state[name]) for name in self._sums}
        self._counts = {name: np.array(state[f"{name}_counts"]) for name in self._counts}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each head, alignment and query, with the mean weights on its keys and their counts.

        query: from 0, or from the end, -1 the last; None for the row of offsets. first: of the keys, or of the offsets.
        weights, counts: of consecutive keys from `first`.
        """
        return [row for name in ALIGNMENTS for row in self._rows(name)]

    def _rows(self, alignment: str) -> list[dict[str, Any]]:
        maps = self.maps(alignment)
        shift = {"left": 0, "right": -self.size, "offset": 1 - self.size}[alignment]
        rows = []
        for h, head in enumerate(self.heads):
            lines = zip(np.atleast_2d(maps.weights[h]), np.atleast_2d(maps.counts[h]), strict=True)
            for query, (weights, counts) in enumerate(lines):
                places = counts.nonzero()[0]
                if not len(places):
                    continue
                cells = slice(places[0], places[-1] + 1)
                values = np.where(counts[cells] > 0, weights[cells], None)
                rows.append({
                    **head.columns,
                    "alignment": alignment,
                    "query": None if alignment == "offset" else query + shift,
                    "first": int(places[0]) + shift,
                    "weights": [None if value is None else round(float(value), 6) for value in values],
                    "counts": [int(count) for count in counts[cells]],
                })  # fmt: skip
        return rows


def _add(alignment: str, sums: np.ndarray, weights_HQK: Tensor, size: int) -> None:
    """Add maps of one example to the sums of an alignment."""
    q, k = min(weights_HQK.shape[1], size), min(weights_HQK.shape[2], size)
    if alignment == "left":
        sums[:, :q, :k] += weights_HQK[:, :q, :k].numpy()
    elif alignment == "right":
        sums[:, size - q :, size - k :] += weights_HQK[:, -q:, -k:].numpy()
    else:
        by_offset_HO = _offset_sums(weights_HQK).numpy()
        zero = weights_HQK.shape[1] - 1
        first, last = max(0, zero - size + 1), min(by_offset_HO.shape[1], zero + size)
        sums[:, first - zero + size - 1 : last - zero + size - 1] += by_offset_HO[:, first:last]


def _offset_sums(weights_HQK: Float[Tensor, "H Q K"]) -> Float[Tensor, "H O"]:
    """The sums over the pairs of each offset, key less query, from 1 - Q to K - 1."""
    heads, queries, keys = weights_HQK.shape
    # Each row, the last first, is one cell further right than the row above it once Q + K - 1 cells make a row.
    padded = torch.nn.functional.pad(weights_HQK.flip(1), (0, queries))
    skewed = padded.flatten(1)[:, : queries * (queries + keys - 1)]
    return skewed.view(heads, queries, queries + keys - 1).sum(1)
