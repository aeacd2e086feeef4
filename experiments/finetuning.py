"""Does training on from weights help where there are 500 sentences?

    python experiments/finetuning.py --data multi30k --out runs/finetuning --seeds 3

A small model learns to translate German into English from Multi30k, without its first 500 lines. Then it is trained on
from these weights with those 500 lines in German and French, another language that it has never written, at shares of
the learning rate of the task. Beside it: the same model, vocabulary and 500 pairs from random values, and the first
model as it is. All are measured on the 1,000 lines of test_2016_flickr in German and French: perplexity, chrF and BLEU.
The folder has train.de.gz, train.en.gz, train.fr.gz and test_2016_flickr of the same languages. Writes finetuning.json
beside the runs; `--table FILE` prints the table of such a file.

Minutes: 2 of one core for each seed.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from images import main_of_measurements, markdown

import jarilab
from jarilab.core.storage.files import write_json

PAIRS = 500
MODEL = {
    "model.d_model": 64,
    "model.d_ff": 128,
    "model.n_heads": 4,
    "model.n_encoder_layers": 1,
    "model.n_decoder_layers": 1,
}
TRAINING = {"training.batch_size": 64, "training.evaluations": 1, "training.evaluation_examples": 50}
BASE = {"training.examples": 29_000, "task.vocab_size": 2000, **MODEL, **TRAINING}
LONGER = {"training.examples": 20 * PAIRS, **TRAINING}
METRICS = ("perplexity", "chrf", "bleu")
RATE = 4e-3
"""The learning rate of the task, the default of a training from weights, too."""
SHARES = {"a tenth of the": 0.1, "a third of the": 1 / 3, "half the": 0.5, "the whole": 1}
"""The shares of this rate that a training from weights is given."""


def cut(data: Path, out: Path) -> dict[str, list[str]]:
    """The files of the trainings: the first 500 pairs, and the lines behind them."""
    files: dict[str, list[str]] = {"few": [], "many": []}
    for name, languages in (("few", ("de", "fr")), ("many", ("de", "en"))):
        for language in languages:
            with gzip.open(data / f"train.{language}.gz", "rt", encoding="utf-8") as stream:
                lines = stream.readlines()
            lines = lines[:PAIRS] if name == "few" else lines[PAIRS:]
            path = out / f"{name}.{language}"
            path.write_text("".join(lines), encoding="utf-8")
            files[name].append(str(path))
    return files


def measured(data: Path, out: Path, files: Mapping[str, list[str]], seed: int) -> dict[str, Any]:
    """The metrics of the four models of a seed on the test lines in German and French."""
    test = [str(data / f"test_2016_flickr.{language}.gz") for language in ("de", "fr")]
    english = [str(data / f"test_2016_flickr.{language}.gz") for language in ("de", "en")]
    base, same = out / f"base-{seed}", {"seed": seed, "threads": 1, "precision": "float32"}
    sources = {"task.train": files["many"], "task.valid": english}
    jarilab.train("translation", base, settings={**sources, **BASE}, **same)
    few = {"task.train": files["few"], "task.valid": test, **LONGER}
    results = {}
    for name, share in SHARES.items():
        settings = {**few, "training.lr": round(share * RATE, 6)}
        folder = out / f"from-{share:.2f}-{seed}"
        results[f"from weights, {name} rate"] = jarilab.train(
            "translation", folder, init=base, settings=settings, **same
        )
    alone = {**few, **MODEL, "task.tokenizer": str(base)}
    results["from random values, the whole rate"] = jarilab.train(
        "translation", out / f"alone-{seed}", settings=alone, **same
    )
    results["not trained on"] = jarilab.evaluate(base, data=test, threads=1)
    return {kind: {name: result[name] for name in METRICS} for kind, result in results.items()}


def table(kept: Mapping[str, Any]) -> str:
    """The table of kept measurements: means, and the values of each seed."""
    rows = []
    seeds = list(kept["seeds"].values())
    for kind in seeds[0]:
        row = [kind]
        for name in METRICS:
            values = [seed[kind][name] for seed in seeds]
            each = ", ".join(f"{value:.1f}" for value in values)
            row.append(f"{mean(values):.1f} ({each})")
        rows.append(row)
    return markdown([f"{kept['pairs']} pairs, German to French", *METRICS], rows)


def run(data: Path, out: Path, seeds: int) -> str:
    """Train and measure, keep the numbers, and return the table."""
    out.mkdir(parents=True, exist_ok=True)
    files = cut(data, out)
    kept: dict[str, Any] = {"pairs": PAIRS, "seeds": {}}
    for seed in range(1, seeds + 1):
        kept["seeds"][str(seed)] = measured(data, out, files, seed)
        write_json(out / "finetuning.json", kept)
    return table(kept)


def main(arguments: Sequence[str] | None = None) -> int:
    return main_of_measurements(sys.modules[__name__], "Multi30k's files", "runs/finetuning", arguments)


if __name__ == "__main__":
    sys.exit(main())
