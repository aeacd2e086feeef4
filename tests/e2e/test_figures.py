"""The figures that the README promises, by training for minutes: `make long`."""

import math
from pathlib import Path

import pytest

import jarilab


@pytest.mark.long
def test_positions_decide_whether_a_transformer_adds(tmp_path: Path) -> None:
    settings = {"training.examples": 450_000}
    table = jarilab.compare("arithmetic", tmp_path / "why", encodings=["none", "rotary"], settings=settings)
    none, rotary = table["trials"]
    ceiling, count = table["ceiling"]["all"], none["held_out"]
    assert rotary["value"] >= 0.99
    assert none["value"] <= ceiling + 4 * math.sqrt(ceiling * (1 - ceiling) / count)
    assert none["value"] > 0.01, "it should at least learn what a bag of characters tells"
