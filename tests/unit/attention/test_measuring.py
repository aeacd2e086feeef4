"""Crossing points from times that are given; and, of a few tokens, from times that are measured."""

from dataclasses import replace

import pytest
import torch

from jarilab.attention import measuring
from jarilab.attention.crossings import PACKAGE
from jarilab.attention.measuring import Series, Timed, found, measured, plan

FUSED = Series("fused_float32", torch.float32, "none", (16, 32, 64, 128), ("explicit", "fused"))
BLOCKS = Series("blocks_float32", torch.float32, "t5", (128, 256, 512), ("explicit", "fused", "blocks"))


def rows(series, *seconds):
    """A row for each length, each with a time for each kernel."""
    return [
        Timed(series, keys, dict(zip(series.kernels, map(float, times), strict=True)))
        for keys, times in zip(series.lengths, seconds, strict=True)
    ]


@pytest.mark.parametrize(
    ("seconds", "point"),
    [
        ([(1, 2), (1, 1.5), (1.5, 1), (2, 1)], PACKAGE.fused_float32),  # the package's 49 lies between 32 and 64
        ([(2, 1), (2, 1), (2, 1), (2, 1)], 16),
        ([(1, 2), (2, 1), (2, 1), (2, 1)], 32),
        ([(1, 2), (1, 2), (1, 2), (2, 1)], 128),
        ([(1, 2), (1, 2), (1, 2), (1, 2)], 129),  # beyond what was measured
        ([(1, 2), (1, 2), (1, 1.3), (1.1, 1)], 128),
        ([(1, 2), (1, 2), (1, 1.02), (2, 1)], PACKAGE.fused_float32),  # not worth other bits
        ([(1, 2), (1, 2), (2, 1), (1, 1.2)], PACKAGE.fused_float32),  # one odd length is outvoted
    ],
)
def test_the_point_loses_the_least_time(seconds, point):
    assert found(rows(FUSED, *seconds)) == replace(PACKAGE, fused_float32=point)


def test_blocks_are_held_against_what_would_be_chosen_without_them():
    slow_fused = rows(FUSED, (1, 2), (1, 2), (1, 2), (1, 2))
    beside = rows(BLOCKS, (1, 4, 2), (1, 4, 2), (3, 4, 1))
    # Alone, the fused kernel is what blocks take over from at these lengths: they win everywhere.
    assert found(beside).blocks_float32 == 128
    assert found([*beside, *slow_fused]).blocks_float32 == found([*slow_fused, *beside]).blocks_float32
    far = found([*beside, *(replace(row, keys=10 * row.keys) for row in slow_fused)])
    assert (far.fused_float32, far.blocks_float32) == (1281, PACKAGE.blocks_float32)


def test_nothing_measured_is_the_package():
    assert found([]) == PACKAGE


def test_all_kernels_of_a_length_are_timed(monkeypatch):
    monkeypatch.setattr(measuring, "MOST", 1)
    monkeypatch.setattr(measuring, "TURN", 0.0)
    monkeypatch.setattr(measuring, "TOKENS", 8)
    half = replace(BLOCKS, dtype=torch.bfloat16, lengths=(8,), point="blocks_bfloat16")
    found_rows = list(measured([replace(FUSED, lengths=(4, 8)), half]))
    assert [(row.keys, set(row.seconds)) for row in found_rows] == [
        (4, {"explicit", "fused"}),
        (8, {"explicit", "fused"}),
        (8, {"explicit", "fused", "blocks"}),
    ]
    for row in found_rows:
        assert min(row.over_best.values()) == 1.0
        assert min(row.seconds.values()) > 0.0


def test_kernels_take_turns_and_the_median_is_told(monkeypatch):
    order, times = [], iter([0.01, 0.01, 1.0, 5.0, 3.0, 9.0, 2.0, 4.0])

    def timed(call, repeats):
        order.append(call())
        return next(times)

    monkeypatch.setattr(measuring, "_timed", timed)
    monkeypatch.setattr(measuring, "MOST", 3)
    told = measuring.in_turns({"a": lambda: "a", "b": lambda: "b"}, seconds=1e9)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert told == {"a": 2.0, "b": 4.0}


@pytest.mark.parametrize(("has_bfloat16", "has_gpu"), [(True, False), (False, False), (True, True)])
def test_what_this_machine_cannot_is_not_measured(monkeypatch, has_bfloat16, has_gpu):
    monkeypatch.setattr(measuring, "has_bfloat16", lambda device: has_bfloat16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    points = {series.point for series in plan()}
    assert {"fused_float32", "blocks_float32"} <= points
    assert ({"fused_bfloat16", "blocks_bfloat16"} <= points) is has_bfloat16
    assert ("flex" in points) is has_gpu
