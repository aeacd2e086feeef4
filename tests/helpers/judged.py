"""One law at a time, for tests of what it says."""

from jarilab.encodings.formulas.oracle import Oracle
from jarilab.laws import LAWS, Outcome, isolated_torch_state, run_law
from jarilab.laws.law_subject import Subject

FORMULA = "agrees with its formula"


def outcome_of(law: str, spec: str, oracle: Oracle | None = None) -> Outcome:
    """What becomes of this law where an encoding is tried, as `laws` says it, in a fraction of the time."""
    with isolated_torch_state():
        subject = Subject.of(spec, oracle, 6)
    return run_law(law, LAWS[law], subject)
