"""Sign-flip permutation tests of paired changes, with Holm's correction."""

from __future__ import annotations

import math

import numpy as np

LEVEL = 0.05
MIN_DRAWS = 9_999
DRAWS_AT_ONCE = 512
FEW_EXAMPLES = "not enough examples"


def draws_needed(tests: int) -> int:
    """The smallest number of draws B with 1 / (B + 1) <= LEVEL / tests: Holm can reject nothing with fewer."""
    return math.ceil(tests / LEVEL) - 1


def adjusted_p(changes: np.ndarray, seed: int = 0) -> list[float] | list[str]:
    """Holm-adjusted p-values that the mean of each column of `changes` `(N, C)` is 0.

    Returns `not enough examples` for each column if no p-value could be small enough. Rows with NaN do not count.
    """
    tests = changes.shape[1]
    changes = changes[np.isfinite(changes).all(1)]
    # Of the 2^N assignments of signs, two give the largest mean.
    if 2.0 ** (1 - len(changes)) > LEVEL / max(1, tests):
        return [FEW_EXAMPLES] * tests
    draws = max(MIN_DRAWS, draws_needed(tests))
    return holm(sign_flip_p(changes, draws, seed)).tolist()


def sign_flip_p(changes: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Two-sided p-values, (b + 1) / (B + 1), of the mean of each column under random signs of the rows.

    The same signs flip all columns. They are exact if changes are symmetric around 0 without an effect.
    """
    generator = np.random.default_rng(seed)
    observed = np.abs(changes.sum(0))
    # Sums of the same numbers in another order differ by rounding.
    threshold = observed - 1e-9 * np.abs(changes).sum(0)
    larger = np.zeros(changes.shape[1], np.int64)
    for first in range(0, draws, DRAWS_AT_ONCE):
        count = min(DRAWS_AT_ONCE, draws - first)
        signs = generator.integers(0, 2, (count, len(changes))) * 2.0 - 1
        larger += (np.abs(signs @ changes) >= threshold).sum(0)
    return (larger + 1) / (draws + 1)


def holm(p: np.ndarray) -> np.ndarray:
    """Adjusted p-values that control the family-wise error (Holm 1979)."""
    order = np.argsort(p, kind="stable")
    factors = len(p) - np.arange(len(p))
    stepped = np.maximum.accumulate(np.minimum(p[order] * factors, 1.0))
    adjusted = np.empty_like(stepped)
    adjusted[order] = stepped
    return adjusted
