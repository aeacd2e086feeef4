"""What a run is called is what was built."""

import pytest

import jarilab
from helpers.runs import TINY, tiny
from jarilab.core.errors import UserError
from jarilab.runs.experiment import Experiment
from jarilab.runs.resolved_encodings import label, overriding


@pytest.mark.parametrize(
    ("chosen", "called"),
    [
        ({}, "sinusoidal"),
        ({"encoder_encoding": "rotary", "decoder_encoding": "alibi"}, "encoder rotary, decoder alibi"),
        ({"encoder_encoding": "rotary", "decoder_encoding": "rotary"}, "rotary"),
        ({"encoder_encoding": "rotary", "decoder_encoding": "rotary", "cross_encoding": "t5"}, "rotary (cross t5)"),
        ({"decoder_encoding": "alibi"}, "sinusoidal (decoder alibi)"),
        ({"decoder_encoding": "sinusoidal"}, "sinusoidal"),
        ({"encoder_encoding": "none", "decoder_encoding": "none"}, "none"),
    ],
)
def test_a_run_is_called_by_what_was_built(chosen, called):
    experiment = tiny("sinusoidal", **{f"model__{name}": spec for name, spec in chosen.items()})
    assert experiment.encoding == called
    resolved = experiment.resolved
    parts = {name: getattr(resolved.build_model(resolved.build_task()), name) for name in ("encoder", "decoder")}
    for name, part in parts.items():
        assert part.encoding.spec == chosen.get(f"{name}_encoding", "sinusoidal")


def test_an_attention_between_without_encoding_is_told_only_where_it_usually_has_one():
    options = {"encoding": "rotary2d", "encoder_encoding": None, "decoder_encoding": None, "cross_encoding": "none"}
    assert label("detector", options) == "rotary2d (cross none)"
    assert label("detector", {**options, "cross_encoding": None}) == "rotary2d"
    assert overriding("detector", {**options, "encoder_encoding": "none", "decoder_encoding": "none"}) == [
        "encoder_encoding", "decoder_encoding", "cross_encoding",
    ]  # fmt: skip


def test_a_model_of_ones_own_is_not_executed_to_be_named(tmp_path):
    path = tmp_path / "evil.py"
    path.write_text("raise SystemExit('executed')")
    assert label(f"{path}:Mine", {"encoding": "rotary", "cross_encoding": "t5", "own_encoding": None}) == (
        "rotary (cross t5)"
    )
    assert label(f"{path}:Mine", {}) == "its own"


def test_a_study_whose_encodings_are_overridden_is_refused(tmp_path):
    settings = {**TINY, "model.encoder_encoding": "rotary", "model.decoder_encoding": "alibi"}
    with pytest.raises(UserError) as error:
        jarilab.compare("arithmetic:maximum=30", tmp_path / "out", encodings=["none", "t5"], settings=settings)
    assert str(error.value) == (
        "--encodings would change nothing: model.encoder_encoding=rotary and model.decoder_encoding=alibi take the "
        "place of it in every attention; omit model.encoder_encoding or model.decoder_encoding"
    )
    assert not (tmp_path / "out").exists()


def test_a_study_of_models_that_read_the_token_before_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("some text " * 90)
    settings = {"task.train": [str(tmp_path / "a.txt")], "model.token_before": True}
    with pytest.raises(UserError, match="tells the order of tokens by itself"):
        jarilab.compare("text", tmp_path / "out", encodings=["none", "rotary"], settings=settings)
    assert not (tmp_path / "out").exists()


def test_a_default_folder_tells_such_runs_apart():
    both = {"model.encoder_encoding": "rotary", "model.decoder_encoding": "alibi"}
    assert Experiment.of("arithmetic", "none", both).folder == "runs/arithmetic-encoderrotary_decoderalibi-1"
