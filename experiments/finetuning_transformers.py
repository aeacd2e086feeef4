"""Which learning rate to train on from a transformers model?

    python experiments/finetuning_transformers.py --data DATA --out runs/finetuning-transformers --seeds 3

A small language model learns the English captions of Multi30k and is exported as GPT-2 of transformers. Then it is
trained on from this folder with the first 300,000 characters of tinyshakespeare, at shares of the learning rate of the
task. Beside it: the same model and tokenizer from random values, and the first model as it is. All are measured on the
same last tenth. DATA has multi30k/train.en.gz and tinyshakespeare/input.txt. Writes finetuning-transformers.json
beside the runs; `--table FILE` prints the table of such a file.

Minutes: 4 of one core for each seed.
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
from jarilab.export.huggingface import export

CHARACTERS = 300_000
RATE = 4e-3
"""The learning rate of the task."""
SHARES = {"a tenth of the": 0.1, "a third of the": 1 / 3, "the whole": 1}
MODEL = {
    "model.d_model": 64,
    "model.n_heads": 4,
    "model.n_layers": 2,
    "model.dropout": 0.0,
    "model.encoding": "learned",
}
TRAINING = {"task.context_length": 64, "training.evaluations": 1}
BASE = {"training.epochs": 4, "task.tokenizer": "bpe", "task.vocab_size": 2000, **MODEL, **TRAINING}
LONGER = {"training.epochs": 5, **TRAINING}
METRIC = "bits_per_character"


def measured(captions: Path, plays: Path, out: Path, seed: int) -> dict[str, float]:
    """Bits per character of the models of a seed on the held-out end of the plays."""
    base, folder = out / f"base-{seed}", out / f"gpt2-{seed}"
    same: dict[str, Any] = {"seed": seed, "threads": 1}
    jarilab.train("text", base, settings={"task.train": str(captions), **BASE}, **same)
    export(base, folder)
    few = {"task.train": str(plays), **LONGER}
    results = {}
    for name, share in SHARES.items():
        settings = {**few, "training.lr": round(share * RATE, 6)}
        run = out / f"from-{share:.2f}-{seed}"
        result = jarilab.train("text", run, init=folder, settings=settings, **same)
        results[f"from weights, {name} rate"] = result[METRIC]
    settings = {**few, **MODEL, "task.tokenizer": str(folder)}
    alone = jarilab.train("text", out / f"alone-{seed}", settings=settings, **same)
    results["from random values, the whole rate"] = alone[METRIC]
    end = out / "end.txt"
    text = plays.read_text(encoding="utf-8")
    end.write_text(text[-len(text) // 10 :], encoding="utf-8")
    results["not trained on"] = jarilab.evaluate(base, data=[str(end)], threads=1)[METRIC]
    return results


def table(kept: Mapping[str, Any]) -> str:
    """The table of kept measurements: means, and the values of each seed."""
    seeds = list(kept["seeds"].values())
    rows = []
    for kind in seeds[0]:
        values = [seed[kind] for seed in seeds]
        rows.append([kind, f"{mean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"])
    return markdown([f"{kept['characters']:,} characters of plays", "bits per character"], rows)


def run(data: Path, out: Path, seeds: int) -> str:
    """Train and measure, keep the numbers, and return the table."""
    out.mkdir(parents=True, exist_ok=True)
    captions, plays = out / "captions.txt", out / "plays.txt"
    captions.write_bytes(gzip.decompress((data / "multi30k" / "train.en.gz").read_bytes()))
    text = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    plays.write_text(text[:CHARACTERS], encoding="utf-8")
    kept: dict[str, Any] = {"characters": CHARACTERS, "seeds": {}}
    for seed in range(1, seeds + 1):
        kept["seeds"][str(seed)] = measured(captions, plays, out, seed)
        write_json(out / "finetuning-transformers.json", kept)
    return table(kept)


def main(arguments: Sequence[str] | None = None) -> int:
    needed = "multi30k/train.en.gz and tinyshakespeare/input.txt"
    return main_of_measurements(sys.modules[__name__], needed, "runs/finetuning-transformers", arguments)


if __name__ == "__main__":
    sys.exit(main())
