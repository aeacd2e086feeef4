"""Parallel texts that slip: lines that belong to the source some lines before or after theirs.

Translations of longer sentences are longer, questions stay questions, and numbers stay. These features of source and
target are correlated in windows, at every shift (after Gale and Church 1993, who align sentences by their lengths).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jarilab.data.text.scan import DIGIT, EXCLAMATION, QUESTION

MAX_SHIFT = 20
"""Larger slips are not searched for."""
MIN_ROWS = 200
"""Fewer pairs are not checked."""
MIN_CORRELATION, MIN_GAIN = 0.3, 0.25
"""The shifted lines of a slip correlate at least so much, and by so much more than unshifted ones.

In the smallest window, of 50 lines, chance gives a correlation of 0.14 (one standard deviation).
"""
_MIN_RUN, _MIN_RUN_GAIN = 2, 1.0
_WINDOWS_AT_ONCE = 128
_WINDOWS_BEFORE = 400


class Slip(NamedTuple):
    """Rows that slip. Row n of the target belongs to row n + shift of the source, from `start` to `stop` (excluded)."""

    start: int
    stop: int
    shift: int


class Alignment(NamedTuple):
    """The median correlation of source and target in windows, and the first slip."""

    correlation: float
    slip: Slip | None


def check_alignment(rows: np.ndarray) -> Alignment | None:
    """Return how well source and target correspond; None for fewer than MIN_ROWS.

    rows: `(N, 2)` of a `Scan` of pairs.
    """
    if len(rows) < MIN_ROWS:
        return None
    width = min(500, max(50, len(rows) // 20))
    shifts = np.arange(-MAX_SHIFT, MAX_SHIFT + 1)
    count = len(rows) // width
    parts = [
        _correlations(rows, width, first, min(count, first + _WINDOWS_AT_ONCE), shifts)
        for first in range(0, count, _WINDOWS_AT_ONCE)
    ]
    correlation_WS = np.concatenate(parts)
    best_W = correlation_WS.argmax(1)
    highest_W, plain_W = correlation_WS.max(1), correlation_WS[:, MAX_SHIFT]
    is_slip_W = (highest_W >= MIN_CORRELATION) & (highest_W - plain_W >= MIN_GAIN)
    shift_W = np.where(is_slip_W, shifts[best_W], 0)
    slip = _first_slip(rows, shift_W, highest_W - plain_W, width)
    return Alignment(float(np.median(plain_W)), slip)


def _correlations(
    rows: np.ndarray, width: int, first: int, stop: int, shifts: np.ndarray
) -> np.ndarray:
    """The correlation in each window from `first` to `stop`, at each shift of the source."""
    places = np.arange(first * width, stop * width)
    target = _centred(_features(rows[places, 1]), width)
    columns = []
    for shift in shifts:
        source = _features(rows[np.clip(places + shift, 0, len(rows) - 1), 0])
        source = _centred(source, width)
        scale = np.sqrt((source**2).sum((1, 2)) * (target**2).sum((1, 2)))
        columns.append((source * target).sum((1, 2)) / np.maximum(scale, 1e-9))
    return np.stack(columns, 1)


def _features(rows: np.ndarray) -> np.ndarray:
    """Length, and whether a line asks, exclaims or has a digit, `(N, F)`, of comparable variance."""
    marks = rows["marks"]
    flags = [(marks & bit > 0).astype(np.float32) for bit in (QUESTION, EXCLAMATION, DIGIT)]
    return np.stack([np.log1p(rows["length"].astype(np.float32)), *flags], 1)


def _centred(features: np.ndarray, width: int) -> np.ndarray:
    windows = features.reshape(-1, width, features.shape[1])
    return windows - windows.mean(1, keepdims=True)


def _first_slip(
    rows: np.ndarray, shift_W: np.ndarray, gain_W: np.ndarray, width: int
) -> Slip | None:
    """The first run of windows with the same shift."""
    changes = np.flatnonzero(np.diff(shift_W)) + 1
    starts, stops = [0, *changes.tolist()], [*changes.tolist(), len(shift_W)]
    for start, stop in zip(starts, stops, strict=True):
        shift = int(shift_W[start])
        is_long = stop - start >= _MIN_RUN and gain_W[start:stop].sum() >= _MIN_RUN_GAIN
        if shift and is_long:
            # Windows before may fit both ways, such as those of equally short lines.
            before = max(0, start - _WINDOWS_BEFORE)
            first = _boundary(rows, before, start + 1, width, shift) if start else 0
            end = len(rows) if stop == len(shift_W) else stop * width
            return Slip(first, end, shift)
    return None


def _boundary(rows: np.ndarray, start: int, stop: int, width: int, shift: int) -> int:
    """The row between two windows from which on shifted lines fit better than unshifted ones."""
    places = np.arange(start * width, stop * width)
    moved = np.clip(places + shift, 0, len(rows) - 1)
    target, plain, shifted = (
        _centred(_features(read), width)
        for read in (rows[places, 1], rows[places, 0], rows[moved, 0])
    )
    gain = ((plain - shifted) * target).sum(2).ravel()
    return int(start * width + np.argmax(np.cumsum(gain)) + 1)
