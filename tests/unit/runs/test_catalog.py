"""Runs in a folder, listed: also where one of them is damaged."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.command import command
from helpers.runs import held, language_run, seal, tiny, train
from jarilab.core.errors import UserError
from jarilab.runs.catalog import runs_in
from jarilab.runs.descriptions import describe_tasks, describe_typed_encodings
from jarilab.runs.metrics_log import sealed_lines
from jarilab.runs.results import metric_in, read_result


def test_a_run_with_strange_numbers_stops_nothing(tmp_path: Path) -> None:
    train(tmp_path / "good")
    train(tmp_path / "strange")
    (tmp_path / "strange" / "result.json").unlink()
    rows = [{"step": 1}, {"step": 2, "steps": "9", "examples": [], "loss": "x"}]
    (tmp_path / "strange" / "metrics.jsonl").write_text("".join(sealed_lines(rows, tiny().hash)))
    said = command("runs", tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    told = f"{tmp_path / 'strange' / 'metrics.jsonl'}:2 is damaged"
    assert told in said.stdout
    assert "finished" in said.stdout
    said = command("report", tmp_path / "strange")
    assert (said.returncode, told in said.stderr) == (2, True)


def test_the_metric_of_an_unfinished_run_is_that_of_its_task(tmp_path: Path) -> None:
    run = language_run(tmp_path, task__metric="perplexity", training__evaluation_examples=8)
    (finished,) = runs_in(tmp_path)
    (run / "result.json").unlink()
    (unfinished,) = runs_in(tmp_path)
    assert (unfinished.state, unfinished.metric) == ("not finished", finished.metric)
    assert unfinished.measured.startswith("perplexity ")


def test_the_metric_of_a_task_of_another_file_is_found_without_executing_it() -> None:
    experiment = replace(tiny(), task="missing.py:Mine")
    row = {"step": 3, "accuracy": 0.5, "mean_error": 1.25, "loss": 0.7, "value": 1.25}
    assert metric_in(row, experiment) == "mean_error"
    assert metric_in({"step": 3, "loss": 0.7, "value": 1.25}, experiment) is None
    assert metric_in(row, tiny()) == "exact_match"
    assert metric_in({"step": 1, "accuracy": 1.0, "value": 1.0}, experiment) == "accuracy"
    assert metric_in({"step": 1, "accuracy": math.nan, "value": math.nan}, experiment) is None


def test_a_result_has_the_range_of_its_metric(tmp_path: Path) -> None:
    train(tmp_path, tiny(training__examples=16, training__evaluations=1))
    result = held(tmp_path / "result.json")
    for name, value in (("perplexity", 1e300), ("mean_error", -2.5)):
        measured = {"metric": name, name: value, "best": {"step": 1, name: value}}
        seal(tmp_path / "result.json", result | measured)
        assert read_result(tmp_path, result["hash"])[name] == value
    seal(tmp_path / "result.json", result | {"exact_match": 1.5})
    with pytest.raises(UserError, match="exact_match"):
        read_result(tmp_path, result["hash"])


def test_files_that_a_training_removes_meanwhile_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run", tiny(training__examples=16, training__evaluations=1))
    partial = tmp_path / "run" / "checkpoints" / ".step-000000002.1.partial"
    partial.mkdir()
    for name in ("manifest.json", "state.json"):
        (partial / name).write_text("{}")
    status = Path.stat

    def stat(path: Path, **options: Any) -> Any:
        found = status(path, **options)
        if path.parent == partial:
            shutil.rmtree(partial)
        return found

    monkeypatch.setattr(Path, "stat", stat)
    (summary,) = runs_in(tmp_path)
    assert summary.state == "finished"


def test_threads_that_no_machine_has_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "run")
    said = command("predict", tmp_path / "run", "1+1", "--threads", 100000)
    assert said.returncode == 2
    assert "threads: expected 1 to " in said.stderr


def test_a_sum_and_a_list_for_layers_are_told_part_by_part() -> None:
    def names(text: str) -> list[str]:
        return [encoding["name"] for encoding in describe_typed_encodings(text)]

    assert names("rotary:base=500+alibi") == ["rotary", "alibi"]
    assert names("rotary,rotary,none") == ["rotary", "none"]
    assert names("sinusoidal@text") == ["sinusoidal"]
    with pytest.raises(UserError, match="unknown encoding 'rotari'; did you mean 'rotary'"):
        describe_typed_encodings("alibi+rotari")


def test_the_metric_of_a_task_is_that_of_its_default_options() -> None:
    metrics = {task["name"]: task["metric"] for task in describe_tasks()}
    assert (metrics["text"], metrics["translation"]) == ("loss", "bleu")
    assert (metrics["copy"], metrics["digits"]) == ("exact_match", "accuracy")
