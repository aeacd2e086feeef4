"""What long work says, on a terminal and where there is none."""

import io
import re
import time

import pytest
from rich.console import Console

from jarilab.training import progress
from jarilab.training.progress import CountProgress, TrainingProgress, working


def row(step: int, examples: int, **others: object) -> dict[str, object]:
    return {"step": step, "steps": 4, "examples": examples, "loss": 0.5, **others}


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


@pytest.mark.parametrize(
    ("counted", "rate", "left"), [({}, "8 examples/s", "2 s"), ({"tokens": 0}, "256 tokens/s", "2 s")]
)
def test_a_rate_is_told_in_tokens_where_they_are_counted(capsys, clock, counted, rate, left):
    with TrainingProgress() as shown:
        for step in (1, 2):
            tokens = dict.fromkeys(counted, 256 * step)
            shown.update("run", row(step, 8 * step, **tokens, measured="held-out loss 0.4"))
            clock.now += 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "run: step 1/4  loss 0.5000  held-out loss 0.4"
    assert second == f"run: step 2/4  loss 0.5000  held-out loss 0.4  {rate}  {left} left"


def test_several_trainings_say_how_many_are_done_and_wait(capsys, clock):
    with TrainingProgress(["a-1", "b-1", "c-1"]) as shown:
        shown.update("a-1", row(4, 8, measured="x"))
        clock.now += 1
        shown.update("b-1", row(2, 8, measured="x"))
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("  (1 of 3 trained, 2 waiting)")
    assert second.endswith("  (1 of 3 trained, 1 waiting)")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal on standard error: what is drawn on it."""
    drawn = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=drawn, force_terminal=True, width=120))
    return drawn


def plain(drawn: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())


def test_a_terminal_shows_those_that_wait_and_all_together(terminal, clock):
    with TrainingProgress(["a-1", "b-1"]) as shown:
        shown.update("a-1", row(2, 8))
    text = plain(terminal)
    assert re.search(r"all trials .* 0 of 2 trained, 1 waiting", text)
    assert re.search(r"a-1 .* step 2/4  loss 0.5000", text)
    assert re.search(r"b-1 .* waiting", text)


def test_one_training_shows_one_bar(terminal, clock):
    with TrainingProgress() as shown:
        shown.update("run", row(2, 8))
    assert "all trials" not in plain(terminal)
    assert "step 2/4" in plain(terminal)


def test_what_takes_longer_than_a_moment_is_said(monkeypatch, terminal):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.01)
    with working("preparing the data of text"):
        until_said(lambda: "preparing the data of text ..." in plain(terminal))
        assert plain(terminal).count("preparing the data of text ...") == 1, "once, however long it takes"


def test_without_a_terminal_it_is_a_plain_line(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.01)
    with working("measuring runs/add") as under_way:
        under_way._timer.join(10)
    said = capsys.readouterr().err
    assert said == "jarilab: measuring runs/add ...\n"


def test_names_are_escaped(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    with CountProgress("ev\x1b[31mil\n", 2) as counted:
        counted.update(1)
    assert capsys.readouterr().err.startswith("ev\\x1b[31mil\\n: 1 of 2 examples")
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.01)
    with working("opening ev\x1bil\n") as under_way:
        under_way._timer.join(10)
    assert capsys.readouterr().err == "jarilab: opening ev\\x1bil\\n ...\n"


def test_what_is_quick_is_not_told(terminal, capsys):
    with working("opening runs/add") as wait:
        wait.end()
        wait.end()
    assert terminal.getvalue() == capsys.readouterr().err == ""


def until_said(said) -> None:
    end = time.monotonic() + 10
    while not said() and time.monotonic() < end:
        time.sleep(0.01)
    assert said()
