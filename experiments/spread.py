"""Why scores are divided by sqrt(d_k): the spread of q.k, and what the softmax makes of it.

    python experiments/spread.py --out runs/spread

Queries and keys of independent numbers with mean 0 and variance 1, as *Attention Is All You Need* has them in its
footnote 4: q.k is a sum of d_k products of variance 1, so that its standard deviation is sqrt(d_k). For each d_k the
standard deviation that was found, and the mean over queries of the largest of 16 weights, with the division and
without; beside them what of a gradient gets through the softmax, 1 - sum p^2. Writes spread.md and spread.svg.

Minutes: under one. Expected: standard deviations within 2 % of sqrt(d_k); the largest of 16 weights stays at 0.24 to
0.25 with the division at any d_k, and rises without it from 0.43 at d_k = 4 to 0.98 at 4,096.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import jarilab

KEYS, QUERIES = 16, 2000


@dataclass(frozen=True)
class Spread:
    """What was found for one d_k. largest, trace: with the division, then without."""

    width: int
    deviation: float
    largest: tuple[float, float]
    trace: tuple[float, float]

    @staticmethod
    def of(width: int, seed: int) -> Spread:
        """Q queries, each with K keys of its own."""
        generator = torch.Generator().manual_seed(seed)
        q_QE = torch.randn(QUERIES, width, generator=generator)
        product_QK = torch.stack([torch.randn(KEYS, width, generator=generator) @ q_E for q_E in q_QE])
        weights = [(product_QK / divisor).softmax(-1) for divisor in (width**0.5, 1.0)]
        largest, smallest = (float(p_QK.amax(-1).mean()) for p_QK in weights)
        traces = [1 - float(p_QK.square().sum(-1).mean()) for p_QK in weights]
        return Spread(width, float(product_QK.std()), (largest, smallest), (traces[0], traces[1]))


def table_of(found: Sequence[Spread]) -> str:
    """A row for each d_k, in Markdown."""
    head = [
        "d_k",
        "sqrt(d_k)",
        "std of q.k",
        "largest weight, divided",
        "undivided",
        "1 - sum p^2, divided",
        "undivided",
    ]
    rows = [head, ["---:"] * len(head)]
    for one in found:
        numbers = (one.width**0.5, one.deviation)
        shares = (*one.largest, *one.trace)
        rows.append([str(one.width), *(f"{n:.2f}" for n in numbers), *(f"{n:.3f}" for n in shares)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def draw(found: Sequence[Spread], path: Path) -> None:
    """The spread on the left, the largest weight on the right. Raises UserError without matplotlib."""
    try:
        figure_class = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise jarilab.UserError(
            "the figure is drawn by matplotlib; install it with pip install 'jarilab[dev]'"
        ) from None
    figure = figure_class(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    widths = [one.width for one in found]
    left.plot(widths, [one.deviation for one in found], marker="o", label="q.k")
    left.plot(widths, [one.deviation / one.width**0.5 for one in found], marker="s", label="q.k / sqrt(d_k)")
    left.set_yscale("log", base=2)
    left.set_title("standard deviation of a score")
    for number, label in enumerate(("divided", "undivided")):
        right.plot(widths, [one.largest[number] for one in found], marker="so"[number], label=label)
    right.axhline(1 / KEYS, color="grey", linewidth=0.8)
    right.set_title(f"largest of {KEYS} weights")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("d_k")
        axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="The spread of q.k against d_k, and its softmax.")
    parser.add_argument("--out", required=True, type=Path, help="the folder for table and figure")
    parser.add_argument("--widths", default="4,16,64,256,1024,4096", help="d_k, with commas between (%(default)s)")
    parser.add_argument("--seed", default=1, type=int, help="of the random numbers (%(default)s)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        widths = [int(width) for width in given.widths.split(",")]
    except ValueError:
        parser.error(f"--widths expects whole numbers with commas between, got {given.widths!r}; write 8,64,512")
    found = [Spread.of(width, given.seed) for width in widths]
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        draw(found, given.out / "spread.svg")
    except jarilab.UserError as error:
        print(error, file=sys.stderr)
        return 2
    table = table_of(found)
    (given.out / "spread.md").write_text(table, encoding="utf-8")
    print(table, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
