"""What does an encoding cost on a long sequence, in time and in memory?

Self-attention alone, causal, one row of 8 heads of 64, forward and backward, one thread; each contender beside the
attention without an encoding by PyTorch's fused kernel, which holds nothing of Q x K. `auto` is what a model takes;
`before` is what it took without kernel=blocks: the fused kernel with a written bias, or the explicit one where weights
are needed or dropped. Memory is what the peak of a process of its own rises by during its first call, queries, keys and
values and their gradients included.

    python benchmarks/long.py --lengths 1024,4096

The figures are in docs/results/long.md.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import timing
import torch

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.kernels import attend, is_blockwise
from jarilab.encodings import compose
from jarilab.encodings.base import Site
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask
from jarilab.training.determinism import deterministic

HEADS, WIDTH = 8, 64
ENCODINGS = ("none", "rotary", "alibi", "t5", "kerple", "fire", "shaw:values=false", "shaw", "transformer_xl")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FUSED = "none, fused"


def contender(spec: str, way: str, dtype: torch.dtype, dropout: float, length: int) -> Callable[[], object]:
    """An attention, forward and backward, all that follows from its places included."""
    encoding = compose.build(spec, Site(HEADS * WIDTH, HEADS, WIDTH, WIDTH, causal=True))
    pos, mask = Positions.sequence(length), Mask(causal=True)
    size = (1, HEADS, length, WIDTH)
    q, k, v = (torch.randn(size, dtype=dtype, requires_grad=True) for _ in range(3))
    direction = torch.randn(size, dtype=dtype)

    def run() -> object:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            blockwise = way == "auto" and is_blockwise("auto", encoding.hooks, pos, pos, mask, dropout)
            geometry = geometry_of(encoding, pos, pos, mask, blockwise=blockwise)
            turned = [q, k]
            if "rotate" in encoding.hooks:
                turned = [encoding.rotate(x, geometry.q_rotation) for x in turned]
            call = AttentionCall(turned[0], turned[1], v, geometry, WIDTH**-0.5, dropout)
            whole = "explicit" if "values" in encoding.hooks or dropout else "fused"
            output = attend(call, "auto" if way == "auto" else whole)
        inputs = [q, k, v, *encoding.parameters()]
        return torch.autograd.grad(output, inputs, direction, allow_unused=True)

    return run


def peak() -> float:
    """The most memory that this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def grown(make: Callable[[int], Callable[[], object]], length: int, results: Connection) -> None:
    make(64)()
    gc.collect()
    before = peak()
    make(length)()
    results.send(peak() - before)


def memory(make: Callable[[int], Callable[[], object]], length: int) -> float:
    """By how many MB a process grows."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=grown, args=(make, length, theirs))
    process.start()
    found = ours.recv()
    process.join()
    return found


def contenders(
    specs: list[str], ways: tuple[str, ...], dtype: torch.dtype, dropout: float
) -> dict[str, Callable[[int], Callable[[], object]]]:
    """By name, functions of the length."""
    found = {FUSED: partial(contender, "none", "before", dtype, 0.0)}
    for spec in specs:
        for way in ways:
            found[f"{spec}, {way}"] = partial(contender, spec, way, dtype, dropout)
    return found


def main() -> None:
    parser = timing.arguments(__doc__, rounds=5)
    parser.add_argument("--lengths", default="1024,4096", help="tokens (default: %(default)s)")
    parser.add_argument("--encodings", default=",".join(ENCODINGS), help="specs without a comma")
    parser.add_argument("--dropout", type=float, default=0.0, help="the share of weights to drop")
    parser.add_argument("--before", action="store_true", help="also without kernel=blocks")
    given = parser.parse_args()
    deterministic(threads=1)
    table = timing.Table(given.json)
    ways = ("auto", "before") if given.before else ("auto",)
    cases = [(name, length) for name in DTYPES for length in map(int, given.lengths.split(","))]
    makes = {name: contenders(given.encodings.split(","), ways, DTYPES[name], given.dropout) for name in DTYPES}
    # Before anything is timed: a process begins with the peak of the one that it parted from.
    held = {case: {what: memory(make, case[1]) for what, make in makes[case[0]].items()} for case in cases}
    for name, length in cases:
        calls = {what: make(length) for what, make in makes[name].items()}
        times = timing.measure(calls, given.rounds, seconds=0.0)
        for what, megabytes in held[name, length].items():
            table.add(
                dtype=name,
                keys=length,
                encoding=what,
                ms=timing.milliseconds(times, what),
                over_fused=timing.ratio(times, what, FUSED),
                peak_MB=round(megabytes, 1),
                peak_over_fused=round(megabytes / held[name, length][FUSED], 2),
            )
    table.close()


if __name__ == "__main__":
    main()
