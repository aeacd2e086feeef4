"""The machine, versions and execution of a run, on which the bits of its result depend."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from jarilab._version import __version__
from jarilab.core.devices import cpu_info
from jarilab.core.errors import shortened
from jarilab.core.private_paths import without_home

DECIDING = ("jari", "python", "torch", "threads", "cpu", "capability")
"""Fields of the environment that decide the bits of a result."""
EXECUTION_DEFAULTS = {
    "device": "cpu",
    "ranks": 1,
    "accumulate": 1,
    "compile": False,
    "shard": False,
}
"""Fields of the execution that decide them, too, with the values that a record without them means."""


def environment_record() -> dict[str, Any]:
    """The environment of this process, as run.json records it."""
    return {
        "jari": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **cpu_info(),
        "system": platform.platform(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": typed_command(),
    }


def what_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of two records of an environment that change bits, one sentence each."""
    before, now = {**EXECUTION_DEFAULTS, **before}, {**EXECUTION_DEFAULTS, **now}
    deciding = [key for key in (*DECIDING, *EXECUTION_DEFAULTS) if key in before]
    changed = [key for key in deciding if before[key] != now.get(key)]
    return [f"{key} was {shortened(str(before[key]))}, is {now.get(key)}" for key in changed]


def recorded_command(environment: Mapping[str, Any]) -> str:
    """The command of a run, quoted for a shell, or `jarilab train` if what is recorded trains no model.

    Whoever wrote the run chose this text: pasted as it stands it could start another program, or overwrite a file.
    """
    text = str(environment.get("command", ""))
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    trains = words[:1] == ["jarilab"] and words[1:2] in (["train"], ["compare"])
    is_plain = text.isprintable() and shlex.join(words) == text
    return text if trains and is_plain and "--trust-code" not in words else "jarilab train"


def typed_command() -> str:
    """The command of this process, to be typed again in this folder."""
    program, *words = sys.argv
    # A trial of a comparison runs in a child with another program.
    is_jarilab = Path(program).name in ("jarilab", "__main__.py", "supervised_child.py")
    words = [*(["jarilab"] if is_jarilab else ["python", program]), *words]
    return shlex.join(map(without_home, words))
