"""Hugging Face folders from strangers: opened or refused, never executed, bounded in memory and time."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drills.hostile_folders import ATTACKS, BASES, Findings, table

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@pytest.mark.long
def test_hostile_folders_are_opened_or_refused() -> None:
    words = [sys.executable, "-m", "drills.hostile_folders", "--count", "40", "--seed", "7"]
    said = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent.parent, env=dict(os.environ))
    assert said.returncode == 0, said.stdout
    assert re.search(r"executed, connected or started a process \| 0", said.stdout)


def test_a_finding_is_counted_in_the_table() -> None:
    findings = Findings()
    findings.counts.update({"executed": 1, "traceback": 2, "read": 3})
    lines = table(findings, 6).splitlines()
    assert "| executed, connected or started a process | 1 |" in lines
    assert "| tracebacks; ended by a signal | 2; 0 |" in lines
    assert len(ATTACKS) >= 20
    assert len(BASES) >= 15
