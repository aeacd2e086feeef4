"""One law at a time, for tests of what it says."""

from jarilab.encodings.formulas.oracle import Oracle
from jarilab.laws import LAWS, Outcome, contained, judge
from jarilab.laws.subject import Subject

FORMULA = "agrees with its formula"


def outcome_of(law: str, spec: str, oracle: Oracle | None = None) -> Outcome:
    """What becomes of this law where an encoding is tried, as `laws` says it, in a fraction of the time."""
    with contained():
        subject = Subject.of(spec, oracle, 6)
    return judge(law, LAWS[law], subject)
