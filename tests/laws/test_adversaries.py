"""Encodings that are right for what one tries first are seen through, each by a law and for the reason it is for."""

import re
from pathlib import Path

import pytest

from helpers.judged import outcome_of
from helpers.seen_through import SEEN
from jarilab.laws import check_encoding

FILE = Path(__file__).parent / "adversaries.py"
BASES = {"Added", "Minded", "Table"}


def test_every_adversary_is_tested() -> None:
    classes = set(re.findall(r"^class (\w+)\(", FILE.read_text(encoding="utf-8"), re.MULTILINE))
    assert classes - BASES == set(SEEN)


@pytest.mark.parametrize("name", SEEN)
def test_the_adversary_is_detected(name: str) -> None:
    law, words = SEEN[name]
    outcome = outcome_of(law, f"{FILE}:{name}")
    assert outcome.verdict == "broken", outcome
    assert words in outcome.detail


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("Tires", "calls leave nothing behind"),
        ("DropsAlways", "training and evaluation agree"),
        ("HashedTable", "instances share nothing"),
    ],
)
def test_the_fault_is_named_and_not_its_echo(name: str, law: str) -> None:
    outcomes = check_encoding(f"{FILE}:{name}")
    assert [outcome.law for outcome in outcomes if outcome.verdict == "broken"] == [law]
    echoes = [outcome for outcome in outcomes if outcome.detail.startswith(f"possibly a consequence of {law!r}: ")]
    assert echoes
    assert {outcome.verdict for outcome in echoes} == {"skipped"}
