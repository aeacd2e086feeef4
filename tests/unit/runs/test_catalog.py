"""Runs in a folder, listed: also where one of them is damaged."""

from pathlib import Path

import pytest

from helpers.command import command
from helpers.runs import tiny, train
from jarilab.core.errors import UserError
from jarilab.runs.descriptions import describe_tasks, describe_typed_encodings
from jarilab.runs.metrics_log import sealed_lines


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
