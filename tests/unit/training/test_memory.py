"""What training asks of the allocator."""

import platform
import subprocess
import sys

import pytest

from helpers.runs import tiny
from jarilab.training import loop

STEPS = """
import ctypes, os, resource
import torch
from jarilab.training.memory import keep_freed_memory

# What glibc begins with, and moves on from by what it happened to see: trim and mmap thresholds of 128 KiB.
for parameter in (-1, -3):
    assert ctypes.CDLL(None).mallopt(parameter, 128 * 2**10)
child = os.fork()
if not child:
    keep_freed_memory()
else:
    os.waitpid(child, 0)

def step():
    return [torch.ones(2**20) for _ in range(16)]  # 64 MiB, in arrays of four

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    step()
before = faults()
for _ in range(5):
    step()
print((faults() - before) // 5, flush=True)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_a_step_gets_the_memory_that_the_one_before_freed():
    """The child of a process keeps it, which ends before its parent begins."""
    said = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True).stdout
    kept, handed_back = map(int, said.split())
    assert handed_back > 100, "so that there is something to keep, whatever the size of a page"
    assert kept < handed_back / 20


def test_training_asks_for_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(loop, "keep_freed_memory", lambda: asked.append(True))
    monkeypatch.setattr(loop, "TrainingState", None)
    with pytest.raises(TypeError):  # right after it
        loop.train(tiny(), tmp_path / "run")
    assert asked
