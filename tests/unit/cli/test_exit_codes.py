"""How the command line ends: the exit code and the message for each kind of error."""

import errno
import os
import signal
from typing import Any

import pytest
import torch

from helpers.command import command
from jarilab.cli import commands
from jarilab.core.errors import UserError
from jarilab.runs.signals import Interrupted


def ended(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> Any:
    """What `jarilab tasks` ends with if it raises this."""

    def run(_: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(commands.module("tasks"), "run", run)
    return command("tasks")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (None, 0, ""),
        (UserError("expected this, got that; do this"), 2, "jarilab: expected this, got that; do this\n"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run.json"),
            2,
            "jarilab: run.json: No space left on device\n",
        ),
        (MemoryError(), 2, "expected enough memory; got: MemoryError; use shorter inputs"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "got: DefaultCPUAllocator: can't allocate"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), 2, "got: CUDA out of memory. Tried; use"),
        (KeyboardInterrupt(), 130, ""),
        (Interrupted(signal.SIGINT), 130, "run the same command again to continue"),
        (Interrupted(signal.SIGTERM), 143, "after writing a checkpoint"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_its_exit_code_and_message(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, code: int, message: str
) -> None:
    said = ended(monkeypatch, error)
    assert (said.returncode, said.stdout) == (code, "")
    assert said.stderr == message or (message and not message.endswith("\n") and message in said.stderr)


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in (ZeroDivisionError(), RuntimeError("shapes differ")):
        with pytest.raises(type(fault)):
            ended(monkeypatch, fault)


@pytest.mark.parametrize("text", ["ab cd " * 100, "it's " + "ab cd " * 100, "x y\n" * 100, "\x1b" * 300 + " 'é " * 80])
@pytest.mark.parametrize(
    "words", [["predict"], ["runs"], ["train", "copy", "--encoding"], ["train", "copy", "--set"], ["encodings"]]
)
def test_a_message_quotes_little_of_a_long_argument(words: list[str], text: str) -> None:
    said = command(*words, text)
    message = said.stderr.replace("\\n", "\n")
    assert said.returncode == 2
    for part in ("ab cd ", "x y\n", "é '", "\\x1b"):
        assert message.count(part) <= 2 * 200 / len(part.encode().decode("unicode_escape")), message
    assert " ... " in message
