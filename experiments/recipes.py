"""What of a recipe pays: variants of the training that jari takes by default, over several seeds.

    python experiments/recipes.py language --data FOLDER --out runs/recipes

A task (language: the letters of FOLDER/tinyshakespeare/input.txt; arithmetic; images: FOLDER/mnist; translation:
FOLDER/multi30k, German to English) is trained by its defaults, and with one thing changed at a time, everything else
the same, seed by seed: each row says how much better it is than the default of the same seeds, with a 95 % interval of
the mean over seeds, corrected for the number of rows (Bonferroni), and what it costs in CPU-seconds. `linear`, jari's
schedule, falls to 0 in a line.

Hours: one or two of one core for a task. Measured: docs/results/recipes.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

from torch import Tensor

import jarilab
from jarilab.comparison.statistics import student_quantile
from jarilab.runs.experiment import Experiment
from jarilab.runs.training_options import Training
from jarilab.training import loop
from jarilab.training.batching import Batches, batches_of

Change = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Row:
    """What is trained. settings: beside the task's defaults. metric: of the result; higher: whether more is better.
    shapes: the model otherwise, of about as many weights; what they are called, and the settings. files: where the data
    are."""

    task: str
    encoding: str
    settings: Mapping[str, Any]
    metric: str
    higher: bool
    shapes: Mapping[str, Mapping[str, Any]]
    files: Callable[[Path], dict[str, Any]] = field(default=lambda data: {})


def sides(layers: int, width: int) -> dict[str, Any]:
    """An encoder and a decoder of so many layers each."""
    layers_of_both = {"model.n_encoder_layers": layers, "model.n_decoder_layers": layers}
    return {"model.d_model": width, "model.d_ff": 4 * width, **layers_of_both}


def pair(data: Path, part: str) -> list[str]:
    return [str(data / "multi30k" / f"{part}.{language}.gz") for language in ("de", "en")]


ROWS = {
    "language": Row(
        "text", "rotary",
        {"task.context_length": 64, "model.n_layers": 4, "model.n_heads": 4, "model.d_model": 128,
         "training.examples": 12_000,
         "training.batch_size": 12, "training.evaluations": 1},
        "loss", False,
        {"token before": {"model.token_before": True},
         "short recipe": {"model.token_before": True, "model.dropout": 0.0, "training.lr": 8e-3,
                          "training.muon_steps": 3},
         "2 layers of width 184": {"model.n_layers": 2, "model.d_model": 184},
         "8 layers of width 88": {"model.n_layers": 8, "model.d_model": 88}},
        lambda data: {"task.train": str(data / "tinyshakespeare" / "input.txt")},
    ),
    "arithmetic": Row(
        "arithmetic", "sinusoidal", {"training.examples": 300_000, "training.evaluations": 1}, "exact_match", True,
        {"1+1 layers of width 96": sides(1, 96), "4+4 layers of width 48": sides(4, 48)},
    ),
    "images": Row(
        "images", "rotary2d", {"training.examples": 30_000, "training.evaluations": 1}, "accuracy", True,
        {"3 layers of width 96": {"model.n_layers": 3, "model.d_model": 96, "model.d_ff": 384},
         "12 layers of width 48": {"model.n_layers": 12, "model.d_model": 48, "model.d_ff": 192},
         "25 patches": {"model.kept_patches": 25}},
        lambda data: {"task.train": str(data / "mnist"), "task.valid": str(data / "mnist")},
    ),
    "translation": Row(
        "translation", "rotary",
        {**sides(2, 128), "training.examples": 58_000, "training.evaluations": 1},
        "bleu", True,
        {"1+1 layers of width 192": sides(1, 192), "4+4 layers of width 96": sides(4, 96),
         "vocabulary of 4,000": {"task.vocab_size": 4000}, "vocabulary of 16,000": {"task.vocab_size": 16000}},
        lambda data: {"task.train": pair(data, "train"), "task.valid": pair(data, "val")},
    ),
}  # fmt: skip


# What is changed ------------------------------------------------------------------------------------------------------


def scheduled(left: Callable[[float], float]) -> AbstractContextManager[Any]:
    """Training with another schedule behind the warm-up: `left` of the highest rate, of the share that has passed."""

    def rate(self: Training, step: int, steps: int) -> float:
        done = (step + 1) / steps
        if done < self.warmup:
            return self.lr * done / self.warmup
        return self.lr * left((done - self.warmup) / (1 - self.warmup))

    return patch.object(Training, "rate", rate)


def cosine() -> AbstractContextManager[Any]:
    return scheduled(lambda passed: 0.5 * (1 + math.cos(math.pi * passed)))


def trapezoid() -> AbstractContextManager[Any]:
    """The highest rate until the last third, which falls to 0."""
    return scheduled(lambda passed: min(1.0, 3 * (1 - passed)))


class Growing(Batches):
    """Half the budget in batches of half the size, then the other half in whole ones."""

    def __init__(self, options: Training, size: int, lengths: Any, seed: int):
        examples = max(1, options.budget(size) // 2)
        whole = replace(options, examples=examples, epochs=None)
        tokens = None if options.tokens is None else options.tokens // 2
        half = replace(whole, batch_size=max(1, options.batch_size // 2), tokens=tokens)
        self._first = batches_of(half, size, lengths, seed)
        self._then = batches_of(whole, size, lengths, seed + 1)
        self.steps = self._first.steps + self._then.steps
        self.examples = self._first.examples + self._then.examples

    def at(self, step: int) -> Tensor:
        passed = step - self._first.steps
        return self._first.at(step) if passed < 0 else self._then.at(passed)


def growing() -> AbstractContextManager[Any]:
    return patch.object(loop, "batches_of", Growing)


@dataclass(frozen=True)
class Variant:
    """times: settings of training that are multiplied. settings: that are set. change: what no setting says."""

    times: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    change: Change = nullcontext


VARIANTS = {
    "default": Variant(),
    "half the rate": Variant({"lr": 0.5}),
    "twice the rate": Variant({"lr": 2}),
    "half the batch": Variant({"batch_size": 0.5}),
    "warm-up of 1 %": Variant(settings={"training.warmup": 0.01}),
    "warm-up of 15 %": Variant(settings={"training.warmup": 0.15}),
    "cosine": Variant(change=cosine),
    "trapezoid": Variant(change=trapezoid),
    "4 steps of Newton and Schulz": Variant(settings={"training.muon_steps": 4}),
    "3 steps of Newton and Schulz": Variant(settings={"training.muon_steps": 3}),
    "batches that grow": Variant(change=growing),
    "average of 0.99": Variant(settings={"training.average": 0.99}),
    "no dropout": Variant(settings={"model.dropout": 0.0}),
    "dropout of 0.2": Variant(settings={"model.dropout": 0.2}),
    "AdamW, rate of 2e-3": Variant(settings={"training.optimizer": "adamw", "training.lr": 2e-3}),
}


# Trained and told -----------------------------------------------------------------------------------------------------


def settings_of(row: Row, variant: Variant, data: Path) -> dict[str, Any]:
    settings = {**row.settings, **row.files(data), **variant.settings}
    plain = Experiment.of(row.task, row.encoding, settings=settings)
    for name, factor in variant.times.items():
        # A batch of so many tokens takes the place of one of so many examples.
        by_tokens = name == "batch_size" and plain.training["tokens"] is not None
        key = "tokens" if by_tokens else name
        value = plain.training[key]
        settings[f"training.{key}"] = type(value)(value * factor)
    return settings


def is_default(row: Row, variant: Variant, data: Path) -> bool:
    """Whether nothing is changed: a variant may say what the task has by default."""
    each = (settings_of(row, one, data) for one in (variant, VARIANTS["default"]))
    varied, plain = (Experiment.of(row.task, row.encoding, settings=settings).hash for settings in each)
    return varied == plain and variant.change is nullcontext


def trained(row: Row, variant: Variant, folder: Path, data: Path, seed: int) -> Mapping[str, Any]:
    """The result of a run, trained unless it is there already."""
    settings = settings_of(row, variant, data)
    with variant.change():
        return jarilab.train(row.task, folder, encoding=row.encoding, seed=seed, settings=settings, threads=1)


def told(
    row: Row, name: str, results: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], rows: int = 1
) -> str:
    """A line of the table, in Markdown. rows: how many are compared with the default."""
    values = [result[row.metric] for result in results]
    sign = 1 if row.higher else -1
    gains = [sign * (value - plain[row.metric]) for value, plain in zip(values, base, strict=True)]
    gain, half = mean(gains), 0.0
    if len(gains) > 1:
        half = student_quantile(len(gains) - 1, 1 - 0.05 / rows) * stdev(gains) / math.sqrt(len(gains))
    known = f" ({gain - half:+.4f} to {gain + half:+.4f})" if half else ""
    better = "" if results is base else f"{gain:+.4f}{known}"
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
    parser.add_argument("--variants", nargs="+", help="beside the default; all there are, if none is named")
    given = parser.parse_args(arguments)
    row = ROWS[given.row]
    variants = VARIANTS | {name: Variant(settings=shape) for name, shape in row.shapes.items()}
    chosen = given.variants or list(variants)
    for name in chosen:
        if name not in variants:
            parser.error(f"unknown variant {name!r}; {given.row} has: {', '.join(variants)}")
    base: list[Mapping[str, Any]] = []
    print(f"| {given.row} | {row.metric} | better by | CPU-seconds |\n| :--- | ---: | ---: | ---: |", flush=True)
    try:
        others = [name for name in chosen if not is_default(row, variants[name], given.data)]
        for name in ["default", *others]:
            folder = given.out / given.row / name.replace(" ", "-").replace("%", "percent")
            runs = range(1, given.seeds + 1)
            results = [trained(row, variants[name], folder / str(seed), given.data, seed) for seed in runs]
            base = base or results
            print(told(row, name, results, base, max(1, len(others))), flush=True)
    except jarilab.UserError as error:
        print(f"recipes: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
