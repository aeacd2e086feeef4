"""What no model without positions can pass."""

from __future__ import annotations

import numpy as np


def bag_ceiling(source: np.ndarray, target: np.ndarray) -> float:
    """The share of rows whose target is the commonest one for their bag of source tokens, by enumeration.

    source, target: `(N, K)` and `(N, Q)` token numbers of every example there is, padded. An encoder without positions
    gives every order of the same tokens the same rows, so whatever stands behind it gives them all one answer, and the
    best it can do is the commonest one.
    """
    bag = _numbered(np.sort(source, axis=1))
    answer = _numbered(target)
    bags = int(bag.max()) + 1
    answers = int(answer.max()) + 1
    both = bag * answers + answer
    pairs, counts = np.unique(both, return_counts=True)
    most = np.zeros(bags, dtype=np.int64)
    bag_of_pair = pairs // answers
    np.maximum.at(most, bag_of_pair, counts)
    right = most.sum()
    return float(right / len(source))


def _numbered(rows: np.ndarray) -> np.ndarray:
    """A number for each row, equal for equal rows."""
    rows = np.ascontiguousarray(rows)
    size = rows.dtype.itemsize * rows.shape[1]
    one_value = np.dtype((np.void, size))
    one_each = rows.view(one_value)
    _, number = np.unique(one_each, return_inverse=True)
    return number.ravel().astype(np.int64)
