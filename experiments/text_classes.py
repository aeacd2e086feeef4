"""What a classifier of texts learns: the language of a line, and who did what to whom.

    python experiments/text_classes.py --data data --out runs/text-classes --seeds 3

Two data sets for the task `classify`. `languages.tsv` has a line and its language: 1,500 lines each of Multi30k's
German, English and French, and of Tatoeba's English and Korean, written from the folders multi30k and tatoeba-ko-en of
`--data`; a tenth is held out, chosen by content. The pairs of sentences are those that the task generates: with and
without positions. Writes text_classes.json beside the runs; `--table FILE` prints the table of such a file.

Minutes: 3 of one core for each seed.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from images import main_of_measurements, markdown

import jarilab
from jarilab.core.storage.files import write_json

LINES = 1500
LANGUAGES = {"training.examples": 6_000, "task.vocab_size": 1000, "task.longest": 64, "training.evaluations": 2}
ROLES = {"training.examples": 120_000, "training.evaluations": 5}
MEASURED = ("accuracy", "macro_f1", "cpu_seconds")


def languages(data: Path) -> Iterator[tuple[str, str]]:
    """Lines with their language."""
    for language in ("de", "en", "fr"):
        with gzip.open(data / "multi30k" / f"train.{language}.gz", "rt", encoding="utf-8") as lines:
            yield from ((language, line.strip()) for line in islice(lines, LINES))
    with (data / "tatoeba-ko-en" / "kor.txt").open(encoding="utf-8") as lines:
        for line in islice(lines, LINES):
            english, korean, *_ = line.split("\t")
            yield "en", english.strip()
            yield "ko", korean.strip()


def measured(out: Path, seed: int) -> dict[str, dict[str, float]]:
    """The measurements of a seed, by name of the data and the encoding."""
    file = {"task.train": str(out / "languages.tsv"), **LANGUAGES}
    trials = {
        "language of a line, rotary": ("rotary", file),
        "who did what to whom, rotary": ("rotary", ROLES),
        "who did what to whom, none": ("none", ROLES),
    }
    results = {}
    for number, (name, (encoding, settings)) in enumerate(trials.items()):
        folder = out / f"{number}-{seed}"
        words = {"encoding": encoding, "seed": seed, "threads": 1, "precision": "float32"}
        result = jarilab.train("classify", folder, settings=settings, **words)
        results[name] = {key: result[key] for key in MEASURED}
    return results


def table(kept: Mapping[str, Any]) -> str:
    """The table of kept measurements, each the mean over seeds."""
    seeds = list(kept["seeds"].values())
    rows = []
    for name in seeds[0]:
        accuracy, f1, seconds = (mean(seed[name][key] for seed in seeds) for key in MEASURED)
        rows.append([name, f"{accuracy:.2%}", f"{f1:.2%}", f"{seconds:.0f}"])
    return markdown(["data, encoding", "accuracy", "macro-F1", "CPU-seconds"], rows)


def run(data: Path, out: Path, seeds: int) -> str:
    """Write the lines, train and measure, keep the numbers, and return the table."""
    out.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{language}\t{line}\n" for language, line in languages(data) if line)
    (out / "languages.tsv").write_text(rows, encoding="utf-8")
    kept: dict[str, Any] = {"lines": LINES, "seeds": {}}
    for seed in range(1, seeds + 1):
        kept["seeds"][str(seed)] = measured(out, seed)
        write_json(out / "text_classes.json", kept)
    return table(kept)


def main(arguments: Sequence[str] | None = None) -> int:
    return main_of_measurements(sys.modules[__name__], "multi30k and tatoeba-ko-en", "runs/text-classes", arguments)


if __name__ == "__main__":
    sys.exit(main())
