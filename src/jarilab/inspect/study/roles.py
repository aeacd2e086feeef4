"""Names of what heads do, from effect sizes.

A role is named if (a) the lower end of a simultaneous interval of its normalized score is at least 0.5, (b) its margin
over each rival, on queries where they disagree, has a lower end above 0, (c) at least 30 such queries from 10 examples
were seen, and (d) the other inputs on which it can be tested do not contradict it: their interval reaches 0.5. Most
roles are scored on probes, the first token and delimiters on the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jarilab.inspect.study.head import Head
from jarilab.inspect.study.probes import ProbeResults
from jarilab.inspect.study.role_sums import MIN_EXAMPLES, MIN_QUERIES, Estimate, RoleSums
from jarilab.inspect.study.tables import plain
from jarilab.inspect.study.targets import OFFSETS, ROLES, SUB_ROLES

MIN_SCORE, STRONG_SCORE = 0.5, 0.9
MIN_ENTROPY, MAX_PEAK = 0.95, 3.0
"""Uniform: entropy over its maximum, and the largest weight over that of even weights."""
MIN_SHARED = 0.9
"""Position alone: 1 less the total variation between two inputs of equal length."""
MIN_CONTENT, MAX_OFFSET_SHARE = 0.9, 0.05
"""Content alone: variance of scores that a pair of tokens explains, and that the offset explains."""
MAX_CHANCE = 1 - 1e-9
"""Above it, up to rounding, each query word has one candidate, and no head can miss it."""
NO_PATTERN, NOT_TESTABLE = "no simple pattern", "not testable here"
WIDE = ("uniform", "position alone", "content alone")
"""Roles without targets, in the order in which they are named if no role with targets is."""
PROBES = {**dict.fromkeys(ROLES[: len(OFFSETS)], "random")}
PROBES |= {"same token": "repeats", "induction": "induction"}
"""The kind of probe on which each role is scored; other roles are scored on the data."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Estimates of one source of inputs. source: a kind of probe, or `data`.

    joint: queries where both of two roles have targets, `(H, R, R)`. weight, chance: on the targets, `(H, R)`.
    """

    source: str
    scores: Estimate
    margins: Estimate
    joint: np.ndarray
    weight: np.ndarray
    chance: np.ndarray

    @staticmethod
    def of(source: str, sums: RoleSums, tests: int) -> Sums:
        scores, margins = sums.scores(tests), sums.margins(tests)
        return Sums(source, scores, margins, sums.sums["bq"], *sums.plain_scores())


@dataclass(frozen=True, eq=False)
class Margins:
    """The margins of one role over all rivals, for all heads, each from the first source that tests it.

    low is infinite where no source does. indistinct: rivals with targets at the same queries that never disagree.
    """

    mean: np.ndarray
    low: np.ndarray
    queries: np.ndarray
    examples: np.ndarray
    indistinct: np.ndarray

    @staticmethod
    def of(role: int, sources: Sequence[Sums]) -> Margins:
        shape = sources[0].scores.mean.shape
        mean, low = np.zeros(shape), np.full(shape, np.inf)
        queries, examples = np.zeros(shape), np.zeros(shape)
        tested, joint = np.zeros(shape, bool), np.zeros(shape, bool)
        for source in sources:
            margins = source.margins
            new = margins.tested[:, role] & ~tested
            mean[new], low[new] = margins.mean[:, role][new], margins.low[:, role][new]
            queries[new] = margins.queries[:, role][new]
            examples[new] = margins.examples[:, role][new]
            tested |= new
            joint |= source.joint[:, role] >= MIN_QUERIES
        skipped = [
            number
            for number, name in enumerate(ROLES)
            if number == role or (ROLES[role], name) in SUB_ROLES
        ]
        low[:, skipped], joint[:, skipped] = np.inf, False
        return Margins(mean, low, queries, examples, joint & ~tested)


def number_of_tests(heads: int) -> int:
    """Heads times roles, over which intervals are simultaneous."""
    return heads * (len(ROLES) + len(WIDE))


class Roles:
    """The roles of all heads.

    probes: None if the model reads no tokens that could be drawn at random. links: rows of gold links, from which
    syntactic relations are named.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        data: RoleSums,
        probes: ProbeResults | None,
        links: Sequence[Mapping[str, Any]] = (),
    ):
        tests = number_of_tests(len(heads))
        self.heads, self.probes, self.links = list(heads), probes, links
        self.data = Sums.of("data", data, tests)
        self.uniform = data.uniform(tests)
        kinds = {} if probes is None else probes.sums
        self.by_probe = {kind: Sums.of(kind, sums, tests) for kind, sums in kinds.items()}
        # On the inputs on which the role is scored, else on other probes.
        others = self.by_probe.values()
        self.margins = [
            Margins.of(number, [self._inputs(role), *others]) for number, role in enumerate(ROLES)
        ]

    def _inputs(self, role: str) -> Sums:
        """The inputs on which a role is scored: its probe if that could be made, else the data."""
        probe = self.by_probe.get(PROBES.get(role, ""))
        is_made = probe is not None and probe.scores.tested[:, ROLES.index(role)].any()
        return probe if probe is not None and is_made else self.data

    def rows(self) -> list[dict[str, Any]]:
        """A row for each head and role that could be tested; of fixed offsets, the best of each head."""
        return [row for number in range(len(self.heads)) for row in self._rows_of(number)]

    def head_rows(self) -> list[dict[str, Any]]:
        """For each head, the columns of its role."""
        return [self._named(self._rows_of(number)) for number in range(len(self.heads))]

    def _named(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        names = ("score", "low", "high", "chance", "data_score", "data_low", "rival", "margin")
        names += ("margin_low", "queries", "examples")
        rows = [{"margin_low": None, **row} for row in rows]
        holding = [row for row in rows if row["holds"] == "yes"]
        best = next((row for row in holding if row["role"] not in WIDE), None)
        best = best or next((row for row in holding), None)
        partial = [f"{row['role']} {row['holds']}" for row in rows if "only" in row["holds"]]
        tested = any(row["holds"] != NOT_TESTABLE for row in rows)
        role = best["role"] if best else NO_PATTERN if tested else NOT_TESTABLE
        # Without a role, the numbers are those of the best candidate.
        shown = best or max(rows, key=lambda row: _low(row), default={})
        columns = {f"role_{name}": shown.get(name) for name in names}
        candidate = None if shown.get("low") is None else shown["role"]
        is_strong = bool(best) and (shown.get("low") or 0) >= STRONG_SCORE
        return {
            "role": role,
            "role_strength": "strong" if is_strong else None,
            "role_candidate": candidate,
            "role_partial": ", ".join(partial) or None,
            **columns,
        }

    def _rows_of(self, head: int) -> list[dict[str, Any]]:
        """The rows of one head, the highest scores first."""
        sources = {role: self._source(role, head) for role in ROLES}
        means = {
            role: float(source.scores.mean[head, ROLES.index(role)])
            for role in ROLES[: len(OFFSETS)]
            if (source := sources[role]) is not None
        }
        best = max(means, key=lambda role: means[role], default=None)
        roles = [*([best] if best else []), *ROLES[len(OFFSETS) :]]
        rows = [self._row(head, role, sources[role]) for role in roles]
        rows += [self._link_row(row) for row in self.links if row["head"] == self.heads[head].short]
        rows.sort(key=lambda row: -_low(row))
        return [*rows, *self._wide_rows(head)]

    def _source(self, role: str, head: int) -> Sums | None:
        """The inputs on which a role is scored; None if these are too few."""
        source = self._inputs(role)
        return source if source.scores.tested[head, ROLES.index(role)] else None

    def _row(self, head: int, role: str, source: Sums | None) -> dict[str, Any]:
        column, row = ROLES.index(role), {**self.heads[head].columns, "role": role}
        if source is None:
            return {**row, "holds": NOT_TESTABLE, "low": None}
        scores, data = source.scores, self.data.scores
        margins = self.margins[column]
        rival = int(margins.low[head].argmin())
        margin_low = margins.low[head, rival]
        indistinct = [ROLES[each] for each in margins.indistinct[head].nonzero()[0]]
        passes = scores.low[head, column] >= MIN_SCORE and not indistinct
        passes = passes and 0 < margin_low < np.inf
        row |= {
            "holds": self._verdict(head, column, source) if passes else "no",
            "tested_on": source.source,
            "weight": plain(source.weight[head, column]),
            "chance": plain(source.chance[head, column]),
            **scores.columns(head, column),
            "indistinct_from": ", ".join(indistinct) or None,
            "data_weight": plain(self.data.weight[head, column]),
            "data_chance": plain(self.data.chance[head, column]),
            "data_score": plain(data.mean[head, column]),
            "data_low": plain(data.low[head, column]),
            "data_queries": int(data.queries[head, column]),
        }
        if margin_low < np.inf:
            row |= {"rival": ROLES[rival], "margin": float(margins.mean[head, rival])}
            row |= {"margin_low": float(margin_low)}
            row |= {"margin_queries": int(margins.queries[head, rival])}
            row |= {"margin_examples": int(margins.examples[head, rival])}
        return row

    def _link_row(self, link: Mapping[str, Any]) -> dict[str, Any]:
        """A gold relation as a role of the head that was chosen for it; its rival is the best fixed offset."""
        chance = link["chance"]
        row = {name: link[name] for name in ("head", "site", "index")}
        row["role"] = f"relation {link['relation']} ({link['direction']})"
        if chance > MAX_CHANCE:
            return {**row, "holds": NOT_TESTABLE, "low": None}
        ends = ("accuracy", "lowest", "accuracy_high")
        score, low, high = ((link[end] - chance) / (1 - chance) for end in ends)
        passes = low >= MIN_SCORE and link["margin_lowest"] > 0
        passes = passes and link["count"] >= MIN_QUERIES and link["examples"] >= MIN_EXAMPLES
        return {
            **row,
            "holds": "yes" if passes else "no",
            "tested_on": "data",
            "weight": link["accuracy"],
            "chance": chance,
            "score": score,
            "low": low,
            "high": high,
            "queries": link["count"],
            "examples": link["examples"],
            "rival": f"offset {link['baseline_offset']:+d}",
            "margin": link["margin"],
            "margin_low": link["margin_lowest"],
            "margin_queries": link["count"],
            "margin_examples": link["examples"],
        }

    def _verdict(self, head: int, column: int, source: Sums) -> str:
        """Whether a role that passes on its own inputs also holds on the others."""
        is_data = source is self.data
        other = self.by_probe.get("random") if is_data else self.data
        if other is None or not other.scores.tested[head, column]:
            return "yes"
        if other.scores.high[head, column] >= MIN_SCORE:
            return "yes"
        return "on data only" if is_data else "on probes only"

    # Roles without targets -------------------------------------------------------------------------------------------

    def _wide_rows(self, head: int) -> list[dict[str, Any]]:
        entropy, peak = self.uniform
        is_even = entropy.low[head] >= MIN_ENTROPY and peak.high[head] <= MAX_PEAK
        rows = [self._wide_row(head, "uniform", entropy, "data", bool(is_even))]
        if self.probes is None:
            return rows
        moved, content, offset = self.probes.moved, self.probes.content, self.probes.offset
        shared = replace(moved, mean=1 - moved.mean, low=1 - moved.high, high=1 - moved.low)
        is_fixed = bool(shared.low[head] >= MIN_SHARED)
        is_content = content.low[head] >= MIN_CONTENT and offset.high[head] <= MAX_OFFSET_SHARE
        rows.append(self._wide_row(head, "position alone", shared, "random", is_fixed))
        rows.append(self._wide_row(head, "content alone", content, "orders", bool(is_content)))
        return rows

    def _wide_row(
        self, head: int, role: str, each: Estimate, source: str, holds: bool
    ) -> dict[str, Any]:
        row = {**self.heads[head].columns, "role": role, "tested_on": source}
        if not each.tested[head]:
            return {**row, "holds": NOT_TESTABLE, "low": None}
        return {**row, "holds": "yes" if holds else "no", **each.columns(head)}


def _low(row: dict[str, Any]) -> float:
    """The lower end of a row's score; roles without targets and untested ones come last."""
    low = row.get("low")
    return -np.inf if low is None or row["role"] in WIDE else low
