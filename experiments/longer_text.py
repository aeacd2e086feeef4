"""What becomes of a language model on texts longer than those it was trained on? *Train Short, Test Long*, small.

    python experiments/longer_text.py --text text.txt --out runs/longer-text --seeds 3

The task `text` by characters, two layers, trained on windows of 128 and measured on one held-out text in windows of
128, 256, 512, 1,024 and 2,048, each window by itself and each character counted (Press et al. 2022, without overlap).
A longer window gives most characters more to read, so a model that holds gets a little better. In the paper, trained on
512 words, perplexity at 512, 1,012 and 2,512: sinusoidal 20.1, 43.5, 132.4; rotary 20.1, 21.4, 31.6; T5's bias 19.7,
18.8, 20.4; ALiBi 19.7, 18.7, 18.4. Writes longer_text.md beside the runs.

Minutes: 2 to 3 of one core for each seed (13 CPU-seconds a training, and 5 to measure).
Expected: on tinyshakespeare, one seed, loss at 128, 256 and 2,048: alibi 2.03, 2.03, 2.02; kerple 1.99 throughout; t5
2.05, 2.11, 2.52; sinusoidal 2.22, 2.59, 2.98; rotary 1.94, 2.16, 3.29, in the end the worst, unlike the paper's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from images import at_least_one, markdown, told
from masked import text_of

import jarilab
from jarilab.core.registry import split_specs
from jarilab.core.storage.files import write_text
from jarilab.encodings.compose import canonical

CONTEXT, LONGEST = 128, 2048
ENCODINGS = f"none,sinusoidal,rotary,rotary_dynamic:trained_length={CONTEXT},t5,kerple,fire,alibi"
WINDOWS = 8
"""Of the longest ones: so much text is held out, and no batch is larger."""
SETTINGS: dict[str, Any] = {
    "task.context_length": CONTEXT,
    "model.d_model": 64,
    "model.n_heads": 4,
    "model.n_layers": 2,
    "model.dropout": 0.0,
    "training.epochs": None,
    "training.examples": 9_600,
    "training.batch_size": 16,
    "training.lr": 4e-3,
    "training.evaluations": 1,
}

Losses = Mapping[int, float | str]
"""By length of windows, in nats a character, or why there is none."""


def contexts() -> list[int]:
    """128, 256, ... up to the longest."""
    found = [CONTEXT]
    while found[-1] < LONGEST:
        found.append(2 * found[-1])
    return found


def split(path: Path, out: Path) -> dict[str, str]:
    """Write what to train on and, from the end of the text, what to measure on; the options that name them."""
    text = text_of(path)
    held_out = WINDOWS * LONGEST + 1  # the last character of a window is guessed too
    if len(text) < 2 * held_out:
        raise jarilab.UserError(f"--text expects {2 * held_out:,} characters or more, got {len(text):,}; give more")
    write_text(out / "train.txt", text[:-held_out])
    write_text(out / "valid.txt", text[-held_out:])
    return {"task.train": str(out / "train.txt"), "task.valid": str(out / "valid.txt")}


def measure(folder: Path, contexts: Sequence[int]) -> Losses:
    """The loss of a run on the same held-out text, in windows of each length."""
    run = jarilab.load(folder)
    task: Any = run.task
    found: dict[int, float | str] = {}
    for context in contexts:
        task.context_length = context  # of what is held out; what was trained on is done
        try:
            found[context] = jarilab.evaluate(run, threads=1)["loss"]
        except jarilab.UserError as error:
            found[context] = str(error)
    return found


def table_of(measured: Mapping[str, Sequence[Losses]]) -> str:
    """A row for each encoding, a column for each length; below it, why there is no number."""
    rows, reasons = [], []
    for encoding, of_seeds in measured.items():
        row = [f"`{encoding}`"]
        for context in contexts():
            losses = [one[context] for one in of_seeds]
            numbers = [loss for loss in losses if isinstance(loss, float)]
            row.append(_mean(numbers) if numbers else "-")
            if not numbers:
                reasons.append(f"- `{encoding}` at {context:,}: {losses[0]}\n")
        rows.append(row)
    table = markdown(["loss at", *(f"{context:,}" for context in contexts())], rows)
    return table + ("\n" + "".join(reasons) if reasons else "")


def _mean(numbers: Sequence[float]) -> str:
    """With the lowest and the highest seed, where there are several."""
    mean = f"{sum(numbers) / len(numbers):.3f}"
    return mean if len(numbers) == 1 else f"{mean} ({min(numbers):.3f} to {max(numbers):.3f})"


def run(path: Path, out: Path, encodings: Sequence[str], seeds: int) -> str:
    """Train what is not trained yet, measure, write longer_text.md into `out`; the table. Raises UserError."""
    out.mkdir(parents=True, exist_ok=True)
    settings = {**SETTINGS, **split(path, out)}
    measured: dict[str, list[Losses]] = {}
    for seed in range(1, seeds + 1):
        for encoding in map(canonical, encodings):
            folder = out / f"{encoding.replace(':', '_')}-{seed}"
            jarilab.train("text", folder, encoding=encoding, settings=settings, seed=seed, threads=1)
            measured.setdefault(encoding, []).append(measure(folder, contexts()))
            print(f"{encoding}, seed {seed}: {measured[encoding][-1]}", file=sys.stderr)
    table = table_of(measured)
    (out / "longer_text.md").write_text(table, encoding="utf-8")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="Language models on windows longer than those they were trained on.")
    parser.add_argument("--text", required=True, type=Path, help="a file of text in UTF-8")
    parser.add_argument("--out", required=True, type=Path, help="the folder for runs and table")
    parser.add_argument("--encodings", default=ENCODINGS, help="with commas between (%(default)s)")
    parser.add_argument("--seeds", default=3, type=at_least_one, help="trainings of each (%(default)s)")
    given = parser.parse_args(arguments)
    return told(lambda: run(given.text, given.out, split_specs(given.encodings), given.seeds))


if __name__ == "__main__":
    sys.exit(main())
