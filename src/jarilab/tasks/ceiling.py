"""What no model without positions can pass."""

from __future__ import annotations

import numpy as np


def bag_ceiling(source: np.ndarray, target: np.ndarray) -> float:
    """The share of rows whose target is the commonest one for their bag of source tokens, by enumeration.

    source, target: `(N, K)` and `(N, Q)` token numbers of every example there is, padded. An encoder without positions
    gives every order of the same tokens the same rows, so whatever stands behind it gives them all one answer, and the
    best it can do is the commonest one.
    """
    bag, answer = _numbered(np.sort(source, axis=1)), _numbered(target)
    answers = int(answer.max()) + 1
    pairs, counts = np.unique(bag * answers + answer, return_counts=True)
    best = np.zeros(int(bag.max()) + 1, dtype=np.int64)
    np.maximum.at(best, pairs // answers, counts)
    return float(best.sum() / len(source))


def _numbered(rows: np.ndarray) -> np.ndarray:
    """A number for each row, equal for equal rows."""
    rows = np.ascontiguousarray(rows)
    _, number = np.unique(
        rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))), return_inverse=True
    )
    return number.ravel().astype(np.int64)
