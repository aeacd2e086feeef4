"""Decide from measurements what each method says of each head, and compare that with what it should say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from jarilab.inspect.study.permutation import LEVEL
from jarilab.inspect.study.roles import NO_PATTERN, NOT_TESTABLE

from .expected import COMPOSITION, DOWN, EXPECTED, METHODS, NO, PAIRS, UNDEFINED, UP, roles_of
from .hosts import HOSTS

RIGHT, WRONG, UNDECIDED = "right", "wrong", "undecided"
OPEN = "open"
"""Said where the interval is neither within the threshold nor beyond it."""
NOT_MEASURED = [None, None, None]
THRESHOLDS = {
    **dict.fromkeys(("zero", "mean", "mean_by_position", "resample", "direct", "pairs"), 0.05),
    **dict.fromkeys(("denoising", "noising", "denoising_difference", "noising_difference", "attribution"), 0.15),
    "contribution": 1.0,
}
"""The smallest effect that counts: nats a token, a fraction of the recovered answer, a logit out of about 10."""
MIN_COMPOSITION = 1.4
"""Times the score of unrelated heads."""
METHODS_OF = {
    "importance": ("zero", "mean", "mean_by_position", "resample", "direct"),
    "patching": ("denoising", "noising", "denoising_difference", "noising_difference"),
    "contributions": ("contribution",),
    "screening": ("attribution",),
}
"""The methods of each of `methods.MEASURES`, but for roles and pairs."""


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


def decide(measured: Sequence[Any] | int, threshold: float) -> str:
    """+ or - if the interval of an effect is beyond the threshold, no if it is within, else open.

    measured: the value, the ends of its interval, and p if there is one; 0 for an effect that rounds to 0.
    """
    if isinstance(measured, int):
        return NO
    _, low, high, *p = measured
    if low is None or high is None:
        return OPEN
    if -threshold < low and high < threshold:
        return NO
    is_significant = all(not isinstance(each, str) and each < LEVEL for each in p)
    if low > threshold and is_significant:
        return UP
    return DOWN if high < -threshold and is_significant else OPEN


def decide_composition(scores: Mapping[str, float | None]) -> str:
    """The input with the largest score over chance if that is beyond the threshold, else no."""
    known = {name: score for name, score in scores.items() if score is not None}
    best = max(known, key=lambda name: known[name], default=NO)
    return best if best != NO and known[best] > MIN_COMPOSITION else NO


def verdicts(record: Mapping[str, Any]) -> Iterator[Verdict]:
    """All answers about one model."""
    measured = dict(record["measured"])
    for refused in record["errors"]:
        for method in METHODS_OF.get(refused, ()):
            measured[method] = dict.fromkeys(record["names"], NOT_MEASURED)
    yield from _role_verdicts(record, measured.get("roles", {}))
    for method in METHODS:
        for head, values in measured.get(method, {}).items():
            design = record["names"][head]
            right = getattr(EXPECTED[record["family"]][design], method)
            if right is not UNDEFINED:
                yield _verdict(record, method, head, design, decide(values, THRESHOLDS[method]), right)
    for heads, values in measured.get("pairs", {}).items():
        first, second = sorted(record["names"][head] for head in heads.split())
        right = PAIRS.get(record["family"], {}).get((first, second), NO)
        if right is not None:
            said = decide(values, THRESHOLDS["pairs"])
            yield _verdict(record, "pairs", heads, f"{first} + {second}", said, right)
    for heads, scores in measured.get("composition", {}).items():
        one, other = (record["names"][head] for head in heads.split())
        if "noise" in (one, other):
            continue
        right = COMPOSITION.get(record["family"], {}).get((one, other), NO)
        yield _verdict(record, "composition", heads, f"{one} > {other}", decide_composition(scores), right)


def _verdict(record: Mapping[str, Any], method: str, head: str, design: str, said: str, right: str) -> Verdict:
    outcome = RIGHT if said == right else UNDECIDED if said == OPEN else WRONG
    return Verdict(record["family"], record["host"], record["seed"], method, head, design, said, right, outcome)


def _role_verdicts(record: Mapping[str, Any], roles: Mapping[str, str]) -> Iterator[Verdict]:
    """A named role is right or wrong; no name is undecided where one is expected."""
    rotary = HOSTS[record["host"]].rotary
    for head, said in roles.items():
        design = record["names"][head]
        right = roles_of(record["family"], design, record["facts"], rotary=rotary)
        verdict = _verdict(record, "roles", head, design, said if said not in right else right[0], right[0])
        is_open = verdict.outcome == WRONG and said in (NO_PATTERN, NOT_TESTABLE)
        yield replace(verdict, said=said, outcome=UNDECIDED if is_open else verdict.outcome)


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
    def of(outcomes: Sequence[str]) -> Tally:
        return Tally(*(sum(each == outcome for each in outcomes) for outcome in (RIGHT, WRONG, UNDECIDED)))

    @property
    def count(self) -> int:
        return self.right + self.wrong + self.undecided
