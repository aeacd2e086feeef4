"""What training asks of the allocator."""

import argparse
import ctypes
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from helpers.runs import tiny
from jarilab.cli.commands import evaluate, predict
from jarilab.training import loop, memory
from jarilab.training.memory import grow_onednn_cache

ALLOCATES = """
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
    return [torch.ones({size}) for _ in range({arrays})]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def faults_of_a_step():
    before = faults()
    step()
    return faults() - before

# The least of many: how soon the holes of large arrays are large enough for them depends on addresses drawn by chance.
print(min(faults_of_a_step() for _ in range(25)), flush=True)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
@pytest.mark.parametrize(
    ("arrays", "size"), [(16, 2**20), pytest.param(2, 2**24, marks=pytest.mark.long)]
)  # of 4 and of 64 MiB
def test_a_step_gets_the_memory_that_the_one_before_freed(arrays, size):
    """The child of a process keeps it, which ends before its parent begins."""
    steps = ALLOCATES.format(arrays=arrays, size=size)
    said = subprocess.run([sys.executable, "-c", steps], capture_output=True, text=True, check=True).stdout
    kept, handed_back = map(int, said.split())
    assert handed_back > 100, "so that there is something to keep, whatever the size of a page"
    assert kept < handed_back / 20


@pytest.fixture
def allocator(monkeypatch):
    """Of a process whose environment says nothing of it, on Linux: what it is told."""
    told = []
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    library = SimpleNamespace(mallopt=lambda parameter, value: told.append((parameter, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    return told


@pytest.mark.parametrize(
    ("name", "value", "asks"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072", False),
        ("MALLOC_MMAP_THRESHOLD_", "131072", False),
        ("MALLOC_MMAP_MAX_", "65536", False),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=4:glibc.malloc.mmap_max=65536", False),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=4", True),
        ("MALLOC_ARENA_MAX", "2", True),
    ],
)
def test_what_the_environment_says_of_memory_is_left_alone(monkeypatch, allocator, name, value, asks):
    monkeypatch.setenv(name, value)
    memory.keep_freed_memory()
    assert bool(allocator) is asks


def test_a_library_that_cannot_be_told_is_left_alone(monkeypatch, allocator):
    opened = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: opened.append(name) or SimpleNamespace())  # musl
    memory.keep_freed_memory()
    assert opened == [None]


@pytest.mark.parametrize("name", ["keep_freed_memory", "grow_onednn_cache"])
def test_training_asks_for_it(tmp_path, monkeypatch, name):
    asked = []
    monkeypatch.setattr(loop, name, lambda: asked.append(True))
    monkeypatch.setattr(loop, "TrainingState", None)
    with pytest.raises(TypeError):  # right after it
        loop.train(tiny(), tmp_path / "run")
    assert asked


@pytest.mark.parametrize("command", [evaluate, predict])
def test_commands_that_answer_ask_for_memory_too(monkeypatch, command):
    asked = []
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: asked.append(True))
    with pytest.raises(AttributeError):  # right after it: of no run
        command.run(argparse.Namespace())
    assert asked


MULTIPLIES = """
import torch
from jarilab.training.memory import grow_onednn_cache

grow_onednn_cache()
for number in range(2):
    print("round", number, flush=True)
    for rows in range(1, 1101):  # more than oneDNN would keep
        torch.ones(rows, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)
"""


def test_a_step_gets_the_kernels_that_the_one_before_had_made():
    environment = os.environ | {"ONEDNN_VERBOSE": "profile_create"}
    environment.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)  # training in this process may have set it
    said = subprocess.run(
        [sys.executable, "-c", MULTIPLIES], capture_output=True, text=True, check=True, env=environment
    ).stdout
    first, second = said.split("round 1")
    made = first.count("cache_miss")
    if made < 1024:
        pytest.skip("PyTorch does not multiply by oneDNN in bfloat16 on this processor")
    assert "cache_miss" not in second


@pytest.mark.parametrize("name", ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"])
def test_what_the_environment_says_of_kernels_is_left_alone(monkeypatch, name):
    """By either name; oneDNN goes by the first where both are set."""
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    monkeypatch.setenv(name, "7")
    grow_onednn_cache()
    assert {key: value for key, value in os.environ.items() if "PRIMITIVE_CACHE" in key} == {name: "7"}
