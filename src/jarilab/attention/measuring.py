"""Which kernel is the fastest here at which length, and from which length on to take which: what `jarilab tune` does.

Kernels take turns, A B C C B A, so that a busy neighbour hits all alike; what is told is the median of the rounds.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from jarilab.attention.call import AttentionCall
from jarilab.attention.crossings import PACKAGE, Crossings
from jarilab.attention.geometry import geometry_of
from jarilab.attention.kernels import Kernel, attend
from jarilab.devices import CPU, has_bfloat16
from jarilab.encodings import compose
from jarilab.encodings.base import Site
from jarilab.masks import Mask
from jarilab.positions import Positions

HEADS, WIDTH = 8, 64
TOKENS = 1024
"""In a batch, where one row has no more."""
WORTH = 0.05
"""The share of time that another point than the package's must save where they choose differently: less may be chance,
and bits depend on it."""
TURN = 0.01
"""Seconds for which a kernel that is faster is called again."""
SECONDS = 1.2
"""Of all rounds of a length."""
FEWEST, MOST = 3, 15
"""Rounds."""


@dataclass(frozen=True)
class Series:
    """Lengths that one crossing point is measured at. point: its name. added: the spec of what is added to the scores.
    kernels: those that may be taken; the last one is that which takes over."""

    point: str
    dtype: torch.dtype
    added: str
    lengths: Sequence[int]
    kernels: tuple[Kernel, ...]
    device: torch.device = CPU


@dataclass(frozen=True)
class Timed:
    """One length of a series. seconds: of each kernel, forward and backward."""

    series: Series
    keys: int
    seconds: Mapping[str, float]

    @property
    def over_best(self) -> dict[str, float]:
        best = min(self.seconds.values())
        return {kernel: seconds / best for kernel, seconds in self.seconds.items()}

    def as_dict(self) -> dict[str, object]:
        series = self.series
        return {
            "point": series.point,
            "device": series.device.type,
            "dtype": str(series.dtype).removeprefix("torch."),
            "added": series.added,
            "keys": self.keys,
            "milliseconds": {name: 1000 * seconds for name, seconds in self.seconds.items()},
            "over_best": self.over_best,
        }


def plan(*, bare: str = "none", biased: str = "t5") -> list[Series]:
    """What is measured on this machine. bare, biased: encodings, of which the second adds to the scores."""
    whole: tuple[Kernel, ...] = ("explicit", "fused")
    every: tuple[Kernel, ...] = (*whole, "blocks")
    short = (16, 24, 32, 48, 64, 96, 128, 256)
    found = [
        Series("fused_float32", torch.float32, bare, short, whole),
        Series("blocks_float32", torch.float32, biased, (128, 256, 384, 512, 768, 1024), every),
    ]
    if has_bfloat16(CPU):
        half, long = torch.bfloat16, (256, 512, 768, 1024, 1536)
        found.append(Series("fused_bfloat16", half, bare, (32, 64, 128, 256, 512, 1024), whole))
        # There blocks are taken with and without anything added.
        found += [Series("blocks_bfloat16", half, spec, long, every) for spec in (bare, biased)]
    if torch.cuda.is_available():
        cuda, lengths = torch.device("cuda"), (32, 64, 128, 256, 512, 1024)
        kernels: tuple[Kernel, ...] = ("fused", "flex")
        found.append(Series("flex", torch.bfloat16, biased, lengths, kernels, cuda))
    return found


def measured(all_series: Sequence[Series]) -> Iterator[Timed]:
    """Each length of each series, one after the other. Gradients are those of a training."""
    for series in all_series:
        for keys in series.lengths:
            calls = {kernel: _contender(series, kernel, keys) for kernel in series.kernels}
            yield Timed(series, keys, in_turns(calls))


def found(rows: Sequence[Timed]) -> Crossings:
    """The points that these times speak for; the package's where nothing else saves enough, or nothing was measured."""
    crossings = PACKAGE
    points = list(dict.fromkeys(row.series.point for row in rows))
    # What blocks are held against is chosen by where the fused kernel begins.
    for point in sorted(points, key=lambda name: not name.startswith("fused")):
        of_point = [row for row in rows if row.series.point == point]
        crossings = replace(crossings, **{point: _best(of_point, crossings)})
    return crossings


def _best(rows: Sequence[Timed], crossings: Crossings) -> int:
    """The point of one kernel by which the least time is lost."""
    own = asdict(crossings)[rows[0].series.point]
    lengths = sorted({row.keys for row in rows})
    # Beyond what was measured, the kernel that takes over needs no memory of queries times keys.
    points = (*lengths, lengths[-1] + 1)
    lost = {point: _lost(rows, point, crossings) for point in points}
    best = min(points, key=lambda point: lost[point])
    between = [row for row in rows if min(own, best) <= row.keys < max(own, best)]
    saved = _lost(between, own, crossings) - _lost(between, best, crossings)
    return best if saved > WORTH * len(between) else own


def _lost(rows: Sequence[Timed], point: int, crossings: Crossings) -> float:
    return math.fsum(_lost_at(row, point, crossings) for row in rows)


def _lost_at(row: Timed, point: int, crossings: Crossings) -> float:
    """The logarithm of how much longer than the fastest kernel the one takes that is chosen with this point."""
    *others, last = row.series.kernels
    chosen = last
    if row.keys < point:
        short = row.keys < crossings.fused(row.series.dtype)
        chosen = others[0] if short else others[-1]
    return math.log(row.over_best[chosen])


def _contender(series: Series, kernel: Kernel, keys: int) -> Callable[[], object]:
    """An attention, forward and backward, with what follows from its places."""
    device, bare = series.device, series.kernels[-1] == "fused"
    site = Site(HEADS * WIDTH, HEADS, WIDTH, WIDTH, causal=not bare)
    encoding = compose.build(series.added, site).to(device)
    batch = max(1, TOKENS // keys)
    positions = Positions.sequence(keys, device=device)
    # Up to a quarter of padding, as a batch of sequences has; causal where sequences are long, as language models are.
    lengths_B = keys - torch.arange(batch) * (keys // 4) // batch
    padding_BK = torch.arange(keys) < lengths_B.unsqueeze(-1)
    mask = Mask(keys=padding_BK) if bare else Mask(causal=True)
    size = (batch, HEADS, keys, WIDTH)
    options = {"dtype": series.dtype, "device": device}
    q_BHQE, k_BHKE, v_BHKW = (torch.randn(size, requires_grad=True, **options) for _ in range(3))
    direction_BHQW = torch.randn(size, **options)
    inputs = [q_BHQE, k_BHKE, v_BHKW, *encoding.parameters()]

    def run() -> object:
        with torch.autocast(device.type, torch.bfloat16, enabled=series.dtype is torch.bfloat16):
            lower = kernel in ("blocks", "flex")
            geometry = geometry_of(encoding, positions, positions, mask, lower=lower)
            output = attend(AttentionCall(q_BHQE, k_BHKE, v_BHKW, geometry, WIDTH**-0.5), kernel)
        gradients = torch.autograd.grad(output, inputs, direction_BHQW, allow_unused=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return gradients

    return run


def in_turns(
    calls: Mapping[str, Callable[[], object]], seconds: float = SECONDS
) -> dict[str, float]:
    """Seconds of a call of each, the median of some rounds."""
    repeats = {}
    for name, call in calls.items():
        call()  # memory and caches
        repeats[name] = max(1, round(TURN / max(_timed(call, 1), 1e-9)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    clock = _clock()
    begin = clock()
    for number in range(MOST):
        if number >= FEWEST and clock() - begin > seconds:
            break
        for name in list(calls)[:: -1 if number % 2 else 1]:
            times[name].append(_timed(calls[name], repeats[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def _timed(call: Callable[[], object], repeats: int) -> float:
    clock = _clock()
    begin = clock()
    for _ in range(repeats):
        call()
    return (clock() - begin) / repeats


def _clock() -> Callable[[], float]:
    """Of one thread the time that it computes, which a busy neighbour does not lengthen; of several the time that
    passes, since they wait for each other. So does a GPU."""
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return time.process_time if alone else time.perf_counter
