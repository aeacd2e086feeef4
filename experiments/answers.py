"""Are sums learned from fewer examples when answers are written from the ones up? The question of Lee et al. 2023.

    python experiments/answers.py --out runs/answers --seeds 5
    python experiments/answers.py --out runs/answers-decoder --seeds 5 --model decoder

Sums of two numbers below 1,000, each number drawn below 10, 100 or 1,000, written as they are (`95+7` is `102`) and
with the answer reversed (`201`), 2,500 and 10,000 of them, no sum twice, and 1,000 others to measure on. The task
`translation` by characters reads them from two files; the same model, sums, seeds and number of steps for all four. A
carry comes from the right, so who writes from the ones up needs to look at two digits and a carry, and who writes from
the front at everything behind. In the causal models of the paper, of 10.6 million parameters, plain answers stall near
85 % with 10,000 sums, and reversed ones reach 100 % with about 2,500. Writes answers.md beside the runs.

Minutes: 1 of one core for each seed (14 CPU-seconds a training).
Expected: means of two seeds, encoder-decoder: plain 69 % with 2,500 sums and 97 % with 10,000; reversed 95 % and
100 %. A decoder alone: plain 23 % and 67 %, reversed 40 % and 84 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from images import at_least_one, markdown, told

import jarilab
from jarilab.core.storage.files import write_text

SIZES = (2_500, 10_000)
HELD_OUT = 1_000
WRITTEN = {"plain": slice(None), "reversed": slice(None, None, -1)}
"""How an answer is written: a part of its digits."""
PUBLISHED = {("plain", 10_000): "about 85%", ("reversed", 2_500): "about 100%"}
SETTINGS: dict[str, Any] = {
    "task.tokenizer": "characters",
    "task.metric": "exact_match",
    "model.d_model": 64,
    "model.n_heads": 4,
    "model.dropout": 0.0,
    "training.epochs": None,
    "training.examples": 48_000,
    "training.tokens": None,
    "training.batch_size": 64,
    "training.lr": 4e-3,
    "training.label_smoothing": 0.0,
    "training.evaluations": 1,
}


MODELS: dict[str, dict[str, Any]] = {
    "encoder_decoder": {"model.n_encoder_layers": 2, "model.n_decoder_layers": 2},
    "decoder": {"model.n_layers": 4, "task.joint": True},
}
"""Kinds of model, and what each asks for: a decoder alone reads sum and answer as one sequence."""


def sums(count: int) -> list[tuple[int, int]]:
    """So many different pairs of numbers, in an order of chance: each number is below 10, 100 or 1,000, as likely."""
    chance = np.random.default_rng(42)
    found: dict[tuple[int, int], None] = {}
    while len(found) < count:
        left, right = (int(chance.integers(0, 10**digits)) for digits in chance.integers(1, 4, 2))
        found[left, right] = None
    return list(found)


def files(out: Path, name: str, pairs: Sequence[tuple[int, int]], written: str) -> list[str]:
    """Write sums and their answers into two files; their names."""
    answers = [str(left + right)[WRITTEN[written]] for left, right in pairs]
    paths = [out / f"{name}.sums", out / f"{name}.{written}"]
    for path, lines in zip(paths, ([f"{left}+{right}" for left, right in pairs], answers), strict=True):
        write_text(path, "".join(f"{line}\n" for line in lines))
    return [str(path) for path in paths]


def table_of(found: Mapping[tuple[str, int], Sequence[float]]) -> str:
    """A row for each way to write and number of sums, in Markdown."""
    rows = []
    for (written, size), shares in found.items():
        mean = f"{sum(shares) / len(shares):.1%}"
        span = f"{min(shares):.1%} to {max(shares):.1%}"
        rows.append([written, f"{size:,}", mean, span, PUBLISHED.get((written, size), "")])
    return markdown(["answers", "sums", "exact match, mean", "lowest to highest seed", "published"], rows)


def run(out: Path, model: str, encoding: str, seeds: int) -> str:
    """Train what is not trained yet, seed by seed, write answers.md into `out`; the table. Raises UserError."""
    out.mkdir(parents=True, exist_ok=True)
    pairs = sums(HELD_OUT + max(SIZES))
    found: dict[tuple[str, int], list[float]] = {(written, size): [] for written in WRITTEN for size in SIZES}
    for seed in range(1, seeds + 1):
        for (written, size), shares in found.items():
            train = files(out, f"train-{size}", pairs[HELD_OUT : HELD_OUT + size], written)
            valid = files(out, "valid", pairs[:HELD_OUT], written)
            settings = {**SETTINGS, **MODELS[model], "task.train": train, "task.valid": valid}
            folder = out / f"{written}-{size}-{seed}"
            ended = jarilab.train(
                "translation", folder, model=model, encoding=encoding, settings=settings, seed=seed, threads=1
            )
            shares.append(ended["exact_match"])
            print(f"{written}, {size:,} sums, seed {seed}: {shares[-1]:.1%}", file=sys.stderr)
    table = table_of(found)
    (out / "answers.md").write_text(table, encoding="utf-8")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="Sums with plain and with reversed answers, from few examples.")
    parser.add_argument("--out", required=True, type=Path, help="the folder for files, runs and table")
    parser.add_argument("--model", default="encoder_decoder", choices=tuple(MODELS), help="its kind (%(default)s)")
    parser.add_argument("--encoding", default="rotary", help="of all layers (%(default)s)")
    parser.add_argument("--seeds", default=5, type=at_least_one, help="trainings of each (%(default)s)")
    given = parser.parse_args(arguments)
    return told(lambda: run(given.out, given.model, given.encoding, given.seeds))


if __name__ == "__main__":
    sys.exit(main())
