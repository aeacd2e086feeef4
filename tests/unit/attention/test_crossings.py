"""Lengths at which attention changes its kernel: written, kept for a machine, and used."""

import json
import os

import pytest
import torch

import jarilab
from jarilab.attention import crossings, kernels
from jarilab.attention.crossings import PACKAGE, Crossings, using
from jarilab.errors import UserError
from jarilab.masks import Mask


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The file of a person, and a process that has read nothing yet."""
    path = tmp_path / "jarilab" / "kernels.json"
    monkeypatch.setenv("JARILAB_TUNED", str(path))
    monkeypatch.setattr(crossings, "_chosen", None)
    monkeypatch.setattr(crossings, "_told", set())
    return path


def test_they_are_read_as_they_are_written():
    mine = Crossings(blocks_float32=0, flex=10**9)
    assert Crossings.read(str(mine)) == mine
    assert Crossings.read("blocks_float32=0, flex=1000000000") == mine
    assert Crossings.read("package") == PACKAGE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block_float32=1", "unknown crossing point 'block_float32'; did you mean 'blocks_float32'"),
        ("flex", "crossings: flex: expected a number of keys: .*got ''"),
        ("flex=-1", "crossings: flex: expected a number of keys: .*got '?-1"),
        ("flex=x", "crossings: flex: expected a number of keys: .*got 'x'"),
        ("", "unknown crossing point ''"),
    ],
)
def test_what_they_cannot_be(text, message):
    with pytest.raises(UserError, match=message):
        Crossings.read(text)


def test_what_is_kept_is_used_until_it_is_forgotten(kept):
    assert crossings.current() == PACKAGE
    mine = Crossings(blocks_float32=7)
    assert crossings.keep(mine) == kept
    assert crossings.current() == mine
    with using(PACKAGE):
        assert crossings.current() == PACKAGE
    assert crossings.current() == mine
    assert crossings.forget() == kept
    assert crossings.current() == PACKAGE
    assert crossings.forget() is None


def test_it_can_be_switched_off(kept, monkeypatch):
    crossings.keep(Crossings(flex=1))
    monkeypatch.setenv("JARILAB_TUNED", "off")
    assert crossings.of_this_machine() == PACKAGE
    with pytest.raises(UserError, match="JARILAB_TUNED is off, so that no crossing points are kept; unset it"):
        crossings.keep(PACKAGE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record["machine"].update(torch="1.0"), "was measured elsewhere (torch was 1.0, is "),
        (lambda record: record["machine"].update(cpu="Z80"), "was measured elsewhere (cpu was Z80, is "),
        (lambda record: record.pop("machine"), "machine is missing"),
        (lambda record: record["crossings"].update(flex=-1), "flex: expected a number of keys"),
        (lambda record: record["crossings"].update(flex="8"), "crossings: "),
        (lambda record: record["crossings"].update(other=1), "unknown crossing point 'other'"),
        (lambda record: record.update(format=9), "format: "),
    ],
)
def test_what_is_of_another_machine_or_damaged_is_told_once_and_not_used(kept, capsys, change, message):
    crossings.keep(Crossings(flex=1))
    record = json.loads(kept.read_text())
    change(record)
    kept.write_text(json.dumps(record))
    assert crossings.of_this_machine() == crossings.of_this_machine() == PACKAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert f"{kept}" in line
    assert line.endswith("`jarilab tune` measures them anew, `jarilab tune --forget` removes the file")


@pytest.mark.parametrize("held", ["{", "[]", "null", "", '{"format": 1e999}', "\0"])
def test_a_broken_file_is_no_traceback(kept, capsys, held):
    kept.parent.mkdir()
    kept.write_text(held)
    assert crossings.of_this_machine() == PACKAGE
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert crossings.forget() == kept


def test_a_link_and_a_fifo_are_not_followed(kept, capsys):
    kept.parent.mkdir()
    os.mkfifo(kept)
    assert crossings.of_this_machine() == PACKAGE
    kept.unlink()
    kept.symlink_to("/dev/zero")
    assert crossings.of_this_machine() == PACKAGE
    assert "is missing or no plain file" in capsys.readouterr().err


def test_those_of_another_gpu_are_not_used(kept, capsys, monkeypatch):
    monkeypatch.setattr(crossings, "gpu_here", lambda: "GPU of then")
    crossings.keep(Crossings(flex=1))
    monkeypatch.setattr(crossings, "gpu_here", lambda: None)  # none is visible: what is of the processor counts
    assert crossings.of_this_machine().flex == 1
    monkeypatch.setattr(crossings, "gpu_here", lambda: "GPU of now")
    assert crossings.of_this_machine() == PACKAGE
    assert "gpu was GPU of then, is GPU of now" in capsys.readouterr().err


ABSURD = [Crossings(*[0] * 5), Crossings(*[10**9] * 5), Crossings(fused_float32=0, blocks_float32=10**9, flex=0)]


@pytest.mark.parametrize("points", ABSURD, ids=["0", "10**9", "fused"])
@pytest.mark.parametrize("encoding", ["none", "t5", "shaw"])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_with_absurd_points_attention_is_what_its_definition_says(points, encoding, length):
    """Forward and gradient, also of a single token and of none; hidden, dropped by nothing, and in bfloat16."""
    found = {}
    for kernel in ("definition", "auto"):
        torch.manual_seed(1)
        attention = jarilab.Attention(8, 2, encoding=encoding, causal=True, kernel=kernel)
        x = torch.randn(2, length, 8, requires_grad=True)
        with using(points):
            for mask in (Mask(causal=True), Mask(keys=torch.arange(length) < torch.tensor([[length], [3]]))):
                output = attention(x, mask=mask)
                output.sum().backward()
            found[kernel] = output, x.grad
            with torch.autocast("cpu", torch.bfloat16):
                assert attention(x, mask=mask).isfinite().all()
    for mine, theirs in zip(found["auto"], found["definition"], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_the_points_decide_which_kernel_is_chosen():
    x = torch.randn(7, 9, 8)  # of so many queries and scores that the length decides
    attention = jarilab.Attention(8, 2, encoding="t5")
    chosen = {}
    for name, points in {
        "explicit": PACKAGE,
        "fused": Crossings(fused_float32=9),
        "blocks": Crossings(fused_float32=9, blocks_float32=9),
    }.items():
        with using(points), jarilab.record(attention) as tape:
            attention(x)
        (chosen[name],) = tape.kernels().values()
    assert chosen == {name: name for name in chosen}
    with using(Crossings(fused_float32=7)):
        assert kernels.current().fused(torch.float64) == 1
