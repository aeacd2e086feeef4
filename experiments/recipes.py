"""What of a recipe pays: variants of the training that jari takes by default, over several seeds.

    python experiments/recipes.py language --data FOLDER --out runs/recipes

A task (language: the letters of FOLDER/tinyshakespeare/input.txt; arithmetic; images: FOLDER/mnist; translation:
FOLDER/multi30k, German to English) is trained by its defaults, and with one thing changed at a time, everything else
the same, seed by seed: each row says how much better it is than the default of the same seeds, with a 95 % interval of
the mean over seeds, and what it costs in CPU-seconds. `linear`, jari's schedule, falls to 0 in a line.

Hours: about one of one core for a task. Measured: docs/results/recipes.md.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import jarilab
from jarilab.comparison.statistics import mean_interval
from jarilab.runs.experiment import Experiment
from jarilab.runs.options import Training
from jarilab.training import optim

Change = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Row:
    """What is trained. settings: beside the task's defaults. metric: of the result; higher: whether more is better.
    files: where the data are."""

    task: str
    encoding: str
    settings: Mapping[str, Any]
    metric: str
    higher: bool
    files: Callable[[Path], dict[str, Any]] = field(default=lambda data: {})


def pair(data: Path, part: str) -> list[str]:
    return [str(data / "multi30k" / f"{part}.{language}.gz") for language in ("de", "en")]


ROWS = {
    "language": Row(
        "text", "rotary",
        {"task.context": 64, "model.layers": 4, "model.heads": 4, "model.width": 128, "training.examples": 12_000,
         "training.batch": 12, "training.evaluations": 1},
        "loss", False, lambda data: {"task.train": str(data / "tinyshakespeare" / "input.txt")},
    ),
    "arithmetic": Row(
        "arithmetic", "sinusoidal", {"training.examples": 150_000, "training.evaluations": 1}, "exact_match", True
    ),
    "images": Row(
        "images", "rotary2d", {"training.examples": 30_000, "training.evaluations": 1}, "accuracy", True,
        lambda data: {"task.train": str(data / "mnist"), "task.valid": str(data / "mnist")},
    ),
    "translation": Row(
        "translation", "rotary",
        {"model.width": 128, "model.hidden": 512, "model.encoder_layers": 2, "model.decoder_layers": 2,
         "training.examples": 58_000, "training.evaluations": 1},
        "bleu", True, lambda data: {"task.train": pair(data, "train"), "task.valid": pair(data, "val")},
    ),
}  # fmt: skip


# What is changed ------------------------------------------------------------------------------------------------------


def scheduled(left: Callable[[float], float]) -> AbstractContextManager[Any]:
    """Training with another schedule behind the warm-up: `left` of the highest rate, of the share that has passed."""

    def rate(self: Training, step: int, steps: int) -> float:
        done = (step + 1) / steps
        if done < self.warm_up:
            return self.learning_rate * done / self.warm_up
        return self.learning_rate * left((done - self.warm_up) / (1 - self.warm_up))

    return patch.object(Training, "rate", rate)


def cosine() -> AbstractContextManager[Any]:
    return scheduled(lambda passed: 0.5 * (1 + math.cos(math.pi * passed)))


def trapezoid() -> AbstractContextManager[Any]:
    """The highest rate until the last third, which falls to 0."""
    return scheduled(lambda passed: min(1.0, 3 * (1 - passed)))


def orthogonalised(steps: int) -> Change:
    """Muon with fewer steps of Newton and Schulz than PyTorch's five."""
    return lambda: patch.object(optim, "StackedMuon", functools.partial(optim.StackedMuon, ns_steps=steps))


@dataclass(frozen=True)
class Variant:
    """times: settings of training that are multiplied. settings: that are set. change: what no setting says."""

    times: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    change: Change = nullcontext


VARIANTS = {
    "default": Variant(),
    "half the rate": Variant({"learning_rate": 0.5}),
    "twice the rate": Variant({"learning_rate": 2}),
    "warm-up of 1 %": Variant(settings={"training.warm_up": 0.01}),
    "warm-up of 15 %": Variant(settings={"training.warm_up": 0.15}),
    "cosine": Variant(change=cosine),
    "trapezoid": Variant(change=trapezoid),
    "4 steps of Newton and Schulz": Variant(change=orthogonalised(4)),
    "3 steps of Newton and Schulz": Variant(change=orthogonalised(3)),
    "average of 0.99": Variant(settings={"training.average": 0.99}),
    "no dropout": Variant(settings={"model.dropout": 0.0}),
    "AdamW, rate of 2e-3": Variant(settings={"training.optimizer": "adamw", "training.learning_rate": 2e-3}),
}


# Trained and told -----------------------------------------------------------------------------------------------------


def trained(row: Row, variant: Variant, folder: Path, data: Path, seed: int) -> Mapping[str, Any]:
    """The result of a run, trained unless it is there already."""
    settings = {**row.settings, **row.files(data), **variant.settings}
    plain = Experiment.of(row.task, row.encoding, settings=settings)
    settings |= {f"training.{name}": plain.training[name] * factor for name, factor in variant.times.items()}
    with variant.change():
        return jarilab.train(row.task, folder, encoding=row.encoding, seed=seed, settings=settings, threads=1)


def told(row: Row, name: str, results: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> str:
    """A line of the table, in Markdown."""
    values = [result[row.metric] for result in results]
    sign = 1 if row.higher else -1
    gains = [sign * (value - plain[row.metric]) for value, plain in zip(values, base, strict=True)]
    gain = mean_interval(gains, 0, share=False)
    known = "" if gain.low is None else f" ({gain.low:+.4f} to {gain.high:+.4f})"
    better = "" if results is base else f"{gain.mean:+.4f}{known}"
    seconds = mean(result["cpu_seconds"] for result in results)
    return f"| {name} | {mean(values):.4f} | {better} | {seconds:.0f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="What of a recipe pays.")
    parser.add_argument("row", choices=ROWS, help="what is trained")
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="a folder with tinyshakespeare/, mnist/, multi30k/"
    )
    parser.add_argument("--out", required=True, type=Path, help="the folder for the runs")
    parser.add_argument("--seeds", default=3, type=int, help="trainings of each (%(default)s)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="beside the default")
    given = parser.parse_args(arguments)
    row = ROWS[given.row]
    base: list[Mapping[str, Any]] = []
    print(f"| {given.row} | {row.metric} | better by | CPU-seconds |\n| :--- | ---: | ---: | ---: |", flush=True)
    try:
        for name in dict.fromkeys(["default", *given.variants]):
            folder = given.out / given.row / name.replace(" ", "-").replace("%", "percent")
            runs = range(1, given.seeds + 1)
            results = [trained(row, VARIANTS[name], folder / str(seed), given.data, seed) for seed in runs]
            base = base or results
            print(told(row, name, results, base), flush=True)
    except jarilab.UserError as error:
        print(f"recipes: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
