"""The laws that an encoding keeps, as code to run on one's own.

    for outcome in check_encoding("my_encoding.py:Mine:k=3"):
        print(outcome.verdict, outcome.law, outcome.detail)

Most faults of encodings look right at position 0, with as many queries as keys and with small initial values. So the
laws look far from 0, with queries and keys of different number, and with the encoding's parameters drawn from a
standard normal. `rules.py` names them all; `oracle.py` tries an encoding's formula.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch

from jarilab.core.registry import trust_code
from jarilab.encodings.compose import files_of
from jarilab.encodings.formulas.oracle import Oracle
from jarilab.laws.checks import BrokenError, SkippedError
from jarilab.laws.rules import FORMULA, GROUNDS, LAWS
from jarilab.laws.subject import Subject

__all__ = ["FORMULA", "LAWS", "Oracle", "Outcome", "check_encoding", "contained", "judge"]


Asked = TypeVar("Asked")


@dataclass(frozen=True)
class Outcome:
    """What became of one law. detail: what was compared, what went wrong, or why the law was skipped."""

    law: str
    verdict: Literal["holds", "broken", "skipped"]
    detail: str


def check_encoding(spec: str, oracle: Oracle | None = None, *, n_heads: int = 6) -> list[Outcome]:
    """Try all laws on an encoding, about a second on one core. Raises UserError for a spec that cannot be built.

    spec: options and sums too. oracle: its formula; by default the class attribute `oracle`, or the paper's for an
    encoding of the package. n_heads: H of all sites.
    """
    for path in files_of(spec):
        trust_code(path)
    with contained():
        subject = Subject.of(spec, oracle, n_heads)
    return without_echoes([judge(name, law, subject) for name, law in LAWS.items()], GROUNDS)


def without_echoes(outcomes: list[Outcome], grounds: Collection[str]) -> list[Outcome]:
    """Where a law that others rest on is broken, what those say may be its echo, and names the wrong fault."""
    broken = [one.law for one in outcomes if one.verdict == "broken" and one.law in grounds]
    if not broken:
        return outcomes
    first = broken[0]
    return [
        replace(one, verdict="skipped", detail=f"perhaps an echo of {first!r}: {one.detail}")
        if one.verdict == "broken" and one.law != first
        else one
        for one in outcomes
    ]


@contextmanager
def contained() -> Iterator[None]:
    """Whatever is done to torch's random numbers and default dtype is undone."""
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def judge(name: str, law: Callable[[Asked], str], subject: Asked) -> Outcome:
    """Try one law. An exception that no law raises on purpose is the subject's fault, and counts as broken."""
    try:
        with contained():
            return Outcome(name, "holds", law(subject))
    except BrokenError as broken:
        return Outcome(name, "broken", str(broken))
    except SkippedError as skipped:
        return Outcome(name, "skipped", str(skipped))
    except Exception as error:
        return Outcome(name, "broken", f"raised {type(error).__name__}: {error}")
