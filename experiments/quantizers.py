"""Which quantizer makes the better image tokenizer? Each at its default settings, on the same coloured scenes.

    python experiments/quantizers.py --out runs/quantizers --seeds 2
    python experiments/quantizers.py --out runs/quantizers --seeds 2 --digits MNIST_FOLDER

The tokenizer that `jarilab train captions --captions attributes` trains first, with each of its quantizers, measured on
640 scenes of digits it was not trained on: PSNR of what is decoded, the share of codes in use, their perplexity (how
many codes used alike would be as hard to guess), and CPU-seconds in one thread. Writes quantizers.md.

Minutes: 6 of one core for each seed.
Expected: 29 to 30 dB with fsq and nearly all of its codes in use; 25 to 26 dB with gumbel and a tenth of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from images import markdown, told

from jarilab.data.captions.sources import SceneSource
from jarilab.data.captions.styles import STYLES
from jarilab.data.images.image_tokenizer import measure, train_image_tokenizer

QUANTIZERS = ("fsq", "gumbel")
SCENES = 30_000

Measured = dict[str, float]


def measured(source: SceneSource, quantizer: str, seed: int, steps: int) -> Measured:
    """One tokenizer, trained and measured on held-out scenes."""
    began = time.process_time()
    tokenizer = train_image_tokenizer(source.images, SCENES, {"quantizer": quantizer}, seed=seed, steps=steps)
    seconds = time.process_time() - began
    found = measure(tokenizer, lambda numbers: source.held_out(numbers).images, source.held_out_size)
    return {**found, "cpu_seconds": seconds}


def row_of(quantizer: str, trials: Sequence[Measured]) -> list[str]:
    """Means over seeds; of PSNR also the lowest and the highest."""
    mean = {name: fmean(trial[name] for trial in trials) for name in trials[0]}
    psnr = [trial["psnr"] for trial in trials]
    return [
        f"`{quantizer}`",
        f"{mean['psnr']:.2f} dB ({min(psnr):.2f} to {max(psnr):.2f})",
        f"{mean['codes_used']:.1%}",
        f"{mean['perplexity']:.1f}",
        f"{mean['cpu_seconds']:.0f}",
    ]


def run(out: Path, seeds: int, digits: str, steps: int) -> str:
    """Train and measure, write quantizers.md into `out`; the table. Raises UserError."""
    torch.set_num_threads(1)
    source = SceneSource(STYLES["attributes"], digits, SCENES, unseen=0.0)
    trials: dict[str, list[Measured]] = {name: [] for name in QUANTIZERS}
    for seed in range(1, seeds + 1):
        for name in QUANTIZERS:
            trials[name].append(measured(source, name, seed, steps))
            print(f"{name}, seed {seed}: {trials[name][-1]}", file=sys.stderr, flush=True)
    rows = [row_of(name, trials[name]) for name in QUANTIZERS]
    titles = ["quantizer", "PSNR, mean (lowest to highest)", "codes used", "perplexity", "CPU-seconds"]
    table = markdown(titles, rows)
    out.mkdir(parents=True, exist_ok=True)
    (out / "quantizers.md").write_text(table, encoding="utf-8")
    return f"{table}wrote {out / 'quantizers.md'}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Image tokenizers with each quantizer.")
    parser.add_argument("--out", required=True, type=Path, help="the folder for the table")
    parser.add_argument("--seeds", default=2, type=int, help="trials of each (%(default)s)")
    parser.add_argument("--digits", default="", help="a folder with MNIST's idx files, instead of scikit-learn's scans")
    parser.add_argument("--steps", default=1500, type=int, help="of training (%(default)s)")
    given = parser.parse_args(arguments)
    return told(lambda: run(given.out, given.seeds, given.digits, given.steps))


if __name__ == "__main__":
    sys.exit(main())
