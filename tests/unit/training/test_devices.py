"""The tests of `apart/test_devices.py`, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize("marked", ["not long", "long"])
def test_everything_runs_on_an_accelerator(marked):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "APART": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", marked, str(TESTS / "apart")]
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-6000:]
