"""Every registered encoding keeps the laws, with several options, and so do sums."""

import dataclasses
import functools
from typing import Any

import pytest
import torch

from helpers.judged import FORMULA, outcome_of
from jarilab.core.errors import UserError
from jarilab.encodings.base import registry
from jarilab.encodings.formulas.oracle import package_oracles
from jarilab.laws import LAWS, check_encoding

OPTIONS = {
    "none": [""],
    "rotary_linear": ["", "factor=2.5,fraction=0.5,pairing=interleaved"],
    "rotary_ntk": ["", "factor=16,pairing=interleaved"],
    "rotary_dynamic": ["", "trained_length=4,factor=4,pairing=interleaved"],
    "yarn": ["", "fraction=0.5,truncate=false,trained_length=100", "factor=1", "attention_factor=0.7,factor=32"],
    "longrope": ["", "short=1/1.5/2/3,long=2/4/6/8", "fraction=0.5,short=1/2,factor=1"],
    "llama3": ["", "trained_length=100,low_frequency_factor=2,base=10000"],
    "prope": ["", "fraction=0.25,pairing=interleaved"],
    "log_length": ["", "trained_length=100,only_beyond=true", "trained_length=50"],
    "rotary3d": ["", "layout=interleaved,sections=2/1/1", "layout=axial", "sections=1/3/0"],
    "pope": ["", "base=100"],
    "pixtral": ["", "fraction=0.5,pairing=interleaved"],
    "sinusoidal_mae": ["", "exponent=ends,base=100"],
    "scaled_sinusoidal": ["", "layout=interleaved"],
    "continuous_bias2d": ["", "rows=5,columns=8,hidden=16"],
    "sinusoidal": ["", "layout=concatenated", "layout=tensor2tensor,base=500"],
    "learned": ["", "positions=2000"],
    "rotary": ["", "fraction=0.25,pairing=interleaved", "pairing=interleaved", "base=500,fraction=0.5"],
    "shaw": ["", "labels=3,values=false", "clip=0", "clip=2", "clip=2,values=false", "clip=3,keys=false", "labels=4"],
    "t5": ["", "scaled=false", "buckets=4,distance=3", "buckets=10,distance=20"],
    "alibi": ["", "slopes=sides", "slopes=learned"],
    "kerple": ["", "kernel=power"],
    "fire": ["", "length=4,hidden=8", "shared=true"],
    "dynamic_bias": ["", "logarithm=false,depth=1"],
    "sinusoidal2d": ["", "where=inject,normalised=true", "normalised=true", "base=100,where=inject"],
    "learned2d": ["", "layout=table,where=inject", "rows=120,columns=110", "layout=table,columns=24"],
    "rotary2d": ["", "frequencies=mixed,pairing=interleaved", "pairing=interleaved", "base=500,fraction=0.5"],
    "table2d": ["", "rows=4,columns=6", "rows=3,columns=2,clip=true"],
    "shaw2d": ["", "clip=2", "clip=3,keys=false", "clip=2,values=false"],
    "alibi2d": ["", "distance=manhattan", "distance=chebyshev"],
}


ALWAYS = {"none", "learned", "rotary", "shaw"}
"""Tried in every run of the tests; the others' laws are long. Biases by a table, and what is added to
images, are there in the sum."""


def specs_of(name: str) -> list[Any]:
    """An encoding with its defaults, and with its options in the long ones. A name outside the table is tried with its
    defaults: a new encoding needs no edit here, except for more options."""
    specs = [f"{name}:{option}" if option else name for option in OPTIONS.get(name, [""])]
    long = [pytest.param(spec, marks=pytest.mark.long) for spec in specs]
    return [specs[0], *long[1:]] if name in ALWAYS else long


SINGLE = [spec for name in registry.names() for spec in specs_of(name)]


SUMS = [
    "learned2d+rotary2d+table2d",
    "learned2d+table2d:rows=10",  # offsets reach less far than positions
    *(
        pytest.param(spec, marks=pytest.mark.long)
        for spec in (
            "rotary+forgetting",
            "learned+shaw:clip=2+t5",
            "sinusoidal+rotary",
            "rotary+alibi",
            "rotary+log_length",
            "rotary+shaw:clip=2",
            "none+rotary2d:frequencies=mixed",
        )
    ),
]

# Shaw with all distances clipped to 0 adds the same vector to every key: it tells nothing. The law is right to say so.
TELLS_NOTHING = {("shaw:clip=0", "output depends on token order")}

REASONS = (
    "it rotates nothing",
    "it has no parameters",
    "it reads labels of pairs",
    "no formula is known",
    "it does not take both",
    "it uses no positions",
    "it has no distance form",
    "it has no distances on one axis",
    "it does not claim to: keeps_norms = False",
    "its results depend on the length everywhere, as claimed",
)


outcomes_of = functools.cache(check_encoding)
"""All laws of an encoding, looked at once."""


@pytest.mark.parametrize("name", registry.names())
def test_an_encoding_agrees_with_its_formula(name: str) -> None:
    outcome = outcome_of(FORMULA, name)
    assert outcome.verdict == "holds", outcome


READING = (
    "cached decoding equals the full forward",
    "padding changes no real token",
    "packed documents equal separate ones",
    "samples do not mix",
)
"""Asked of every encoding, so that no test of a model has to ask them of each."""
LIKE_ANOTHER = {
    "alibi2d",
    "continuous_bias2d",
    "dynamic_bias",
    "kerple",
    "sandwich",
    "table2d",
    "scaled_sinusoidal",
    "sinusoidal_mae",
    "sinusoidal2d",
    "llama3",
    "prope",
    "rotary3d",
    "rotary_linear",
    "rotary_ntk",
    "yarn",
    "pixtral",
    "shaw:values=false",
}
"""Their hooks are those of another encoding with other numbers, which their formulas test: asked in the long tests."""
READERS = sorted({*registry.names(), "shaw:values=false", "rotary+shaw"} - ALWAYS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LIKE_ANOTHER else name for name in READERS]
)
def test_a_model_with_any_encoding_reads_text_in_any_form(name: str) -> None:
    for law in READING:
        outcome = outcome_of(law, name)
        assert outcome.verdict in ("holds", "skipped"), outcome
        assert outcome.verdict != "skipped" or outcome.detail.startswith(REASONS), outcome


@pytest.mark.parametrize("spec", [*SINGLE, *SUMS])
def test_an_encoding_keeps_the_laws(spec: str) -> None:
    outcomes = outcomes_of(spec)
    assert [outcome.law for outcome in outcomes] == list(LAWS)
    for outcome in outcomes:
        expected = ("broken",) if (spec, outcome.law) in TELLS_NOTHING else ("holds", "skipped")
        assert outcome.verdict in expected, outcome
        assert outcome.detail
        assert outcome.verdict != "skipped" or outcome.detail.startswith(REASONS), outcome


@pytest.mark.parametrize(
    "spec", ["alibi", *(pytest.param(spec, marks=pytest.mark.long) for spec in ("t5", "learned+shaw:clip=2+t5"))]
)
def test_laws_hold_with_a_power_of_two_heads(spec: str) -> None:
    assert not [outcome for outcome in check_encoding(spec, n_heads=8) if outcome.verdict == "broken"]


def test_a_missing_formula_is_explained() -> None:
    outcome = outcome_of(FORMULA, "rotary+rotary:base=500")
    assert outcome.verdict == "skipped"
    assert "no formula is known; write jarilab.Oracle(score=" in outcome.detail
    assert "class attribute `oracle`" in outcome.detail


def test_the_wrong_formula_is_noticed() -> None:
    outcome = outcome_of(FORMULA, "rotary", package_oracles()["none"])
    assert outcome.verdict == "broken"
    assert "output at positions [0, 1, 2, 5, 9, 40, 300]: off by" in outcome.detail


def test_an_unknown_encoding_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="unknown encoding 'rotery'; did you mean 'rotary'"):
        check_encoding("rotery")


def test_options_that_a_decoder_refuses_are_the_users_mistake() -> None:
    with pytest.raises(UserError, match="got buckets=4, distance=2"):
        check_encoding("t5:buckets=4,distance=2")


def test_too_few_positions_are_refused() -> None:
    with pytest.raises(UserError, match="the laws need 14 positions, and learned:positions=5 has 5; use more"):
        check_encoding("learned:positions=5")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("learned2d:rows=5", "the laws need 6 positions, and learned2d:rows=5 has 5; use more"),
        ("table2d:columns=2", "the laws need offsets of 3, and table2d:columns=2 has 2; use more"),
        (
            "rotary+rotary2d",
            r"the laws test sequences and images, and rotary\+rotary2d takes positions with neither",
        ),
        ("rotary2d@image", "the laws test encodings for all axes; test the parts of rotary2d@image without their @"),
    ],
)
def test_unsupported_axes_are_refused(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_encoding(spec)


@pytest.mark.long
def test_laws_are_reproducible_and_restore_the_random_state() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = check_encoding("learned")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)  # or those of the test that looked at it before
    assert outcomes_of("learned") == first


def test_outcomes_are_values() -> None:
    assert dataclasses.asdict(outcomes_of("none")[0]).keys() == {"law", "verdict", "detail", "cure"}
