"""Sums over examples from which the scores of roles, their margins and their intervals are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from jarilab.inspect.measure.maps import Map
from jarilab.inspect.study.example import Example, HeadMaps
from jarilab.inspect.study.head import Head
from jarilab.inspect.study.tables import plain
from jarilab.inspect.study.targets import ROLES, Targets

MIN_QUERIES, MIN_EXAMPLES = 30, 10
"""A score or a margin of fewer queries or examples is not tested."""
MIN_UNIFORM_KEYS = 4
"""Queries with fewer keys say nothing about uniform weights: 3 / m would be above 3 / 4."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Means over examples with simultaneous intervals; arrays of any shape. examples, queries: counts."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    examples: np.ndarray
    queries: np.ndarray

    @cached_property
    def tested(self) -> np.ndarray:
        """Whether there are enough queries and examples, and the mean is finite."""
        # A normalized score with chance 1 is not.
        is_enough = (self.examples >= MIN_EXAMPLES) & (self.queries >= MIN_QUERIES)
        return is_enough & np.isfinite(self.mean)

    def columns(self, *index: int) -> dict[str, Any]:
        """One estimate as columns of a table."""
        ends = {"score": self.mean, "low": self.low, "high": self.high}
        counts = {"queries": self.queries, "examples": self.examples}
        columns: dict[str, Any] = {name: plain(values[index]) for name, values in ends.items()}
        return columns | {name: int(values[index]) for name, values in counts.items()}


def estimate(
    count: np.ndarray, total: np.ndarray, squares: np.ndarray, queries: np.ndarray, tests: int
) -> Estimate:
    """Student's interval of a mean over examples, simultaneous over `tests` by Bonferroni, 95 % in all."""
    from scipy.special import stdtrit

    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
        variance = np.maximum(squares / count - mean**2, 0) * count / (count - 1)
        error = np.sqrt(variance / count)
        half = stdtrit(np.maximum(count - 1, 1), 1 - 0.025 / tests) * error
    half = np.where(count > 1, half, np.inf)
    return Estimate(mean, mean - half, mean + half, count, queries)


class RoleSums:
    """Weights on the targets of each role, by head, and the differences between roles where they disagree.

    context: the tokens that an earlier copy must share with the query's for induction. A score is the mean over
    examples of the mean over an example's queries.
    """

    name = "role_sums"

    def __init__(self, heads: Sequence[Head], *, context: int = 1):
        size, roles = len(heads), len(ROLES)
        self.context = context
        self.heads = list(heads)
        self.sums: dict[str, np.ndarray] = {
            name: np.zeros((size, roles)) for name in ("n", "q", "s", "c", "ss", "cc", "sc")
        }
        self.sums |= {name: np.zeros(size) for name in ("un", "uq", "ue", "uee", "um", "umm")}
        self.sums |= {
            name: np.zeros((size, roles, roles)) for name in ("dn", "dq", "d", "dd", "bq")
        }

    def add(self, example: Example, maps: Sequence[HeadMaps]) -> None:
        for each in maps:
            targets = Targets.of(each.map, self.context)
            mass_RHQ = targets.masses(each.map.weights)
            added = self._scores_of(targets, mass_RHQ)
            added |= self._uniform_of(each.map) | self._margins_of(targets, mass_RHQ)
            for name, values in added.items():
                self.sums[name][each.rows] += values

    def _scores_of(self, targets: Targets, mass_RHQ: torch.Tensor) -> dict[str, Any]:
        queries_R = targets.defined.sum(-1).double()
        has_R = (queries_R > 0).double()
        score_HR = (mass_RHQ.sum(-1) / queries_R.clamp_min(1).unsqueeze(-1)).T
        chance_R = (targets.chance * targets.defined).sum(-1) / queries_R.clamp_min(1)
        chance_HR = chance_R.expand_as(score_HR)
        added = {"n": has_R, "q": queries_R, "s": score_HR, "c": chance_HR}
        added |= {"ss": score_HR**2, "cc": chance_HR**2, "sc": score_HR * chance_HR}
        return {name: values.numpy() for name, values in added.items()}

    def _uniform_of(self, map: Map) -> dict[str, Any]:
        rows_Q = map.count >= MIN_UNIFORM_KEYS
        queries = int(rows_Q.sum())
        if not queries:
            return {}
        weights, count_Q = map.weights[:, rows_Q], map.count[rows_Q].double()
        entropy_H = (torch.special.entr(weights).sum(-1) / count_Q.log()).mean(-1).numpy()
        largest_H = (weights.amax(-1) * count_Q).mean(-1).numpy()
        added = {"un": 1, "uq": queries, "ue": entropy_H, "uee": entropy_H**2}
        return added | {"um": largest_H, "umm": largest_H**2}

    def _margins_of(self, targets: Targets, mass_RHQ: torch.Tensor) -> dict[str, Any]:
        apart_RRQ = targets.disagree().double()
        queries_RR = apart_RRQ.sum(-1)
        defined_RQ = targets.defined.double()
        on_first_RHR = mass_RHQ @ apart_RRQ.transpose(1, 2)
        # The weight on the second role's targets, at the same queries.
        difference_RHR = on_first_RHR - on_first_RHR.transpose(0, 2)
        mean_RHR = difference_RHR / queries_RR.clamp_min(1).unsqueeze(1)
        margin_HRR = mean_RHR.transpose(0, 1).numpy()
        added = {"dn": (queries_RR > 0).double().numpy(), "dq": queries_RR.numpy()}
        return added | {
            "d": margin_HRR,
            "dd": margin_HRR**2,
            "bq": (defined_RQ @ defined_RQ.T).numpy(),
        }

    def state(self) -> dict[str, np.ndarray]:
        return self.sums

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        if state.keys() != self.sums.keys():
            raise ValueError(f"expected the sums {', '.join(self.sums)}, got {', '.join(state)}")
        self.sums = {name: np.array(array) for name, array in state.items()}

    def rows(self) -> list[dict[str, Any]]:
        return []

    # Estimates -------------------------------------------------------------------------------------------------------

    def scores(self, tests: int) -> Estimate:
        """Normalized scores `(H, R)`: (s - c) / (1 - c), of means s and c over examples; 0 by chance, 1 at most."""
        sums = self.sums
        with np.errstate(invalid="ignore", divide="ignore"):
            s, c = sums["s"] / sums["n"], sums["c"] / sums["n"]
            score = (s - c) / (1 - c)
            # The delta method: an example moves the score by (its s - its c - score * (1 - its c)) / (1 - c).
            keep = 1 - score
            squares = sums["ss"] - 2 * keep * sums["sc"] + keep**2 * sums["cc"]
            total = sums["s"] - keep * sums["c"]
            estimated = estimate(
                sums["n"], total / (1 - c), squares / (1 - c) ** 2, sums["q"], tests
            )
        low, high = (end - estimated.mean + score for end in (estimated.low, estimated.high))
        return Estimate(score, low, high, sums["n"], sums["q"])

    def plain_scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean weight on the targets and its chance, `(H, R)`."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.sums["s"] / self.sums["n"], self.sums["c"] / self.sums["n"]

    def margins(self, tests: int) -> Estimate:
        """Mean differences between two roles' weights where they disagree, `(H, R, R)`: first less second."""
        sums = self.sums
        return estimate(sums["dn"], sums["d"], sums["dd"], sums["dq"], tests)

    def uniform(self, tests: int) -> tuple[Estimate, Estimate]:
        """Entropy over its maximum, and the largest weight over that of even weights, `(H,)`."""
        sums = self.sums
        count, queries = sums["un"], sums["uq"]
        entropy = estimate(count, sums["ue"], sums["uee"], queries, tests)
        return entropy, estimate(count, sums["um"], sums["umm"], queries, tests)
