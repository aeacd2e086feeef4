"""Folders that one of the processes that run the tests makes, and all of them read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def make_once(request: pytest.FixtureRequest, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of this name that holds what `make` writes into it.

    Tests read the folder and never change it: with pytest-xdist, the first process that asks makes it for all.
    """
    shared = request.getfixturevalue("tmp_path_factory").getbasetemp()
    if hasattr(request.config, "workerinput"):  # a process of pytest-xdist, whose own folder is in that of all
        shared = shared.parent
    folder, made = shared / name, shared / f"{name}.made"
    with FileLock(shared / f"{name}.lock"):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed or was killed on its way
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
