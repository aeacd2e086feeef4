"""The upper bound of a model without positions."""

from __future__ import annotations

import numpy as np


def bag_ceiling(source: np.ndarray, target: np.ndarray) -> float:
    """Return the share of rows whose target is the most common one of their bag of source tokens, by enumeration.

    source, target: `(N, K)` and `(N, Q)` token ids of all examples, padded. An encoder without positions gives equal
    outputs for every order of the same tokens. A decoder on top gives them all one answer, and the best is the most
    common.
    """
    bag, answer = _numbered(np.sort(source, axis=1)), _numbered(target)
    answers = int(answer.max()) + 1
    both = bag * answers + answer
    pairs, counts = np.unique(both, return_counts=True)
    bag_of_pair = pairs // answers  # `unique` sorts, so pairs of one bag are adjacent
    first_of_bag = np.flatnonzero(np.diff(bag_of_pair, prepend=-1))
    most = np.maximum.reduceat(counts, first_of_bag)
    return float(most.sum() / len(source))


def _numbered(rows: np.ndarray) -> np.ndarray:
    """Return a number below 2^31 for each row, equal for equal rows."""
    rows = np.ascontiguousarray(rows)
    base = int(rows.max(initial=0)) + 1
    if base ** rows.shape[1] < 2**31:  # as digits of one number, without sorting
        number = np.zeros(len(rows), np.int64)
        for column in rows.T:
            number = number * base + column
        return number
    size = rows.dtype.itemsize * rows.shape[1]
    one_value = np.dtype((np.void, size))
    one_each = rows.view(one_value)
    _, number = np.unique(one_each, return_inverse=True)
    return number.ravel().astype(np.int64)
