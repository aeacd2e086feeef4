"""What is an encoding worth on images? The table of encodings on real handwritten digits.

    python experiments/images.py --out runs/images --seeds 5
    python experiments/images.py --mnist FOLDER --out runs/mnist --seeds 5

The same Vision Transformer with every encoding, over paired seeds, in the shape of the table that
s-chh/2D-Positional-Encoding-Vision-Transformer publishes for CIFAR-10; its figures stand beside ours. On scikit-learn's
scans of 8 x 8 pixels in 4 x 4 patches, or on MNIST: 10,000 images to train on, patches of 7 pixels, so 4 x 4 too, and
all test images to measure on. Writes images.md and images.svg, and the trials into a folder beside them.

Minutes: 25 of one core for the digits (31 CPU-seconds a training), 30 for MNIST, half of that on two.
Expected: on the digits at least 96 % with learned2d, sinusoidal2d and rotary2d, at most 85 % without positions.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jarilab
from jarilab.comparison.statistics import mean_interval
from jarilab.core.storage.files import read_json
from jarilab.data.images import idx
from jarilab.tasks.metrics import METRICS, Metric

GRID = (4, 4)
"""Rows and columns of patches."""

MNIST_IMAGES = 10_000
SETTINGS: dict[str, Any] = {"model.d_model": 64, "model.n_layers": 4}
MNIST_SETTINGS: dict[str, Any] = {**SETTINGS, "model.patch_size": 7, "training.epochs": 6}
PUBLISHED = {"none": 79.63, "learned": 86.52, "sinusoidal2d": 86.09, "rotary2d": 88.49, "shaw2d": 90.57}
"""Per cent on CIFAR-10, by the names of our encodings."""

Values = Sequence[float]
"""What was measured, seed by seed."""


def specs_of(grid: tuple[int, int]) -> list[str]:
    """Every encoding of images, as large as the grid needs."""
    rows, columns = grid
    return [
        "none",
        f"learned:positions={rows * columns}",
        f"learned2d:rows={rows},columns={columns}",
        "sinusoidal2d",
        "rotary2d",
        "rotary2d:frequencies=mixed",
        f"shaw2d:clip={max(rows, columns) - 1}",
        f"table2d:rows={rows - 1},columns={columns - 1}",
        "alibi2d",
    ]


def task_of(mnist: str | None, out: Path) -> tuple[str, dict[str, Any]]:
    """The task and its settings. Raises UserError where the folder holds no MNIST."""
    if mnist is None:
        return "digits", SETTINGS
    some = out / f"mnist-{MNIST_IMAGES}"
    write_first(Path(mnist), some, MNIST_IMAGES)
    return "images", {**MNIST_SETTINGS, "task.train": str(some), "task.valid": mnist}


def write_first(mnist: Path, out: Path, count: int) -> None:
    """The first `count` training images of MNIST and their labels, as idx files. Raises UserError."""
    images = idx.find(mnist, held_out=False) if mnist.is_dir() else None
    if images is None:
        raise jarilab.UserError(f"--mnist expects a folder with MNIST's four idx files, got {mnist}; name that folder")
    out.mkdir(parents=True, exist_ok=True)
    for name, path, magic in (
        ("train-images-idx3-ubyte", images, idx.IMAGES),
        ("train-labels-idx1-ubyte", idx.labels_of(images), idx.LABELS),
    ):
        first = idx.read(path, magic)[:count]
        (out / name).write_bytes(magic + struct.pack(f">{first.ndim}I", *first.shape) + first.numpy().tobytes())


def results_of(study: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What the trials of `jarilab.compare` ended with, by encoding, seed by seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for trial in study["trials"]:
        result = json.loads((Path(trial["run"]) / "result.json").read_text(encoding="utf-8"))
        found.setdefault(trial["encoding"], []).append(result)
    return found


def mean_text(values: Values, metric: Metric, held_out: int) -> str:
    """A mean with its 95 % interval."""
    found = mean_interval(values, held_out, share=metric.share)
    if found.low is None or found.high is None:
        return metric.text(found.mean)
    return f"{metric.text(found.mean)} ({metric.text(found.low)} to {metric.text(found.high)})"


def difference_text(first: Values, second: Values, metric: Metric) -> str:
    """first - second, paired over seeds, with its 95 % interval."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    found = mean_interval(differences, held_out=0, share=False)
    mean = metric.text(found.mean, "+")
    if found.low is None or found.high is None:
        return mean
    return f"{mean} ({metric.text(found.low, '+')} to {metric.text(found.high, '+')})"


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table: its first column to the left, numbers to the right."""
    rule = [":---"] + ["---:"] * (len(titles) - 1)
    return "".join(f"| {' | '.join(row)} |\n" for row in (titles, rule, *rows))


def table_of(study: Mapping[str, Any]) -> str:
    """A row for each encoding: accuracy, what it is beyond that of the first, the published figure, size and cost."""
    metric = METRICS[study["metric"]]
    results = results_of(study)
    base = [result[metric.name] for result in next(iter(results.values()))]
    rows = []
    for encoding, trials in results.items():
        values = [trial[metric.name] for trial in trials]
        published = PUBLISHED.get(encoding.partition(":")[0] if "mixed" not in encoding else "")
        seconds = sum(trial["cpu_seconds"] for trial in trials) / len(trials)
        rows.append(
            [
                f"`{encoding}`",
                mean_text(values, metric, int(trials[0]["examples"])),
                "" if encoding == next(iter(results)) else difference_text(values, base, metric),
                "" if published is None else f"{published:.2f}%",
                f"{trials[0]['parameters']:,}",
                f"{seconds:.0f}",
            ]
        )
    beyond = f"beyond {next(iter(results))}, paired"
    return markdown(["encoding", metric.title, beyond, "CIFAR-10, published", "parameters", "CPU-seconds"], rows)


def figure_class() -> Any:
    """matplotlib's. Raises UserError where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise jarilab.UserError(
            "the figure is drawn by matplotlib; install it with pip install 'jarilab[dev]'"
        ) from None
    return Figure


def draw(path: Path, labels: Sequence[str], series: Mapping[str, Sequence[Values | None]], title: str) -> None:
    """A line for each label, and on it the mean of each series, a share, with its interval over seeds; None is left
    out."""
    figure = figure_class()(figsize=(8, 1.2 + 0.4 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for number, (name, measured) in enumerate(series.items()):
        there = [(at, values) for at, values in enumerate(measured) if values is not None]
        ends = [mean_interval(values, 1, share=False) for _, values in there]
        low = [0.0 if end.low is None else end.mean - max(0.0, end.low) for end in ends]
        high = [0.0 if end.high is None else min(1.0, end.high) - end.mean for end in ends]
        places = [at + 0.5 * (number + 0.5) / len(series) - 0.25 for at, _ in there]
        axes.errorbar([end.mean for end in ends], places, xerr=(low, high), fmt="o", capsize=3, label=name)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.5)
    axes.set_title(title)
    if len(series) > 1:
        axes.legend()
    figure.savefig(path)


def written(out: Path, name: str, table: str) -> str:
    """Write the table beside the figure, and say so behind it."""
    (out / f"{name}.md").write_text(table, encoding="utf-8")
    return f"{table}wrote {out / name}.md and {out / name}.svg\n"


def run(out: Path, seeds: int, mnist: str | None = None, jobs: int | None = None) -> str:
    """Train what is not trained yet, write images.md and images.svg into `out`; the table. Raises UserError."""
    figure_class()  # before the training, not after it
    task, settings = task_of(mnist, out)
    study = jarilab.compare(task, out / "trials", encodings=specs_of(GRID), seeds=seeds, settings=settings, jobs=jobs)
    metric = METRICS[study["metric"]]
    results = results_of(study)
    accuracy = [[trial[metric.name] for trial in trials] for trials in results.values()]
    draw(out / "images.svg", list(results), {metric.title: accuracy}, f"held-out {metric.title}, 95 % intervals")
    return written(out, "images", table_of(study))


def parser_of(description: str, seeds: int) -> argparse.ArgumentParser:
    """The options that these experiments share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", required=True, type=Path, help="the folder for trials, table and figure")
    parser.add_argument("--seeds", default=seeds, type=int, help="trials of each (%(default)s)")
    parser.add_argument(
        "--jobs", type=int, help="trials at a time, with one thread each; by default all cores are used"
    )
    return parser


def at_least_one(text: str) -> int:
    """A count on the command line."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}; write 1 or more")
    return count


def told(work: Callable[[], str]) -> int:
    """Print what `work` says; the exit code, 2 for a mistake of the user's."""
    try:
        print(work(), end="")
    except jarilab.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def main_of_measurements(module: Any, needed: str, out: str, arguments: Sequence[str] | None = None) -> int:
    """Run a module's `run(data, out, seeds)`, or print its `table` of kept measurements; the exit code.

    needed: what its folder --data holds. out: the folder where it writes by default.
    """
    parser = argparse.ArgumentParser(description=(module.__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help=f"folder with {needed}")
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument("--table", type=Path, help="print the table of kept measurements")
    given = parser.parse_args(arguments)
    if given.table is not None:
        return told(lambda: module.table(read_json(given.table)))
    if given.data is None:
        parser.error(f"expected --data, the folder with {needed}; got none")
    return told(lambda: module.run(given.data, given.out, given.seeds))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("The same Vision Transformer under every encoding of images.", seeds=5)
    parser.add_argument("--mnist", help="a folder with MNIST's idx files, instead of scikit-learn's scans")
    given = parser.parse_args(arguments)
    return told(lambda: run(given.out, given.seeds, given.mnist, given.jobs))


if __name__ == "__main__":
    sys.exit(main())
