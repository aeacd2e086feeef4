"""What becomes of a language model on texts longer than those it was trained on? *Train Short, Test Long*, small.

    python experiments/longer_text.py --text text.txt --out runs/longer-text --seeds 3

The task `text` by characters, two layers, trained on windows of 128 and measured on the held-out tenth of the text in
windows of 128, 256, 512 and 2,048, without overlap. The rotary models are then read by the encodings that stretch them,
with nothing trained. Writes longer_text.json, and the tables as longer_text.md, beside the runs; `--table FILE` prints
the tables of such a file.

In the paper (Press et al. 2022), trained on 512 words, perplexity at 512, 1,012 and 2,512: sinusoidal 20.1, 43.5,
132.4; rotary 20.1, 21.4, 31.6; T5's bias 19.7, 18.8, 20.4; ALiBi 19.7, 18.7, 18.4.

Minutes: 3 of one core for each seed (13 CPU-seconds a training, and 5 to measure).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from images import at_least_one, markdown, told

import jarilab
from jarilab.core.registry import split_specs
from jarilab.core.storage.files import read_json, write_json

CONTEXT = 128
LENGTHS = (128, 256, 512, 2048)
ENCODINGS = "none,sinusoidal,learned:positions=2048,rotary,t5,alibi,kerple,fire"
SETTINGS: dict[str, Any] = {
    "task.context_length": CONTEXT,
    "model.d_model": 64,
    "model.n_heads": 4,
    "model.n_layers": 2,
    "training.examples": 9_600,
    "training.batch_size": 16,
    "training.lr": 4e-3,
    "training.evaluations": 1,
}
STRETCHED = {
    "rotary": "rotary",
    "rotary_linear": "rotary_linear:factor={factor}",
    "rotary_ntk": "rotary_ntk:factor={factor}",
    "rotary_dynamic": "rotary_dynamic:trained_length={trained}",
    "yarn": "yarn:factor={factor},trained_length={trained}",
    "llama3": "llama3:base=10000,factor={factor},trained_length={trained}",
}
"""Encodings that read a rotary model of the base 10,000. factor: the length over the trained one."""

Losses = Mapping[str, Mapping[str, Sequence[float]]]
"""Nats a character, by encoding and by length of windows, of each seed."""


def losses_of(table: Mapping[str, Any]) -> Losses:
    """The losses in the table of a study."""
    losses: dict[str, dict[str, list[float]]] = {}
    for trial in table["trials"]:
        of_encoding = losses.setdefault(trial["encoding"], {})
        for length, measured in trial["lengths"].items():
            of_encoding.setdefault(length, []).append(measured["value"])
    return losses


def stretched_losses(table: Mapping[str, Any]) -> Losses:
    """The losses of the rotary models, read by encodings that stretch positions."""
    runs = [jarilab.load(trial["run"]) for trial in table["trials"] if trial["encoding"] == "rotary"]
    losses: dict[str, dict[str, list[float]]] = {}
    for name, spec in STRETCHED.items() if runs else ():
        for length in table["lengths"]["at"]:
            count, trained = length["length"], table["lengths"]["trained"]
            encoding = spec.format(factor=count / trained, trained=trained)
            measured = (jarilab.evaluate(run, length=count, encoding=encoding, threads=1) for run in runs)
            losses.setdefault(name, {})[str(count)] = [each["loss"] for each in measured]
    return losses


def tables_of(record: Mapping[str, Any]) -> str:
    """Two tables: every encoding at every length, and rotary models read by the encodings that stretch them."""
    return "\n".join(_rows(title, record[name]) for title, name in _tables(record))


def _tables(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "loss at", "losses"
    if record["stretched"]:
        yield "rotary, read by", "stretched"


def _rows(title: str, losses: Losses) -> str:
    lengths = sorted({int(length) for of_encoding in losses.values() for length in of_encoding})
    rows = [
        [f"`{encoding}`", *(_mean(of_encoding.get(str(length), [])) for length in lengths)]
        for encoding, of_encoding in losses.items()
    ]
    return markdown([title, *(f"{length:,}" for length in lengths)], rows)


def _mean(values: Sequence[float]) -> str:
    """With the lowest and the highest seed, where there are several."""
    if not values:
        return "-"
    mean = f"{sum(values) / len(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def run(path: Path, out: Path, encodings: Sequence[str], seeds: int) -> str:
    """Train what is not trained yet, measure, write longer_text.json and .md into `out`; the tables."""
    settings = SETTINGS | {"task.train": str(path)}
    table = jarilab.compare(
        "text", out / "study", encodings=encodings, seeds=seeds, settings=settings, eval_lengths=LENGTHS
    )
    record = {"losses": losses_of(table), "stretched": stretched_losses(table)}
    write_json(out / "longer_text.json", record)
    (out / "longer_text.md").write_text(tables_of(record), encoding="utf-8")
    return tables_of(record)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="Language models on windows longer than those they were trained on.")
    parser.add_argument("--text", type=Path, help="a file of text in UTF-8")
    parser.add_argument("--out", type=Path, help="the folder for runs and tables")
    parser.add_argument("--encodings", default=ENCODINGS, help="with commas between (%(default)s)")
    parser.add_argument("--seeds", default=3, type=at_least_one, help="trainings of each (%(default)s)")
    parser.add_argument("--table", type=Path, help="print the tables of this longer_text.json, and stop")
    given = parser.parse_args(arguments)
    if given.table is not None:
        return told(lambda: tables_of(read_json(given.table)))
    if given.text is None or given.out is None:
        parser.error("--text and --out are required, or --table")
    return told(lambda: run(given.text, given.out, split_specs(given.encodings), given.seeds))


if __name__ == "__main__":
    sys.exit(main())
