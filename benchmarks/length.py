"""What does a longer sequence cost? Time and memory of encoding n tokens, recurrent against Transformer.

    pip install 'jarilab[dev]'                      for the figure, which matplotlib draws
    python benchmarks/length.py --out FOLDER     length.json and length.svg

A recurrent encoder reads one token after another: n steps, each of the same size, whose states are all it keeps. Time
and memory grow like n. In self-attention each of n tokens is held against each of n: the matrix of scores has n x n
entries in every head of every layer. Below some hundred tokens it is small beside the linear maps, which grow like n,
and the Transformer does all tokens in a few large products; beyond, each doubling of n makes the scores four times as
many. The explicit kernel writes them down, and training keeps the weights of every layer for the backward pass:
`scores_MB` is one such matrix, 4 H n^2 bytes. The fused kernel works them out block by block and keeps none, so its
memory grows like n; its time still grows like n x n.

Both encoders have 2 layers of width 256; 8 heads and sinusoids, or a GRU in both directions. One sequence, float32, one
thread. Each figure is of a process of its own: the memory is what its peak (`ru_maxrss`) rose by during the first call,
so that Python, PyTorch and the parameters do not count. A contender stops where the next length would pass --memory or
--seconds.

Measured 2026-11-21, PyTorch 2.13, one core of an Intel Xeon with AVX-512 BF16 and AMX that others used too, one round:
forward, the recurrent encoder is faster from some 500 tokens on than the explicit kernel and from some 1,500 on than
the fused one; with the backward pass it is slower than the fused one up to 4,096 at least. At 2,048 tokens that takes
605 MB (explicit), 174 (recurrent) and 89 (fused).
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import timing
import torch
from torch import Tensor

from jarilab.models.recurrent_encoder import RecurrentEncoder
from jarilab.models.stacks import Encoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions
from jarilab.training.determinism import deterministic

WIDTH, HEADS, LAYERS = 256, 8, 2
SHORTEST = 64
CONTENDERS = ("recurrent", "transformer, explicit", "transformer, fused")
MODES = ("forward", "forward and backward")
# Okabe and Ito's colours, which most people with a colour-vision deficiency tell apart.
COLOURS = dict(zip(CONTENDERS, ("#009E73", "#D55E00", "#0072B2"), strict=True))
MARKERS = dict(zip(CONTENDERS, ("o", "s", "^"), strict=True))


def encoder(contender: str) -> Callable[[Tensor], Tensor]:
    if contender == "recurrent":
        model = RecurrentEncoder(WIDTH, LAYERS, encoding="none", cell="gru", bidirectional=True, dropout=0.0)
        initialise(model, 1)
        return lambda x_1LD: model(x_1LD, Positions.sequence(x_1LD.shape[1]))[0]
    kernel = "explicit" if "explicit" in contender else "fused"
    transformer = Encoder(WIDTH, HEADS, LAYERS, kernel=kernel)
    initialise(transformer, 1)
    return transformer


def call_of(contender: str, mode: str) -> Callable[[int], object]:
    """A call that encodes so many tokens, and goes back through them if it is to."""
    encode = encoder(contender)

    def forward(length: int) -> object:
        with torch.no_grad():
            return encode(torch.randn(1, length, WIDTH))

    def both(length: int) -> object:
        x_1LD = torch.randn(1, length, WIDTH, requires_grad=True)
        return encode(x_1LD).square().mean().backward()

    return forward if mode == "forward" else both


def peak() -> float:
    """The most memory that this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_one(contender: str, mode: str, length: int, results: Connection) -> None:
    """Seconds of a call, and by how many MB the first one made the process grow."""
    call = call_of(contender, mode)
    call(8)
    gc.collect()
    before = peak()
    call(length)
    memory = peak() - before
    calls, begin = 0, time.process_time()
    while not calls or time.process_time() - begin < 0.2:
        call(length)
        calls += 1
    results.send(((time.process_time() - begin) / calls, memory))


def in_a_process(contender: str, mode: str, length: int) -> tuple[float, float] | None:
    """What `measure_one` sends from a process of its own; None where it died, of memory most likely."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=measure_one, args=(contender, mode, length, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return None
    finally:
        process.join()


def measure(mode: str, given: Any, table: timing.Table) -> None:
    running: list[str] = list(CONTENDERS)
    length = SHORTEST
    while running and length <= given.longest:
        found: dict[str, list[tuple[float, float]]] = {contender: [] for contender in running}
        for number in range(given.rounds):
            for contender in running[:: -1 if number % 2 else 1]:
                one = in_a_process(contender, mode, length)
                found[contender] += [] if one is None else [one]
        for contender, pairs in found.items():
            if not pairs:
                running.remove(contender)
                continue
            seconds, memory = (statistics.median(column) for column in zip(*pairs, strict=True))
            table.add(
                mode=mode,
                contender=contender,
                n=length,
                ms=round(1000 * seconds, 2),
                peak_MB=round(memory, 1),
                scores_MB=round(4 * HEADS * length**2 / 2**20, 1),
            )
            # Nothing here grows faster than n x n.
            if given.factor**2 * max(memory / given.memory, seconds / given.seconds) > 1:
                running.remove(contender)
        length *= given.factor


def draw(rows: list[timing.Row], out: Path) -> None:
    """Time above, memory below; both axes logarithmic, so that n is a slope of 1 and n x n one of 2."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(9, 7), layout="constrained")
    panels = figure.subplots(2, len(MODES), sharex=True, sharey="row", squeeze=False)
    for row, (quantity, label) in enumerate((("ms", "CPU time (ms)"), ("peak_MB", "peak memory (MB)"))):
        for column, mode in enumerate(MODES):
            panel = panels[row][column]
            for contender in CONTENDERS:
                mine = [r for r in rows if r["mode"] == mode and r["contender"] == contender and r[quantity] > 0]
                lengths, values = [r["n"] for r in mine], [r[quantity] for r in mine]
                panel.plot(lengths, values, color=COLOURS[contender], marker=MARKERS[contender], label=contender)
            if row:
                every = sorted({r["n"] for r in rows})
                scores = [4 * HEADS * n**2 / 2**20 for n in every]
                panel.plot(every, scores, color="0.6", linestyle="--", zorder=0, label="one matrix of scores, n × n")
            else:
                panel.set_title(mode)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.grid(color="0.9")
            panel.spines[["top", "right"]].set_visible(False)
            if row:
                panel.set_xlabel("tokens n")
            if not column:
                panel.set_ylabel(label)
    panels[1][0].legend(frameon=False)
    figure.savefig(out)


def main() -> None:
    parser = timing.arguments(__doc__, rounds=3)
    parser.add_argument("--memory", type=float, default=4096, help="MB that no process may pass (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="CPU-seconds of one call (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=2**17, help="tokens (default: %(default)s)")
    parser.add_argument("--factor", type=int, default=2, help="each length over the one before (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="a folder for length.json and length.svg")
    given = parser.parse_args()
    # Before the processes part, so that each need not import what this does.
    deterministic(threads=1)
    table = timing.Table(given.json)
    for mode in MODES:
        measure(mode, given, table)
    table.close()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "length.json").write_text(json.dumps({"rows": table.rows}, indent=1))
        draw(table.rows, given.out / "length.svg")


if __name__ == "__main__":
    main()
