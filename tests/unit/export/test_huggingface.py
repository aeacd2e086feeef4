"""Exported folders of transformers answer as the models do."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.command import command
from tests.helpers.runs import tiny, train
from tests.helpers.small import SMALL, initialised

import jarilab
from jarilab import UserError
from jarilab.export.huggingface import export, write
from jarilab.models.recurrent import Recurrent

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="NO transformers: folders of Hugging Face were NOT checked (pip install 'jarilab[huggingface]')",
    ),
    pytest.mark.filterwarnings("ignore"),
]


def language_model(**options: Any) -> Any:
    return initialised(jarilab.LanguageModel(12, **SMALL, n_layers=2, **options))


def translator(**options: Any) -> Any:
    return initialised(jarilab.EncoderDecoder(9, 12, **SMALL, n_encoder_layers=1, n_decoder_layers=2, **options))


def vision(**options: Any) -> Any:
    return initialised(jarilab.VisionTransformer((1, 4, 6), 3, patch_size=2, **SMALL, n_layers=2, **options))


MARIAN = "sinusoidal:layout=concatenated"
EQUALS = [
    (
        "GPT2LMHeadModel",
        lambda: language_model(encoding="learned:positions=9", activation="gelu", scale="none"),
    ),
    ("GPT2LMHeadModel", lambda: language_model(encoding="none", tied=False)),
    ("GPTNeoXForCausalLM", lambda: language_model(encoding="rotary:base=500,fraction=0.5")),
    (
        "BlenderbotForConditionalGeneration",
        lambda: translator(encoding="learned:positions=9", d_ff=24),
    ),
    ("MarianMTModel", lambda: translator(norm="post", encoding=MARIAN, tied=True)),
    (
        "ViTForImageClassification",
        lambda: vision(pool="class", encoding="learned2d:rows=2,columns=3"),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "make"), EQUALS)
def test_folder_equals_the_model(kind: str, make: Any, tmp_path: Path) -> None:
    made = write(make(), tmp_path)
    assert made["kind"] == kind
    assert made["largest_score"] > 0.01
    assert made["largest_difference"] < 1e-5 * max(1, made["largest_score"])
    assert {"config.json", "model.safetensors"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("make", "why", "instead"),
    [
        (lambda: language_model(encoding="alibi"), "alibi uses bias", "learned or rotary"),
        (lambda: language_model(norm="post"), "norm=post", "--norm pre"),
        (lambda: language_model(norm_kind="batch"), "norm_kind=batch", "--norm-kind layer"),
        (lambda: language_model(norm_kind="rms"), "norm_kind=rms", "--norm-kind layer"),
        (lambda: language_model(gated=True), "gated=true", "model.gated=false"),
        (lambda: language_model(bias=False), "bias=false", "model.bias=true"),
        (lambda: language_model(parallel=True), "parallel=true", "model.parallel=false"),
        (lambda: language_model(token_before=True), "token_before=true", "token_before=false"),
        (lambda: language_model(n_kv_heads=1), "n_kv_heads", "n_kv_heads=null"),
        (lambda: language_model(d_head=6), "d_head=6", "d_head=null"),
        (lambda: translator(embedding_norm=True), "embedding_norm=true", "embedding_norm=false"),
        (lambda: translator(generator_bias=True), "generator_bias=true", "generator_bias=false"),
        (lambda: language_model(window=3), "window=3", "no window"),
        (
            lambda: language_model(encoding="rotary:pairing=interleaved"),
            "neighbouring pairs",
            "--encoding rotary",
        ),
        (
            lambda: translator(encoding="rotary"),
            "rotary acts inside attention",
            "sinusoidal or learned",
        ),
        (lambda: translator(norm="post"), "norm=post and sinusoidal", "layout=concatenated"),
        (
            lambda: translator(cross_encoding="rotary"),
            "cross_encoding=rotary",
            "cross_encoding=none",
        ),
        (lambda: vision(), "mean of the patches", "model.pool=class"),
        (lambda: vision(pool="class", kept_patches=3), "kept_patches=3", "kept_patches=null"),
        (
            lambda: vision(pool="class", encoding="rotary2d"),
            "rotary2d acts inside attention",
            "learned2d",
        ),
        (lambda: Recurrent(5, 5), "Recurrent has no equivalent", "--to onnx"),
    ],
)
def test_models_without_equivalent_are_refused(make: Any, why: str, instead: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no equivalent in transformers") as refused:
        write(make(), tmp_path)
    assert why in str(refused.value)
    assert instead in str(refused.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_export_command(tmp_path: Path) -> None:
    train(tmp_path / "run", tiny("sinusoidal"))
    words = ("export", tmp_path / "run", "--to", "huggingface", "--out", tmp_path / "out")
    said = command(*words)
    assert said.returncode == 0, said.stderr
    assert "BlenderbotForConditionalGeneration in" in said.stdout
    assert "scores differ by " in said.stdout
    assert "; a tokenizer that reads " in said.stdout
    assert command(*words).returncode == 2


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'jarilab\[huggingface\]'"):
        export(tmp_path / "run", tmp_path / "out")
    assert not any(tmp_path.iterdir())
