"""Conformance tests ("laws") of encodings and of whole models.

    for outcome in check_encoding("my_encoding.py:Mine:k=3"):
        print(outcome.verdict, outcome.law, outcome.detail)

Most faults of encodings are invisible at position 0, with equal numbers of queries and keys, and with small initial
values. The laws therefore test far positions, unequal numbers, and parameters drawn from a standard normal. `LAWS`
lists the laws of encodings, `whole_laws.py` those of models.
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
from jarilab.laws import (
    computing_laws,
    formula_laws,
    independence,
    instance_laws,
    model_laws,
    position_laws,
    precision_laws,
)
from jarilab.laws.checks import BrokenError, SkippedError
from jarilab.laws.cures import CURES
from jarilab.laws.law_subject import Subject

__all__ = [
    "FORMULA",
    "LAWS",
    "Oracle",
    "Outcome",
    "check_encoding",
    "isolated_torch_state",
    "run_law",
]


Law = Callable[[Subject], str]

FORMULA = "agrees with its formula"

LAWS: dict[str, Law] = {
    "training and evaluation agree": precision_laws.modes,
    "calls leave nothing behind": instance_laws.repeats,
    "instances share nothing": instance_laws.separate,
    FORMULA: formula_laws.formula,
    "a position means the same among any others": independence.same_among_others,
    "every kernel equals the definition": computing_laws.kernels,
    "a query without a key gives zeros": computing_laws.rows_without_keys,
    "hooks by distance are as claimed": position_laws.distance_forms,
    "results agree across precisions": precision_laws.precisions,
    "every number of heads works": precision_laws.heads,
    "gradients match finite differences": precision_laws.slopes,
    "cached decoding equals the full forward": model_laws.steps,
    "padding changes no real token": model_laws.padding,
    "packed documents equal separate ones": model_laws.packing,
    "shift invariance is as claimed": position_laws.shift,
    "rotation keeps norms": computing_laws.norms,
    "output depends on token order": position_laws.order,
    "the longest position is enforced": position_laws.end,
    "fractional positions are as claimed": position_laws.fractions,
    "round trips change nothing": instance_laws.round_trips,
    "every parameter learns": model_laws.gradients,
    "unplaced tokens get no position": position_laws.unplaced,
    "samples do not mix": model_laws.batch,
    "a grid of one row is a line": position_laws.line,
    "initial values are those of the seed": model_laws.initial_values,
}

BASIC_LAWS = tuple(LAWS)[:3]
"""If one of these is broken, later failures may be consequences of it."""


TestedT = TypeVar("TestedT")


@dataclass(frozen=True)
class Outcome:
    """The result of one law.

    detail: what was compared, what failed, or why the law was skipped. cure: what to change in an encoding that breaks
    the law; empty for models, and unless the law is broken.
    """

    law: str
    verdict: Literal["holds", "broken", "skipped"]
    detail: str
    cure: str = ""


def check_encoding(spec: str, oracle: Oracle | None = None, *, n_heads: int = 6) -> list[Outcome]:
    """Test an encoding against all laws, in 1 to 3 seconds on one core.

    spec: also with options, or a sum. oracle: its formula; by default the class attribute `oracle`, or the paper's
    formula for an encoding of the package. n_heads: H of all sites. Raises UserError for a spec that cannot be built.
    """
    for path in files_of(spec):
        trust_code(path)
    with isolated_torch_state():
        subject = Subject.of(spec, oracle, n_heads)
    return skip_consequences(
        [run_law(name, law, subject) for name, law in LAWS.items()], BASIC_LAWS
    )


def skip_consequences(outcomes: list[Outcome], grounds: Collection[str]) -> list[Outcome]:
    """Mark later failures as skipped if a basic law is broken: they may be consequences of it."""
    broken = [
        outcome.law
        for outcome in outcomes
        if outcome.verdict == "broken" and outcome.law in grounds
    ]
    if not broken:
        return outcomes
    first = broken[0]
    return [
        replace(
            outcome,
            verdict="skipped",
            detail=f"possibly a consequence of {first!r}: {outcome.detail}",
            cure="",
        )
        if outcome.verdict == "broken" and outcome.law != first
        else outcome
        for outcome in outcomes
    ]


@contextmanager
def isolated_torch_state() -> Iterator[None]:
    """Restore torch's random state and default dtype afterwards."""
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def run_law(name: str, law: Callable[[TestedT], str], subject: TestedT) -> Outcome:
    """Run one law. Any exception that is not raised on purpose counts as broken."""
    try:
        with isolated_torch_state():
            return Outcome(name, "holds", law(subject))
    except BrokenError as broken:
        return Outcome(name, "broken", str(broken), CURES.get(name, ""))
    except SkippedError as skipped:
        return Outcome(name, "skipped", str(skipped))
    except Exception as error:  # the tested class may raise anything
        detail = f"raised {type(error).__name__}: {error}"
        return Outcome(name, "broken", detail, CURES.get(name, ""))
