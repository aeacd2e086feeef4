"""Readers of what is said who go away: the work goes on, and its result is where it belongs."""

import contextlib
import json
import os

import pytest

from jarilab.cli import main
from jarilab.training import loop

TRAIN = ["train", "copy", "--out", "run", "--json"]
STEPS = 3
RESULT = {"metric": "exact_match", "exact_match": 0.5, "encoding": "none", "examples": 3, "steps": STEPS}


@pytest.fixture(autouse=True)
def trained(monkeypatch):
    """A training of three steps that are told, and how many of them were taken."""
    taken = []

    def train(experiment, out, *, report, **_):
        for step in range(1, STEPS + 1):
            report({"step": step, "steps": STEPS, "examples": step, "loss": 1.0, "measured": "3 %"})
            taken.append(step)
        return RESULT

    monkeypatch.setattr(loop, "train", train)
    return taken


@pytest.fixture
def unread():
    """A stream whose reader has gone away."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    yield stream
    with contextlib.suppress(BrokenPipeError):  # for what was left of it
        stream.close()


def test_a_reader_of_progress_that_goes_away_ends_no_training(monkeypatch, capsys, unread):
    monkeypatch.setattr("sys.stderr", unread)
    assert main(TRAIN) == 0
    assert json.loads(capsys.readouterr().out) == RESULT


def test_progress_that_nobody_reads_from_the_start_goes_nowhere_else(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)  # as `2>&-` leaves it
    assert main(TRAIN) == 0
    assert json.loads(capsys.readouterr().out) == RESULT


def test_a_mistake_that_nobody_reads_is_still_a_mistake(monkeypatch, unread):
    monkeypatch.setattr("sys.stderr", unread)
    assert main(["train", "copi"]) == 2


def test_a_reader_of_the_result_that_goes_away_comes_after_all_steps(monkeypatch, unread, trained):
    monkeypatch.setattr("sys.stdout", unread)
    assert main(TRAIN) == 0
    assert len(trained) == STEPS
