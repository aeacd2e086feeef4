"""`jarilab tune`: what is measured, shown, kept and forgotten."""

import json
from dataclasses import replace

import pytest
import torch

from helpers.command import command
from jarilab import api
from jarilab.attention import crossings, measuring
from jarilab.attention.crossings import Crossings


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The file of a person; where the fused kernel is always the faster one, and blocks as fast as the best."""
    times = {"explicit": 0.002, "fused": 0.001, "blocks": 0.001}
    monkeypatch.setattr(measuring, "in_turns", lambda calls: {name: times[name] for name in calls})
    few = [replace(series, lengths=(16, 600)) for series in measuring.plan() if series.dtype is torch.float32]
    monkeypatch.setattr(measuring, "plan", lambda: few)
    monkeypatch.setenv("JARILAB_TUNED", str(tmp_path / "mine" / "kernels.json"))
    monkeypatch.setattr(crossings, "_chosen", None)
    return tmp_path / "mine" / "kernels.json"


def test_it_shows_times_and_points_and_keeps_them(kept):
    said = command("tune", "--threads", "1")
    assert said.returncode == 0, said.stderr
    lines = [line.split() for line in said.stdout.splitlines()]
    assert "forward and backward with 1 thread of PyTorch; each kernel's time over the best one's:" in said.stdout
    assert ["fused_float32", "float32", "none", "16", "1.00", "ms", "2.00", "1.00"] in lines
    assert ["blocks_float32", "float32", "t5", "600", "1.00", "ms", "2.00", "1.00", "1.00"] in lines
    assert ["fused_float32", "16", "49"] in lines
    assert ["blocks_float32", "512", "512"] in lines
    assert ["flex", "not", "measured", "128"] in lines
    assert "no NVIDIA GPU here: only the processor was measured" in said.stdout
    assert f"kept in {kept}" in said.stdout
    assert "measuring attention with 1 thread of PyTorch" in said.stderr
    assert crossings.current() == Crossings(fused_float32=16)
    record = json.loads(kept.read_text())
    assert (record["threads"], record["machine"]["torch"]) == (1, torch.__version__)


def test_without_keeping_nothing_is_kept(kept):
    said = command("tune", "--threads", "1", "--dry-run", "--json")
    found = json.loads(said.stdout)
    assert found["crossings"]["fused_float32"] == 16
    assert found["kept"] is None
    assert not kept.parent.exists()
    assert "nothing was kept" in command("tune", "--threads", "1", "--dry-run").stdout


def test_it_is_forgotten(kept):
    crossings.keep(Crossings(flex=1))
    assert f"{kept} is removed" in command("tune", "--forget").stdout
    assert not kept.exists()
    assert "nothing was kept" in command("tune", "--forget").stdout


def test_what_cannot_be_is_told_before_anything_is_measured(kept, monkeypatch):
    monkeypatch.setattr(measuring, "plan", lambda: pytest.fail("measured"))
    assert "give one of them" in command("tune", "--forget", "--dry-run").stderr
    monkeypatch.setenv("JARILAB_TUNED", "off")
    said = command("tune", "--threads", "1")
    assert (said.returncode, said.stdout) == (2, "")
    assert "JARILAB_TUNED is off" in said.stderr


def test_a_folder_that_cannot_be_made_is_told(kept):
    kept.parent.write_text("no folder")
    said = command("tune", "--threads", "1")
    assert said.returncode == 2
    assert f"{kept.parent} cannot be made" in said.stderr


def test_it_is_a_function_too(kept):
    told = []
    found = api.tune(threads=1, dry_run=True, report=lambda done, count: told.append((done, count)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert len(found["rows"]) == 4
