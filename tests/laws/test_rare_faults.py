"""Faults that show only at long distances, at unusual sizes, with other options, or on a later call."""

from pathlib import Path

import pytest

from helpers.judged import outcome_of
from jarilab.laws import FORMULA, check_encoding

FILE = Path(__file__).parent / "rare_faults.py"
AMONG_OTHERS = "a position means the same among any others"
PRECISIONS = "results agree across precisions"
REPEATS = "calls leave nothing behind"
HEADS = "every number of heads works"
MODES = "training and evaluation agree"
SAMPLES = "samples do not mix"

# the law that sees it, and what it says of it
FAULTS = {
    "BlocksOf512": (FORMULA, "over the distances 0 to 4200"),
    "EndsAt400": (FORMULA, "over the distances 0 to 4200"),
    "LongCache": (AMONG_OTHERS, "bias for one query over many keys"),
    "ManyKeys": (AMONG_OTHERS, "over the first 300 keys"),
    "ManyHeads": (FORMULA, "20 heads of width 8"),
    "WideHeads": (FORMULA, "2 heads of width 64"),
    "VeryWideHeads": (FORMULA, "1 heads of width 256"),
    "FortyHeads": (FORMULA, "40 heads of width 4"),
    "FewerKeyHeads": (HEADS, "rotate with 4 heads of keys"),
    "ManyQueries": (FORMULA, "over 4201 queries: off by"),
    "ManyRows": (SAMPLES, "of 37"),
    "RowsForHeads": (SAMPLES, "a reversed batch of 6 whose rows have their own positions"),
    "EightRows": (SAMPLES, "of 37"),
    "NeverBackwards": (FORMULA, "at the restarted positions [0, 1, 2, 0, 1, 2, 3], causal"),
    "Compiled": (PRECISIONS, "torch.compiler.is_compiling() is true"),
    "StaleSlopes": (REPEATS, "after its parameters have changed"),
    "RoundsAfterAutocast": (PRECISIONS, "in float32 after autocast"),
    "SquaresItsBase": (FORMULA, "base=50"),
    "SmallBasesOnly": (FORMULA, "base=200"),
    "WrongOption": (FORMULA, "longest=4"),
    "ShiftedBlocks": (AMONG_OTHERS, "of some of 640 queries over as many keys"),
    "OtherHeads": (AMONG_OTHERS, "over the first 12 keys"),
    "KeepsCosines": (MODES, "Inference tensors cannot be saved for backward"),
    "HalfAngles": (PRECISIONS, "in float16"),
    "RepeatsHeads": (HEADS, "with 12 heads, heads 0 and 8 do the same; with 16 all differ"),
    "TwelveHeads": (HEADS, "for fewer keys than queries, as among all, from position 0 on, with 12 heads of width 20"),
    "DefaultAngles": (PRECISIONS, "where torch's default dtype is bfloat16"),
    "SmallBases": (PRECISIONS, "base=1.5625 in float32"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_rare_fault_breaks_its_law(name: str) -> None:
    law, words = FAULTS[name]
    outcome = outcome_of(law, f"{FILE}:{name}")
    assert outcome.verdict == "broken", outcome
    assert words in outcome.detail, outcome.detail


@pytest.mark.long
@pytest.mark.parametrize("name", ["Sloped", "Turned"])
def test_without_the_faults_all_laws_hold(name: str) -> None:
    assert not [outcome for outcome in check_encoding(f"{FILE}:{name}") if outcome.verdict == "broken"]
