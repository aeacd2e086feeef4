"""outcomes.json: what is kept of each held-out example, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jarilab
from helpers.runs import seal
from jarilab.core.errors import UserError
from jarilab.runs.outcomes import FILE, TRAINED, read_outcomes, write_outcomes
from jarilab.runs.verifying import verify
from jarilab.tasks.arithmetic import Arithmetic

HASH = "0123456789ab"
SETTINGS = {"model.d_model": 16, "model.n_encoder_layers": 1, "model.n_decoder_layers": 1, "model.n_heads": 2}
SETTINGS |= {"training.examples": 64, "training.batch_size": 32, "training.evaluation_examples": 20}
SETTINGS |= {"task.maximum": 20}

TEXT = {"model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "training.epochs": 1}
TEXT |= {"training.batch_size": 8, "task.context_length": 16}


def test_bits_and_losses_come_back(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    bits = (generator.random(43) < 0.3).astype(float)
    losses = 2 + generator.random(1000)
    write_outcomes(tmp_path, HASH, {TRAINED: bits, "512": losses})
    read = read_outcomes(tmp_path, HASH)
    assert read[TRAINED].tolist() == bits.tolist()
    assert read["512"] == pytest.approx(losses, rel=1e-3)
    record = json.loads((tmp_path / FILE).read_text())["outcomes"]
    assert [record[length]["type"] for length in (TRAINED, "512")] == ["bits", "float16"]
    assert [len(record[length]["data"]) for length in (TRAINED, "512")] == [8, 2668]
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_run_without_the_file_has_none(tmp_path: Path) -> None:
    assert read_outcomes(tmp_path, HASH) == {}


@pytest.mark.parametrize("value", [1e6, np.inf, np.nan])
def test_losses_that_half_precision_cannot_hold_are_left_out(tmp_path: Path, value: float) -> None:
    write_outcomes(tmp_path, HASH, {TRAINED: np.array([1.5, value]), "32": np.array([1.5, 2.5])})
    assert list(read_outcomes(tmp_path, HASH)) == ["32"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"hash": "ba9876543210"}, [HASH, "another"]),
        ({"outcomes": {TRAINED: {"examples": 9, "type": "bits", "data": "AA=="}}}, ["2 bytes", "9 outcomes", "got 1"]),
        ({"outcomes": {TRAINED: {"examples": 8, "type": "bits", "data": "A*=="}}}, ["1 bytes", "got 0"]),
        ({"outcomes": {TRAINED: {"examples": 1, "type": "float16", "data": "AHw="}}}, ["finite"]),
        ({"outcomes": {TRAINED: {"examples": 0, "type": "bits", "data": ""}}}, ["examples", "1"]),
        ({"outcomes": {TRAINED: {"examples": 1, "type": "pickle", "data": "AA=="}}}, ["type", "bits"]),
        ({"outcomes": [1]}, ["outcomes"]),
    ],
)
def test_records_that_are_no_outcomes_are_refused(tmp_path: Path, change: dict[str, Any], parts: list[str]) -> None:
    seal(tmp_path / FILE, {"hash": HASH, "outcomes": {}, **change})
    with pytest.raises(UserError) as error:
        read_outcomes(tmp_path, HASH)
    assert all(part in str(error.value) for part in [FILE, *parts])


def test_a_run_keeps_its_outcomes_and_verifies_them(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("".join(chr(97 + number * number % 26) for number in range(3000)))
    options: dict[str, Any] = {"encoding": "alibi", "settings": TEXT | {"task.train": str(text)}, "threads": 1}
    result = jarilab.train("text", out, **options, eval_lengths=[32])
    kept = read_outcomes(out, result["hash"])
    assert kept.keys() == {TRAINED, "32"}
    for length, (count, value) in {
        TRAINED: (result["examples"], result["loss"]),
        "32": (result["lengths"]["32"]["examples"], result["lengths"]["32"]["value"]),
    }.items():
        assert (len(kept[length]), kept[length].mean()) == (count, pytest.approx(value, rel=1e-3))
    assert "outcomes" not in result
    assert "outcomes" not in jarilab.evaluate(out, threads=1)
    before = (out / FILE).read_bytes()

    def states() -> dict[str, str]:
        return {checked.file: checked.state for checked in verify(out).files}

    assert states()[FILE] == "whole"
    # A run whose training is cut off before result.json writes the same again, over a damaged file, too.
    (out / FILE).write_text("{}")
    assert states()[FILE] == "damaged"
    (out / "result.json").unlink()
    assert jarilab.train("text", out, **options, eval_lengths=[32])["loss"] == result["loss"]
    assert (out / FILE).read_bytes() == before
    # Another length is added to those that are there.
    jarilab.train("text", out, **options, eval_lengths=[32, 64])
    assert read_outcomes(out, result["hash"]).keys() == {TRAINED, "32", "64"}
    assert read_outcomes(out, result["hash"])[TRAINED].tolist() == kept[TRAINED].tolist()


@pytest.mark.parametrize(("values", "parts"), [([1, 0, 1], ["4 values", "got 3"]), ([1, 0, 0, 0], ["0.5", "0.25"])])
def test_outcomes_that_are_not_the_metric_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[int], parts: list[str]
) -> None:
    monkeypatch.setattr(Arithmetic, "evaluate", lambda *_: {"exact_match": 0.5, "examples": 4.0, "outcomes": values})
    with pytest.raises(UserError) as error:
        jarilab.train("arithmetic", tmp_path / "run", encoding="rotary", settings=SETTINGS, threads=1)
    assert all(part in str(error.value) for part in ["exact_match", *parts])
