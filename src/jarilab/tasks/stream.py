"""A text of many documents as one row of tokens, and windows of it."""

from __future__ import annotations

from typing import final

import numpy as np
import torch

from jarilab.core.shapes import Int, Tensor
from jarilab.data.text import END, FIRST, PADDING, store


@final
class Stream:
    """Concatenated documents: the first token before each, and an end after the last."""

    def __init__(self, encoded: store.Encoded, start: int = 0, stop: int | None = None):
        self._encoded = encoded
        self._offsets = encoded.offsets + np.arange(len(encoded.offsets))
        self._start, self._stop = start, int(self._offsets[-1]) if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def documents(self) -> int:
        ends = np.searchsorted(self._offsets, (self._start, self._stop - 1), side="right")
        return int(ends[1] - ends[0]) + 1

    def part(self, start: int, stop: int) -> Stream:
        """Return the tokens from `start` to `stop` (excluded)."""
        return Stream(self._encoded, self._start + start, self._start + stop)

    def windows(
        self, starts: Int[Tensor, " B"], context: int
    ) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"], Int[Tensor, "B L"] | None]:
        """Return windows of `context` tokens at these offsets, padded at the end of the stream.

        Returns their tokens, the next tokens, and the document number of each; None if each window lies in one
        document.
        """
        place_BL = self._start + starts.numpy()[:, None] + np.arange(context)
        real_BL = place_BL < self._stop
        place_BL = np.minimum(place_BL, self._stop - 1)
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
