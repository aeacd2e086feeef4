"""What decides the bits of a result beside the experiment: the machine, the versions, how it was computed."""

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

DECIDING = ("jari", "python", "torch", "threads", "cpu", "capability")
"""What of the environment decides the bits of a result."""
COMPUTED = {"device": "cpu", "ranks": 1, "accumulate": 1, "compile": False, "shard": False}
"""The same of how a run was computed, where its record does not say: in one process, on the processor."""


def environment_record() -> dict[str, Any]:
    """What else decides the bits of a result."""
    return {
        "jari": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **cpu_info(),
        "system": platform.platform(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": _command(),
    }


def what_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of two such records decides bits and differs, as a person reads it."""
    before, now = {**COMPUTED, **before}, {**COMPUTED, **now}
    deciding = [key for key in (*DECIDING, *COMPUTED) if key in before]
    changed = [key for key in deciding if before[key] != now.get(key)]
    return [f"{key} was {before[key]}, is {now.get(key)}" for key in changed]


def _command() -> str:
    """What was typed, so that it can be typed again."""
    program, *words = sys.argv
    is_ours = Path(program).name in ("jarilab", "__main__.py")
    return shlex.join([*(["jarilab"] if is_ours else ["python", program]), *words])
