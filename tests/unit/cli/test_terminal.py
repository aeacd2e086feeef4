"""Closed standard output and error: the work continues and its result is written."""

import contextlib
import json
import os

import pytest

from jarilab.cli import main
from jarilab.cli.terminal import say
from jarilab.training import loop

TRAIN = ["train", "copy", "--out", "run", "--json"]
STEPS = 3
RESULT = {"metric": "exact_match", "exact_match": 0.5, "encoding": "none", "examples": 3, "steps": STEPS}


@pytest.fixture(autouse=True)
def trained(monkeypatch):
    """A training that reports three steps, and the number of steps done."""
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
    """A stream whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    yield stream
    with contextlib.suppress(BrokenPipeError):  # for what was left of it
        stream.close()


def test_training_continues_without_a_reader_of_progress(monkeypatch, capsys, unread):
    monkeypatch.setattr("sys.stderr", unread)
    assert main(TRAIN) == 0
    assert json.loads(capsys.readouterr().out) == RESULT


def test_control_characters_of_names_are_escaped(capsys):
    say("read \x1b[2Jmine.txt\nthen 가\udc80")
    assert capsys.readouterr().err == "jarilab: read \\x1b[2Jmine.txt\nthen 가\\udc80\n"


def test_progress_is_dropped_if_standard_error_is_closed(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)  # as `2>&-` leaves it
    assert main(TRAIN) == 0
    assert json.loads(capsys.readouterr().out) == RESULT


def test_the_exit_code_of_an_error_does_not_need_a_reader(monkeypatch, unread):
    monkeypatch.setattr("sys.stderr", unread)
    assert main(["train", "copi"]) == 2


def test_a_closed_standard_output_matters_only_after_training(monkeypatch, unread, trained):
    monkeypatch.setattr("sys.stdout", unread)
    assert main(TRAIN) == 0
    assert len(trained) == STEPS
