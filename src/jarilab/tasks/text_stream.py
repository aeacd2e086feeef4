"""Concatenated documents, read in windows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import numpy as np
import torch

from jarilab.core.shapes import Int, Tensor
from jarilab.data.text import END, FIRST, PADDING, store


@final
class Stream:
    """Concatenated documents: the first token before each, and an end after the last.

    parts: which places of all documents the stream has, from each start to its stop (excluded), in order.
    """

    def __init__(self, encoded: store.Encoded, parts: Sequence[tuple[int, int]]):
        self._encoded = encoded
        self._offsets = encoded.offsets + np.arange(len(encoded.offsets))
        self._parts = list(parts)
        self.sizes = [stop - start for start, stop in parts]
        self._ends = np.cumsum(self.sizes)
        starts = np.array([start for start, _ in parts])
        self._shifts = starts - np.concatenate(([0], self._ends[:-1]))

    @classmethod
    def of(
        cls, encoded: store.Encoded, ends: Sequence[int], first: int = 0, step: int = 1
    ) -> Stream:
        """Return every `step`-th part from `first` on. ends: the number of documents up to the end of each part."""
        stops = [int(encoded.offsets[end]) + end for end in ends]
        return cls(encoded, list(pairwise([0, *stops]))[first::step])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def ids(self) -> np.ndarray:
        """The tokens of all documents that the stream is a part of."""
        return self._encoded.ids

    @property
    def documents(self) -> int:
        first, last = np.searchsorted(self._offsets, np.array(self._parts) - [0, 1], "right").T
        return int((last - first + 1).sum())

    def windows(
        self, starts: Int[Tensor, " B"], context: int
    ) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"], Int[Tensor, "B L"] | None]:
        """Return windows of `context` tokens at these offsets, padded at the end of the stream.

        Returns their tokens, the next tokens, and the document number of each; None if each window lies in one
        document.
        """
        place_BL = starts.numpy()[:, None] + np.arange(context)
        real_BL = place_BL < len(self)
        place_BL = np.minimum(place_BL, len(self) - 1)
        place_BL = place_BL + self._shifts[np.searchsorted(self._ends, place_BL, side="right")]
        document_BL = np.searchsorted(self._offsets, place_BL, side="right") - 1
        inside_BL = place_BL - self._offsets[document_BL]
        ids, offsets = self._encoded.ids, self._encoded.offsets
        at_BL = offsets[document_BL] + inside_BL
        before_BL = ids[np.maximum(at_BL - 1, 0)]
        input_BL = _padded(np.where(inside_BL == 0, FIRST, before_BL), real_BL)
        here_BL = ids[np.minimum(at_BL, len(ids) - 1)]
        ends_BL = at_BL == offsets[document_BL + 1]
        labels_BL = _padded(np.where(ends_BL, END, here_BL), real_BL)
        if bool((document_BL[:, :1] == document_BL).all()):
            return input_BL, labels_BL, None
        return input_BL, labels_BL, torch.from_numpy(document_BL)


def _padded(ids_BL: np.ndarray, real_BL: np.ndarray) -> Int[Tensor, "B L"]:
    return torch.from_numpy(np.where(real_BL, ids_BL, PADDING).astype(np.int64))
