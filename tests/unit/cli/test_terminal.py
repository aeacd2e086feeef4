"""Closed standard output and error: the work continues and its result is written."""

import contextlib
import io
import json
import os

import pytest

from jarilab.cli import main
from jarilab.cli.terminal import SafeStream, open_in_browser, say
from jarilab.training import loop
from jarilab.training.progress import TrainingProgress

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


def test_text_of_other_people_cannot_drive_the_terminal():
    out = io.StringIO()
    SafeStream(out).write("a\x1b]0;x\x07\u202e\x9b31m c\rd\r\n\t한국 👨\u200d👩 \x0c\n")
    assert out.getvalue() == "a\\u001b]0;x\\u0007\\u202e\\u009b31m c\\u000dd\r\n\t한국 👨\u200d👩 \x0c\n"
    assert json.loads(f'"{out.getvalue()[:7]}"') == "a\x1b"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_bars_still_draw_on_a_terminal():
    out = Terminal()
    SafeStream(out, is_stderr=True).drawing.write("\r\x1b[2K\x1b[?25l\x1b[31mhalf\x1b]0;owned\x07")
    assert out.getvalue() == "\r\x1b[2K\x1b[?25l\x1b[31mhalf\\u001b]0;owned\\u0007"


def test_notices_on_a_terminal_are_escaped():
    out = Terminal()
    SafeStream(out, is_stderr=True).write("jarilab: \x1b[2Jname\r\n")
    assert out.getvalue() == "jarilab: \\u001b[2Jname\r\n"


def test_the_name_of_a_run_cannot_drive_the_terminal_from_its_bar(monkeypatch):
    out = Terminal()
    monkeypatch.setattr("sys.stderr", SafeStream(out, is_stderr=True))
    row = {"step": 1, "steps": 2, "loss": 1.0, "examples": 8}
    with TrainingProgress() as progress:
        progress.update("run\x1b[2J\x1b[H", row)
    drawn = out.getvalue()
    assert "run" in drawn
    assert "\x1b[?25l" in drawn
    assert "\x1b[2J" not in drawn
    assert "\x1b[H" not in drawn


def test_a_file_of_messages_has_no_escapes():
    out = io.StringIO()
    SafeStream(out, is_stderr=True).write("\x1b[31mred\x1b[0m")
    assert "\x1b" not in out.getvalue()


def test_results_of_a_command_are_escaped(capsys, monkeypatch):
    from jarilab.cli.commands import runs

    monkeypatch.setattr(runs, "run", lambda _: print("name\x1b[2J"))
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "name\\u001b[2J\n"


def test_a_page_that_no_browser_opened_is_named(capsys, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    open_in_browser("file:///runs/why/report.html")
    assert "found none; open file:///runs/why/report.html yourself" in capsys.readouterr().err
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    open_in_browser("file:///runs/why/report.html")
    assert capsys.readouterr().err == ""
