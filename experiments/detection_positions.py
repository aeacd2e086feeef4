"""Where does a detector need positions? The question of table 3 of DETR (Carion et al. 2020), on scenes of digits.

    python experiments/detection_positions.py --out runs/detection-positions --seeds 3
    python experiments/detection_positions.py --digits FOLDER --examples 128000 --out runs/detection-mnist

DETR found 32.8 AP without spatial encoding, 39.2 with sines added once at the input and 40.6 with sines in queries and
keys of every attention. The same detector with each of these, and with rotations in every attention, over paired seeds.
Queries start at learned boxes and have a place in the image, or none, as DETR's, with --query-positions vectors.
Three strided convolutions make the tokens, and see their rim: the model without encoding is not quite blind.
Writes detection_positions.md and .svg, and the trials into folders beside them.

Minutes: 11 of one core for each seed (150 CPU-seconds a training of 48,000 scenes).
Expected: on MNIST's digits, 32,000 scenes, one seed: AP 0.050 nowhere, 0.409 once at the input, 0.384 at every
attention, 0.591 by rotations.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images import difference_text, draw, figure_class, markdown, mean_text, parser_of, results_of, told, written

import jarilab
from jarilab.tasks.metrics import METRICS


@dataclass(frozen=True)
class Variant:
    """Where positions are given. cross: the encoding between queries and image where it is another."""

    name: str
    encoding: str
    cross: str | None = None


VARIANTS = (
    Variant("nowhere", "none"),
    # What is added to the input alone has nothing to do between queries and image.
    Variant("once, at the input", "sinusoidal2d:normalised=true", "none"),
    Variant("at every attention", "sinusoidal2d:where=inject,normalised=true"),
    Variant("at every attention, rotary", "rotary2d"),
)
AS_DETR = 2
"""What the others are held against."""

SETTINGS: dict[str, Any] = {"training.evaluations": 2}
METRIC_NAMES = ("ap", "ap50")

Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""What the trials of each variant ended with, seed by seed."""


def settings_of(variant: Variant, examples: int, query_positions: str, digits: str | None) -> dict[str, Any]:
    """Those of one variant: they differ in nothing but the encoding."""
    cross = {} if variant.cross is None else {"model.cross_encoding": variant.cross}
    return {
        **SETTINGS,
        **cross,
        "task.digits": digits,
        "model.query_positions": query_positions,
        "training.examples": examples,
    }


def table_of(results: Results) -> str:
    """A row for each variant: AP and AP50, and how far both are from DETR's choice."""
    base = results[VARIANTS[AS_DETR].name]
    rows = []
    for variant in VARIANTS:
        trials = results[variant.name]
        row = [variant.name, f"`{variant.encoding}`"]
        for name in METRIC_NAMES:
            values = [trial[name] for trial in trials]
            row.append(mean_text(values, METRICS[name], int(trials[0]["examples"])))
            own = [trial[name] for trial in base]
            row.append("" if trials is base else difference_text(values, own, METRICS[name]))
        rows.append([*row, f"{sum(trial['cpu_seconds'] for trial in trials) / len(trials):.0f}"])
    beyond = f"beyond `{VARIANTS[AS_DETR].name}`, paired"
    return markdown(["positions", "encoding", "AP", beyond, "AP50", beyond, "CPU-seconds"], rows)


def run(
    out: Path, seeds: int, examples: int, query_positions: str, digits: str | None = None, jobs: int | None = None
) -> str:
    """Train what is not trained yet, write detection_positions.md and .svg into `out`; the table. Raises UserError."""
    figure_class()  # before the training, not after it
    results: dict[str, Sequence[Mapping[str, Any]]] = {}
    for variant in VARIANTS:
        study = jarilab.compare(
            "detection",
            out / variant.name.replace(",", "").replace(" ", "-"),
            encodings=[variant.encoding],
            seeds=seeds,
            settings=settings_of(variant, examples, query_positions, digits),
            jobs=jobs,
        )
        (results[variant.name],) = results_of(study).values()
    series = {
        METRICS[name].title: [[trial[name] for trial in results[variant.name]] for variant in VARIANTS]
        for name in METRIC_NAMES
    }
    labels = [variant.name for variant in VARIANTS]
    draw(out / "detection_positions.svg", labels, series, "positions in a detector, 95 % intervals")
    return written(out, "detection_positions", table_of(results))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("The same detector with positions nowhere, at the input, and at every attention.", seeds=3)
    parser.add_argument("--digits", help="a folder with MNIST's idx files to make scenes of, not scikit-learn's scans")
    parser.add_argument("--examples", default=48_000, type=int, help="scenes to train on (%(default)s)")
    parser.add_argument("--query-positions", default="boxes", choices=("boxes", "vectors"))
    given = parser.parse_args(arguments)
    return told(lambda: run(given.out, given.seeds, given.examples, given.query_positions, given.digits, given.jobs))


if __name__ == "__main__":
    sys.exit(main())
