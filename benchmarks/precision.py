"""From which width on does bfloat16 pay? A whole training step in bfloat16 over the same in float32.

The arithmetic task at its defaults but for the width (batch 512, 8 heads, 2+2 layers), in one thread;
`MIN_BFLOAT16_WIDTH` in `jari/training/precision.py` should be the first width whose ratio is below 1.

Measured 2026-11-20, PyTorch 2.13, one core of an AMD EPYC with AVX-512 BF16 that others used too: 0.82,
0.71, 0.64, 0.63, 0.58, 0.54 at the widths 32, 48, 64, 96, 128, 256; give or take 0.03.
"""

from __future__ import annotations

import itertools
from typing import get_args

import steps
import timing

from jarilab.runs.experiment import Experiment
from jarilab.runs.training_options import Precision, choose_precision
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.training.determinism import deterministic


def main() -> None:
    parser = timing.arguments(__doc__, rounds=11)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 48, 64, 96, 128, 256])
    parser.add_argument("--encoding", default="sinusoidal")
    given = parser.parse_args()
    deterministic(threads=1)
    task, table = Arithmetic(), timing.Table(given.json)
    batches = steps.batches_of(task)
    for width in given.widths:
        contenders = {}
        for precision in set(get_args(Precision)) - {"auto"}:
            settings = {"model.d_model": width, "training.lr": 1e-3}
            experiment = Experiment.of("arithmetic", given.encoding, settings, precision=precision)
            contenders[precision] = steps.arithmetic_step(task, itertools.cycle(batches), experiment)[1]
        times = timing.measure(contenders, given.rounds)
        table.add(
            width=width,
            float32_ms=timing.milliseconds(times, "float32"),
            bfloat16_ms=timing.milliseconds(times, "bfloat16"),
            bfloat16_over_float32=timing.ratio(times, "bfloat16", "float32"),
            chosen=choose_precision(width),
        )
    table.close()


if __name__ == "__main__":
    main()
