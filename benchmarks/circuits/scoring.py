"""Decide from measurements what each method says of each head, and compare that with what it should say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from jarilab.inspect.study.permutation import LEVEL
from jarilab.inspect.study.roles import NO_PATTERN, NOT_TESTABLE

from .expected import COMPOSITION, DOWN, EXPECTED, METHODS, NO, PAIRS, UNDEFINED, UP, roles_of
from .hosts import HOSTS

RIGHT, WRONG, UNDECIDED = "right", "wrong", "undecided"
OPEN = "open"
"""Said where the interval is neither within the threshold nor beyond it."""
THRESHOLDS = {
    **dict.fromkeys(("zero", "mean", "mean_by_position", "resample", "direct", "pairs"), 0.05),
    **dict.fromkeys(("denoising", "noising", "denoising_difference", "noising_difference", "attribution"), 0.15),
    "contribution": 1.0,
}
"""The smallest effect that counts: nats a token, a fraction of the recovered answer, a logit out of about 10."""


@dataclass(frozen=True)
class Verdict:
    """One answer of one method about one head of one model. said: its answer. outcome: right, wrong or undecided."""

    family: str
    host: str
    seed: int
    method: str
    head: str
    design: str
    said: str
    right: str
    outcome: str


def decide(row: Mapping[str, Any], threshold: float) -> str:
    """+ or - if the interval of an effect is beyond the threshold, no if it is within, else open."""
    low, high, p = row["low"], row["high"], row.get("p", 0.0)
    if low is None or high is None:
        return OPEN
    if -threshold < low and high < threshold:
        return NO
    is_significant = not isinstance(p, str) and p < LEVEL
    if low > threshold and is_significant:
        return UP
    return DOWN if high < -threshold and is_significant else OPEN


def verdicts(record: Mapping[str, Any]) -> Iterator[Verdict]:
    """All answers about one model."""
    yield from _role_verdicts(record)
    for method in METHODS:
        for row in record["measured"].get(method, ()):
            design = record["names"][row["head"]]
            right = getattr(EXPECTED[record["family"]][design], method)
            if right is not UNDEFINED:
                yield _verdict(record, method, row["head"], design, decide(row, THRESHOLDS[method]), right)
    for row in record["measured"].get("pairs", ()):
        designs = tuple(sorted(record["names"][row[side]] for side in ("head", "other")))
        right = PAIRS.get(record["family"], {}).get((designs[0], designs[1]), NO)
        said = decide(row, THRESHOLDS["pairs"])
        yield _verdict(record, "pairs", f"{row['head']} {row['other']}", " + ".join(designs), said, right)
    yield from _composition_verdicts(record)


def _verdict(record: Mapping[str, Any], method: str, head: str, design: str, said: str, right: str) -> Verdict:
    outcome = RIGHT if said == right else UNDECIDED if said == OPEN else WRONG
    return Verdict(record["family"], record["host"], record["seed"], method, head, design, said, right, outcome)


def _role_verdicts(record: Mapping[str, Any]) -> Iterator[Verdict]:
    """A named role is right or wrong; no name is undecided where one is expected."""
    for row in record["measured"].get("roles", ()):
        design, said = record["names"][row["head"]], row["role"]
        rotary = HOSTS[record["host"]].rotary
        right = roles_of(record["family"], design, record["facts"], rotary=rotary)
        outcome = RIGHT if said in right else UNDECIDED if said in (NO_PATTERN, NOT_TESTABLE) else WRONG
        yield Verdict(
            record["family"], record["host"], record["seed"], "roles", row["head"], design, said, right[0], outcome
        )


def _composition_verdicts(record: Mapping[str, Any]) -> Iterator[Verdict]:
    """What a later head is said to read of an earlier one: q, k, v, or no."""
    for row in record["measured"].get("composition", ()):
        designs = record["names"][row["head"]], record["names"][row["other"]]
        right = COMPOSITION.get(record["family"], {}).get(designs, NO)
        pair = f"{row['head']} {row['other']}"
        yield _verdict(record, "composition", pair, " > ".join(designs), row["said"], right)


# Tables ---------------------------------------------------------------------------------------------------------------


def wilson(successes: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not count:
        return 0.0, 1.0
    share, width = successes / count, z**2 / count
    centre, half = share + width / 2, z * sqrt(share * (1 - share) / count + width / (4 * count))
    return max(0.0, (centre - half) / (1 + width)), min(1.0, (centre + half) / (1 + width))


@dataclass(frozen=True)
class Tally:
    """Counts of outcomes."""

    right: int
    wrong: int
    undecided: int

    @staticmethod
    def of(items: Sequence[Verdict]) -> Tally:
        return Tally(*(sum(each.outcome == outcome for each in items) for outcome in (RIGHT, WRONG, UNDECIDED)))

    @property
    def count(self) -> int:
        return self.right + self.wrong + self.undecided
