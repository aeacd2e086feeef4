"""Layer norm against batch norm on lines of unequal length.

    python experiments/norms.py --out runs/norms

The task `reverse` with lines of 1 to 12 numbers, and with lines of 12 alone, so that nothing is padded; both kinds of
norm, the same budget, small batches. Of each model the share of held-out lines that are right with the right numbers
before each: as it answers (batch norm by its running statistics), and with the statistics of the batch, as in training,
for batches of 256, of 8 and of one line, and for one line beside eight times as much padding. With layer norm these are
one number: no token's depends on another row.

Minutes: 3 of one core.
Expected: with lines of unequal length, batch norm is behind (93.2 % against 98.8 %), and by the statistics of the batch
right answers depend on what else is in it: 77.0 % of 256 lines at once, 71.5 % of 8, 14.3 % of one alone, 2.5 % beside
padding. With equal lengths all are 100 %, but for 0.0 % beside padding, which it has never seen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import jarilab
from jarilab.data.text import END, FIRST, PADDING
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.runs.loaded import OpenRun

LONGEST = 12
SETTINGS: dict[str, Any] = {
    "model.n_encoder_layers": 1,
    "model.n_decoder_layers": 1,
    "training.examples": 24_000,
    "training.batch_size": 16,
    "training.lr": 2e-3,
    "training.evaluations": 3,
}
LENGTHS = {"1 to 12": f"1..{LONGEST}", "12": str(LONGEST)}
"""The lengths of lines, and the option `lengths` that makes them."""
KINDS = ("layer", "batch")
BATCHES = (256, 8, 1)


def trained(out: Path, lengths: str, kind: str, seed: int) -> OpenRun:
    """A run, trained unless it is there already."""
    folder = out / f"{kind}-{lengths.replace(' ', '-')}-{seed}"
    settings = {**SETTINGS, "task.lengths": LENGTHS[lengths], "model.norm_kind": kind}
    jarilab.train("reverse", folder, settings=settings, seed=seed, threads=1)
    return jarilab.load(folder)


def padded(rows: Sequence[list[int]], more: int = 0) -> torch.Tensor:
    """`(B, L)` token numbers, padding behind; `more` of it than there has to be."""
    longest = max(map(len, rows)) + more
    return torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows])


@torch.no_grad()
def right(run: OpenRun, lines: Sequence[tuple[str, str]], at_once: int, more: int = 0) -> float:
    """The share of lines of which every number is right, so many read at once."""
    task: Any = run.task
    sources = [[*task.read(source), END] for source, _ in lines]
    targets = [[*task.read(target), END] for _, target in lines]
    hits = 0
    for start in range(0, len(lines), at_once):
        ids_BK = padded(sources[start : start + at_once], more)
        labels_BQ = padded(targets[start : start + at_once], more)
        source = Tokens(ids_BK, Positions.sequence(ids_BK.shape[1], frame="source"), ids_BK != PADDING)
        target = Tokens.of(functional.pad(labels_BQ, (1, 0), value=FIRST)[:, :-1], "target")
        said_BQ = run.model(source, target).argmax(-1)
        hits += int(((said_BQ == labels_BQ) | (labels_BQ == PADDING)).all(1).sum())
    return hits / len(lines)


def row_of(run: OpenRun, examples: int) -> list[str]:
    """How a run answers, and how with the statistics of the batch."""
    task: Any = run.task
    lines = task.held_out[:examples]
    run.model.eval()
    shares = [right(run, lines, 256)]
    state = {name: value.clone() for name, value in run.model.state_dict().items()}
    for at_once, more in (*((count, 0) for count in BATCHES), (1, 8 * LONGEST)):
        run.model.train()
        shares.append(right(run, lines, at_once, more))
        run.model.load_state_dict(state)  # running statistics have followed
    return [f"{share:.1%}" for share in shares]


def table_of(out: Path, seeds: int, examples: int) -> str:
    """A row for each run, in Markdown."""
    counts = ["256 lines", "8 lines", "one line", "one line and padding"]
    rows = [["lengths", "norm", "seed", "as it answers", *counts], [":---"] * 2 + ["---:"] * 6]
    for lengths in LENGTHS:
        for kind in KINDS:
            for seed in range(1, seeds + 1):
                rows.append([lengths, kind, str(seed), *row_of(trained(out, lengths, kind, seed), examples)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="Layer norm against batch norm on lines of unequal length.")
    parser.add_argument("--out", required=True, type=Path, help="the folder for the runs")
    parser.add_argument("--seeds", default=1, type=int, help="trainings of each (%(default)s)")
    parser.add_argument("--examples", default=512, type=int, help="held-out lines to measure on (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        print(table_of(given.out, given.seeds, given.examples), end="")
    except jarilab.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
