"""`jarilab train --from RUN`: a run repeated, or changed in what is said."""

import json
import shutil

import pytest

from helpers.command import command
from helpers.runs import held, seal, timeless

SMALL = ["--examples", "192", "--batch-size", "16", "--evaluations", "2", "--evaluation-examples", "20",
         "--d-model", "16", "--n-heads", "2", "--n-encoder-layers", "1", "--n-decoder-layers", "1",
         "--threads", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = command("train", "arithmetic:maximum=30", *SMALL, "--encoding", "t5", "--out", folder / "add")
    assert made.returncode == 0, made.stderr
    return folder


def test_a_repeated_run_is_the_same_bit_for_bit(runs):
    said = command("train", "--from", runs / "add" / "run.json", "--out", runs / "again")
    assert said.returncode == 0, said.stderr
    assert "not as in" not in said.stderr
    first, second = (timeless(held(runs / name / "result.json")) for name in ("add", "again"))
    assert first == second
    weights = [max((runs / name / "checkpoints").iterdir()) / "model.safetensors" for name in ("add", "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_what_was_otherwise_then_is_told(runs, tmp_path):
    shutil.copytree(runs / "add", tmp_path / "add")
    record = held(tmp_path / "add" / "run.json")
    record["environment"]["torch"] = "2.0"
    record["data"] = "others"
    seal(tmp_path / "add" / "run.json", record)
    said = command("train", "--from", tmp_path / "add", "--out", tmp_path / "again")
    assert said.returncode == 0, said.stderr
    assert f"not as in {tmp_path / 'add'}: torch was 2.0, is " in said.stderr
    assert said.stderr.count("torch was 2.0") == 1
    assert "the data, or the files that the run keeps of them, are different" in said.stderr


def test_other_versions_are_told_before_anything_is_trained(runs, tmp_path):
    shutil.copytree(runs / "add", tmp_path / "add")
    record = held(tmp_path / "add" / "run.json")
    record["environment"]["torch"] = "2.0"
    seal(tmp_path / "add" / "run.json", record)

    (tmp_path / "again").write_text("no folder, so that nothing is trained")
    said = command("train", "--from", tmp_path / "add", "--out", tmp_path / "again")
    assert said.returncode == 2
    assert "torch was 2.0, is " in said.stderr


def test_what_is_given_wins_and_is_told(runs):
    words = ("--seed", "2", "--epochs", "1", "--d-model", "32", "--out", runs / "other")
    said = command("train", "--from", runs / "add", *words)
    assert said.returncode == 0, said.stderr
    for told in ("seed is 2, was 1", "model.d_model is 32, was 16"):
        assert f"not as in {runs / 'add'}: {told}\n" in said.stderr
    record = held(runs / "other" / "run.json")["experiment"]
    was = held(runs / "add" / "run.json")["experiment"]
    assert (record["seed"], record["model_options"]["d_model"], record["training"]["epochs"]) == (2, 32, 1)
    assert record["model_options"] == was["model_options"] | {"d_model": 32}
    assert record["task_options"] == was["task_options"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "train expects a task, such as jarilab train arithmetic; or a run"),
        (("--from", "nowhere"), "nowhere"),
        (("sort", "--from", "add"), "is a run of arithmetic with encoder_decoder; --from cannot change"),
        (("--from", "add", "--model", "decoder"), "is a run of arithmetic with encoder_decoder; --from cannot change"),
        (("--from", "add", "--d-modle", "3"), "did you mean --d-model?"),
    ],
)
def test_what_cannot_be_repeated_is_a_sentence(runs, monkeypatch, words, message):
    monkeypatch.chdir(runs)
    said = command("train", *words)
    assert (said.returncode, message in said.stderr) == (2, True), said.stderr
    assert "Traceback" not in said.stderr


def test_a_run_that_names_a_file_executes_nothing_untold(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    canary = tmp_path / "canary"
    (tmp_path / "evil.py").write_text(f"open({str(canary)!r}, 'w')")
    (tmp_path / "run").mkdir()
    record = held(runs / "add" / "run.json")
    record["experiment"]["model_options"]["encoding"] = "evil.py:Evil"
    seal(tmp_path / "run" / "run.json", json.loads(json.dumps(record)))
    said = command("train", "--from", "run", "--out", "again")
    assert (said.returncode, "--trust-code" in said.stderr, canary.exists()) == (2, True, False)
