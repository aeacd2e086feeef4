"""The examples do what they say."""

import sys
from pathlib import Path

import pytest

from jarilab.conformance import laws

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["my_encoding.py:Kerple:slope=0.5", "my_encoding2d.py:Rings:rings=4"])
def test_an_encoding_of_ones_own_keeps_the_laws(encoding: str) -> None:
    outcomes = laws(f"{EXAMPLES}/{encoding}")
    assert not [outcome for outcome in outcomes if outcome.verdict == "broken"]
    assert {o.law: o.verdict for o in outcomes}["agrees with its formula"] == "holds"


@pytest.mark.slow
def test_labelled_relations_find_the_parent_and_nothing_else_does() -> None:
    sys.path.insert(0, str(EXAMPLES))
    import family  # pyright: ignore[reportMissingImports]

    assert family.accuracy("shaw:labels=4", steps=150) > 0.95
    assert family.accuracy("none", steps=150) < 0.5
