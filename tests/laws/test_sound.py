"""Sound encodings break no law, whatever they are made of."""

import re
from pathlib import Path

import pytest

from helpers.judged import outcome_of
from jarilab.laws import check_encoding

FILE = Path(__file__).parent / "sound.py"
NAMES = re.findall(r"^class (\w+)\(", FILE.read_text(encoding="utf-8"), re.MULTILINE)

# In every run of the tests, one of each kind; the others in the long ones.
ALWAYS = {"ParameterNamedV", "CausalGates", "ByLength", "PlaneShare"}


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_no_law_is_broken(name: str) -> None:
    assert not [outcome for outcome in check_encoding(f"{FILE}:{name}") if outcome.verdict == "broken"]


def test_positions_where_the_length_matters_are_listed() -> None:
    steps = outcome_of("cached decoding equals the full forward", f"{FILE}:ByLength")
    assert steps.verdict == "holds"
    assert "not from position 1000 on; from position 5000 on" in steps.detail
    assert steps.detail.endswith("where the length matters, as claimed")
    # From 0 on nothing depends on it, up to the trained length.
    assert "from position 0 on" not in steps.detail


def test_a_bias_removed_by_the_softmax_is_not_idle() -> None:
    assert outcome_of("every parameter learns", f"{FILE}:Perceptron").verdict == "holds"


def test_positions_refused_by_pytorch_are_reported() -> None:
    fractions = outcome_of("fractional positions are as claimed", f"{FILE}:PlainTable")
    assert fractions.verdict == "skipped"
    assert "say integer_only = True" in fractions.detail
