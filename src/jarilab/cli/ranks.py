"""Which of several processes, as torchrun starts them, this one is; known without PyTorch."""

from __future__ import annotations

import os


def is_one_of_several() -> bool:
    """Whether torchrun started this process beside others."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def speaks() -> bool:
    """Whether it is the one of its machine that says things."""
    return not is_one_of_several() or os.environ.get("LOCAL_RANK", "0") == "0"


def is_first() -> bool:
    """Whether it is the one of all that gives the result."""
    return not is_one_of_several() or os.environ.get("RANK", "0") == "0"
