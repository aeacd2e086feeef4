"""Each law is seen red on an encoding that breaks it, for the reason it is there for."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.judged import outcome_of
from helpers.seen_through import SEEN
from jarilab.attention import geometry
from jarilab.laws import LAWS, Outcome, check_encoding
from jarilab.laws.cures import CURES
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

HERE = Path(__file__).parent

SEEN_BY_OTHERS = {law for law, _ in SEEN.values()}

# law: the encodings that break it, with words from what the law says of each.
RED = {
    "agrees with its formula": {
        "OffByOne": "what is added to the input at positions",
        "CountsInBfloat16": "what is added to the input at positions [7, 8, 9, 12, 16, 47, 307]",
        "WrongHead": "output at positions",
        "WrongValues": "output at positions",
        "Transposed": "what is added to the input at positions [(0, 2), (1, 0), (2, 40)",
    },
    "every kernel equals the definition": {
        "HidesValues": "output of fused",
        "Coarse": "output of explicit, torch.float32",
        "CutsGradients": "gradient of q of explicit, torch.float32",
        "ForgetsGradients": "gradient of q of the definition",
        "DoubleOnly": "no kernel can compute it: the explicit one is refused",
        "WakesTheDead": "of explicit, torch.float64, padding",
    },
    "every number of heads works": {
        "SharesSlopes": "do the same; with 16 all differ",
    },
    "training and evaluation agree": {
        "InfiniteWindow": "is infinite; to hide keys, add a finite number such as -10,000, or give a Mask",
    },
    "a query without a key gives zeros": {
        "WakesTheDead": "a query without any key is not exactly 0 in the output of definition",
    },
    "hooks by distance are as claimed": {
        "MisstatesVectors": "terms in distance form, from position 0 on",
        "ForgetsToLearn": "gradient of slope through bias in distance form, from position 0 on",
    },
    "cached decoding equals the full forward": {
        "CountsQueries": "scores of 1, 2, 1 and 3 tokens at a time, from position 0 on",
        "Centred": "scores of 1, 2, 1 and 3 tokens at a time, from position 0 on",
        "ByLength": "scores of 1, 2, 1 and 3 tokens at a time, from position 0 on",
        "CountsQueriesByLength": "scores of 1, 2, 1 and 3 tokens at a time, from position 0 on",
    },
    "padding changes no real token": {
        "CountsQueries": "a row with padding on the left, from position 0 on",
        "Centred": "a row with padding on the",
    },
    "packed documents equal separate ones": {
        "ByOrder": "the second of two packed documents, from position 0 on",
        "ByLength": "the second of two packed documents, from position 0 on",
    },
    "shift invariance is as claimed": {
        "ClaimsTooMuch": "output of an encoder with all positions shifted by 1: off by",
        "Diagonal": "output of an encoder with all positions shifted by (1, 0): off by",
        "ClaimsTooLittle": "shifted positions change nothing",
    },
    "rotation keeps norms": {"Swells": "norms from position"},
    "output depends on token order": {
        "WiredToNothing": "it overrides embed, but the outputs of an encoder follow a permutation",
        "RowsOnly": "it overrides embed, but the outputs of an encoder follow a permutation along a row",
        "Smuggler": "it says that it uses no hook, but a permutation changes outputs",
        "SaysItHearsNothing": "it says uses_order = False, but a permutation changes outputs",
    },
    "the longest position is enforced": {
        "ForgetsTheEnd": "it has 64 positions, so the last is 63, but 64 is accepted",
        "MumblesTheEnd": "position 64 is refused without being named: 'too far'",
        "OverstatesTheEnd": "raised UserError: table knows 0 to 62, got 63",
        "DeniesTheEnd": "raised IndexError",
    },
    "instances share nothing": {
        "SharedCache": "embed of an instance with other options, among others, is not what it is alone",
        "LastBuiltWins": "embed of an instance with other options, among others, is not what it is alone",
    },
    "round trips change nothing": {
        "CastsWithTheModel": "rotate after a cast to bfloat16 and back",
        "CastsWithTheModel:persistent=false": "rotate when built on the meta device and loaded",
        "RollsDice": "embed when built from its canonical spec",
        "LosesOptions": "embed when copied deeply",
    },
    "every parameter learns": {
        "Idle": "idle gets no gradient",
        "FrozenFrequency": "encoder.encoding.parts.0.0.frequency gets no gradient",
    },
    "unplaced tokens get no position": {
        "PlacesEverybody": "embed at an unplaced token, from position",
        "TurnsEverybody": "rotate at an unplaced token, from position",
        "Erases": "rotate at an unplaced token, from position",
        "MeasuresEverybody": "bias at an unplaced token, from position 0 on, as query",
    },
    "samples do not mix": {
        "NumbersSamples": "a reversed batch of 2, from position 0 on",
        "FirstRowForAll": "a reversed batch of 2 whose rows have their own positions",
    },
    "a grid of one row is a line": {"FirstAxisOnly": "output of an encoder for a grid of 1 x 7"},
    "initial values are those of the seed": {
        "SetsTheDefaultDtype": "building it sets torch's default dtype to torch.float64"
    },
}


def outcomes(name: str) -> dict[str, Outcome]:
    return {outcome.law: outcome for outcome in check_encoding(f"{HERE / 'broken.py'}:{name}")}


@pytest.mark.parametrize("law", LAWS)
def test_every_law_is_broken_by_something(law: str) -> None:
    assert law in RED or law in SEEN_BY_OTHERS, f"write an encoding that breaks the law {law!r} into broken.py"


@pytest.mark.parametrize(("law", "name"), [(law, name) for law, names in RED.items() for name in names])
def test_a_broken_encoding_breaks_its_law(law: str, name: str) -> None:
    outcome = outcome_of(law, f"{HERE / 'broken.py'}:{name}")
    assert outcome.verdict == "broken", outcome
    assert re.search(re.escape(RED[law][name]), outcome.detail), outcome.detail


@pytest.mark.parametrize("name", ["Absolute", "Plane"])
def test_correct_encodings_keep_all_laws(name: str) -> None:
    verdicts = {law: outcome.verdict for law, outcome in outcomes(name).items()}
    assert verdicts == dict.fromkeys(LAWS, "holds") | {
        "rotation keeps norms": "skipped",
        "every parameter learns": "skipped",
        "a grid of one row is a line": "skipped",
        "hooks by distance are as claimed": "skipped",
    }


def test_a_causal_only_encoding_is_tested_in_a_causal_stack() -> None:
    verdicts = outcomes("LooksBackOnly")
    assert not [outcome for outcome in verdicts.values() if outcome.verdict == "broken"]
    assert verdicts["cached decoding equals the full forward"].verdict == "holds"
    assert verdicts["output depends on token order"].verdict == "holds"
    assert verdicts["padding changes no real token"].detail.endswith("in a causal stack")


def test_global_changes_to_torch_are_undone() -> None:
    outcomes("SetsTheDefaultDtype")
    assert torch.get_default_dtype() is torch.float32


def test_nan_for_a_query_without_a_key_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a causal mask between two sequences is taken for that of one, in which each query sees itself."""

    def of_one_sequence(mask: Mask | None, q_pos: Positions, k_pos: Positions) -> Any:
        return (None if mask is None else mask.dense(q_pos, k_pos)), None

    monkeypatch.setattr(geometry, "_materialize_mask", of_one_sequence)
    outcome = outcome_of("a query without a key gives zeros", "rotary")
    assert outcome.verdict == "broken", outcome
    assert re.search("NaN or Inf in the output of .*, causal, from a sequence", outcome.detail)


def test_an_exception_breaks_the_law_and_is_named() -> None:
    law = "training and evaluation agree"
    detail = "raised ZeroDivisionError: by the length of nothing"
    assert outcomes("Crashes")[law] == Outcome(law, "broken", detail, CURES[law])


def test_each_law_has_a_cure() -> None:
    assert CURES.keys() == LAWS.keys()
    assert outcome_of("rotation keeps norms", f"{HERE / 'broken.py'}:Swells").cure == CURES["rotation keeps norms"]
    assert not outcome_of("rotation keeps norms", "rotary").cure
