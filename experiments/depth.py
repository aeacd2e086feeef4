"""Does depth replace positions? The question of *Language Modeling with Deep Transformers* (Irie et al. 2019).

    python experiments/depth.py --train text.txt --out runs/depth --n-layers 2,6,12 --seeds 3 --steps 2000

A causal model without positions can learn order from its mask, from the second layer on. The same character model with
sinusoids and without any positions, at several depths, over paired seeds: does the gap shrink with depth, or turn, as
the paper found for words? Writes depth.md and depth.svg, and the report of each depth into a folder of its own.

Minutes: 57 of one core for all 18 trainings, half of that on two.
Expected: on tinyshakespeare, with 500 steps, without positions the loss is higher by 0.315 nats per character at 2
layers and 0.206 at 6. The paper, with words and deeper models, found none slightly better.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jarilab

ENCODINGS = ("none", "sinusoidal")
CONTEXT, BATCH = 64, 12
MODEL = {"model.d_model": 128, "model.n_heads": 4, "model.dropout": 0.0}

Studies = Mapping[int, Mapping[str, Any]]
"""What `jarilab.compare` gave for each number of layers."""


def settings_of(train: str, layers: int, steps: int) -> dict[str, Any]:
    """The small character model of nanoGPT for a processor, with this many layers."""
    task = {"task.train": train, "task.context_length": CONTEXT, "task.tokenizer": "characters"}
    budget = {"training.epochs": None, "training.batch_size": BATCH, "training.examples": steps * BATCH}
    return {**task, **MODEL, "model.n_layers": layers, **budget}


def table_of(studies: Studies) -> str:
    """A row for each depth: both means, and their difference paired over seeds, with 95 % intervals; in Markdown."""
    measured = next(iter(studies.values()))["metric"]
    first, second = ENCODINGS
    rows = [
        ["layers", f"{measured}, {first}", f"{measured}, {second}", f"{first} - {second}, paired", "verdict"],
        ["---:"] * 4 + [":---"],
    ]
    for layers, study in sorted(studies.items()):
        means = [_with_interval(summary_of(study, encoding), "mean") for encoding in ENCODINGS]
        (difference,) = study["differences"]
        rows.append([str(layers), *means, _with_interval(difference, "difference", "+"), difference["verdict"]])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def summary_of(study: Mapping[str, Any], encoding: str) -> Mapping[str, Any]:
    """What a study says of one encoding."""
    return next(summary for summary in study["encodings"] if summary["encoding"] == encoding)


def _with_interval(row: Mapping[str, Any], key: str, sign: str = "") -> str:
    text = f"{row[key]:{sign}.4f}"
    return text if row["low"] is None else f"{text} ({row['low']:{sign}.4f} to {row['high']:{sign}.4f})"


def draw(studies: Studies, path: Path) -> None:
    """Both means by depth, and beside them their paired difference, with its intervals. Raises UserError."""
    figure_class = _figure_class()
    depths = sorted(studies)
    metric = studies[depths[0]]["metric"]
    figure = figure_class(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for encoding in ENCODINGS:
        rows = [summary_of(studies[depth], encoding) for depth in depths]
        _curve(left, depths, rows, "mean", encoding)
    _curve(right, depths, [studies[depth]["differences"][0] for depth in depths], "difference", None)
    right.axhline(0, color="grey", linewidth=0.8)
    left.legend()
    left.set_title(f"held-out {metric}, 95 % intervals")
    right.set_title(" - ".join(ENCODINGS) + ", paired over seeds")
    for axes in (left, right):
        axes.set_xlabel("layers")
        axes.set_xticks(depths)
    figure.savefig(path)


def _curve(axes: Any, depths: Sequence[int], rows: Sequence[Mapping[str, Any]], key: str, label: str | None) -> None:
    values = [row[key] for row in rows]
    below = [0.0 if row["low"] is None else row[key] - row["low"] for row in rows]
    above = [0.0 if row["high"] is None else row["high"] - row[key] for row in rows]
    axes.errorbar(depths, values, (below, above), marker="o", capsize=3, label=label)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise jarilab.UserError(
            "the figure is drawn by matplotlib; install it with pip install 'jarilab[dev]'"
        ) from None
    return Figure


def run(train: str, out: Path, depths: Sequence[int], seeds: int, steps: int) -> str:
    """Train what is not trained yet, write depth.md and depth.svg into `out`, and give the table. Raises UserError."""
    _figure_class()  # before the hours of training, not after them
    studies = {
        layers: jarilab.compare(
            "text",
            out / f"layers-{layers}",
            encodings=ENCODINGS,
            seeds=seeds,
            settings=settings_of(train, layers, steps),
        )
        for layers in depths
    }
    table = table_of(studies)
    (out / "depth.md").write_text(table, encoding="utf-8")
    draw(studies, out / "depth.svg")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="The same character model with and without positions, by depth.")
    parser.add_argument("--train", required=True, help="a text file, or a folder of them")
    parser.add_argument("--out", required=True, type=Path, help="the folder for trials, table and figure")
    parser.add_argument("--n-layers", default="2,6,12", help="depths, with commas between (%(default)s)")
    parser.add_argument("--seeds", default=3, type=int, help="trials of each (%(default)s)")
    parser.add_argument("--steps", default=2000, type=int, help=f"of {BATCH} windows each (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        depths = [int(layers) for layers in given.n_layers.split(",")]
    except ValueError:
        parser.error(f"--n-layers expects whole numbers with commas between, got {given.n_layers!r}; write 2,6,12")
    try:
        print(run(given.train, given.out, depths, given.seeds, given.steps), end="")
    except jarilab.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
