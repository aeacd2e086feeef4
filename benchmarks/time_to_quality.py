"""How soon is a model good? CPU-seconds of training until fixed marks, jari and others, each by its own recipe.

    pip install transformers accelerate && pip install --no-deps vit-pytorch einops
    pip install --no-deps joeynmt && pip install importlib_metadata tensorboard "sentencepiece<0.2" subword-nmt
    python benchmarks/time_to_quality.py --data FOLDER --out runs/time-to-quality

A row for each task: arithmetic (nothing to read), language (FOLDER/tinyshakespeare/input.txt), images (FOLDER/mnist),
translation (FOLDER/multi30k/train.de.gz and its like). What is not installed is left out.

jari trains as `jarilab train` does, with the settings that stand in ROWS and its defaults beside them. The others, in
`peers.py` and `peers_translation.py`:

arithmetic: torch.nn.Transformer of the same size (2+2 layers, width 64), learned positions, AdamW at 1e-3, a warm-up of
2 % and a linear decay over 4,000 steps of 512, float32: `arithmetic.py`.
language: nanoGPT's `train_shakespeare_char.py` for a CPU, written here as small as it is: GPT-2 with 4 layers of width
128, 4 heads, no bias, no dropout, context 64, batches of 12, AdamW from 1e-3 to 1e-4 by a cosine over 2,000 steps with
a warm-up of 100, betas 0.9 and 0.99, weight decay 0.1 of matrices, clipping at 1; it publishes a loss of 1.88.
images: vit-pytorch's ViT of the same size (6 layers of width 64, 4 heads, patches of 4, class token), AdamW at 1e-3, a
warm-up of 2 % and a cosine to 0 over 4 passes in batches of 128, label smoothing 0.1, float32, no dropout. jari moves
images by up to 2 pixels in training, its default; vit-pytorch has no recipe for that.
translation: German to English, all of the same size (2+2 layers of width 128, a vocabulary of 4,000), greedy BLEU on
the validation set, for JoeyNMT on 200 sentences of it, since it writes slowly. jari keeps a mean of its weights with a
decay of 0.99, and takes twice its usual rate. JoeyNMT: its own trainer and the recipe of its IWSLT14
configuration (Adam at 3e-4, lowered where BLEU stands still, 4,096 tokens a batch, dropout 0.3). Marian: transformers'
Seq2SeqTrainer, AdamW at 5e-4, a warm-up of 20 % and a linear decay over 8 passes of 128 sentences of like length; no
recipe of Marian's for so few sentences is published. Both end at the last mark or after --cap CPU-seconds.

Each is looked at forty times (translation twenty times, JoeyNMT each 100 steps), on the same held-out data; that is not
counted. Each in a process of its own, one after the other, in one thread. What was found is kept in --out, a line for
each look, and not measured again.

The others have one learning rate each, which nobody has searched for. Search for it before you compare.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peers
import peers_translation
import timing
import torch
from peers import LOOKS, Budget, Tell

import jarilab

Look = tuple[float, float]
"""CPU-seconds of training so far, and how good the model is."""
Peer = Callable[[Path, Path, int, Budget, Tell], None]
JARI = "jari"


@dataclass(frozen=True)
class Row:
    """A task. settings, encoding: of jari's run. examples: on how many it trains in all. marks: what is to be reached,
    in order. unit: of marks; higher: whether more of it is better. peers: the others. files: where jari reads the
    data. looks: how often the model is looked at."""

    task: str
    encoding: str
    settings: dict[str, Any]
    examples: int
    marks: Sequence[float]
    unit: str
    higher: bool
    peers: Mapping[str, Peer]
    files: Callable[[Path], dict[str, Any]] = field(default=lambda data: {})
    looks: int = LOOKS

    def reached(self, looks: Sequence[Look], mark: float) -> float | None:
        """The CPU-seconds of the first look that is as good."""
        sign = 1 if self.higher else -1
        return next((seconds for seconds, value in looks if sign * value >= sign * mark), None)


# What trains ----------------------------------------------------------------------------------------------------------


def ours(row: Row, data: Path, out: Path, seed: int, share: float) -> list[Look]:
    """jari's own curve; a run that was ended is read, one that was broken off goes on."""
    examples = max(row.settings.get("training.batch_size", 1), int(share * row.examples))
    settings = {"training.examples": examples, "training.evaluations": row.looks if share == 1 else 2}
    settings |= {**row.settings, **row.files(data)}
    jarilab.train(row.task, out, encoding=row.encoding, seed=seed, settings=settings, threads=1)
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [(line["cpu_seconds"], line["value"]) for line in lines if "value" in line]


ROWS = {
    "arithmetic": Row(
        "arithmetic", "sinusoidal", {}, 1_000_000, (0.9, 0.99), "held-out answers exactly right", True,
        {"nn.Transformer": peers.nn_transformer},
    ),
    "language": Row(
        "text", "rotary",
        {"task.context_length": 64, "model.n_layers": 4, "model.n_heads": 4, "model.d_model": 128, "model.dropout": 0.0,
         "training.batch_size": 12, "training.evaluation_examples": 1_800},
        24_000, (1.88, 1.7), "held-out loss, nats a character", False, {"nanoGPT": peers.nanogpt},
        lambda data: {"task.train": str(data / "tinyshakespeare" / "input.txt")},
    ),
    "images": Row(
        "images", "rotary2d", {"training.evaluation_examples": 10_000},
        240_000, (0.98, 0.99), "held-out images right", True, {"vit-pytorch": peers.vit_pytorch},
        lambda data: {"task.train": str(data / "mnist"), "task.valid": str(data / "mnist")},
    ),
    "translation": Row(
        "translation", "rotary",
        {"task.vocab_size": 4000, "model.n_encoder_layers": 2, "model.n_decoder_layers": 2, "model.d_model": 128,
         "model.n_heads": 4, "model.d_ff": 512, "model.dropout": 0.1, "training.average": 0.99,
         "training.lr": 8e-3,
         "training.evaluation_examples": 1_014},
        232_000, (30, 35, 38), "BLEU of the validation set", True,
        {"Marian": peers_translation.marian, "JoeyNMT": peers_translation.joeynmt},
        lambda data: {
            f"task.{name}": [str(data / "multi30k" / f"{part}.{language}.gz") for language in ("de", "en")]
            for name, part in (("train", "train"), ("valid", "val"))
        },
        looks=peers_translation.LOOKS,
    ),
}  # fmt: skip


# What is kept and shown -----------------------------------------------------------------------------------------------


def measured(name: str, contender: str, given: Any, seed: int) -> list[Look]:
    """In a process of its own. Each look is kept as soon as it is there; what was ended is not measured again."""
    kept = given.out / f"{name}-{contender}-{seed}.jsonl"
    if not kept.exists():
        begun = kept.with_suffix(".begun")
        budget = Budget(given.share, given.cap, ROWS[name].marks[-1])
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
            alone.submit(_measure, name, contender, given.data, begun, seed, budget).result()
        begun.rename(kept)
    return [tuple(json.loads(line)) for line in kept.read_text().splitlines()]


def _measure(name: str, contender: str, data: Path, path: Path, seed: int, budget: Budget) -> None:
    torch.set_num_threads(1)
    row, run = ROWS[name], path.with_suffix("")
    with path.open("w") as file:

        def tell(seconds: float, value: float) -> None:
            print(json.dumps((seconds, value)), file=file, flush=True)

        if contender == JARI:
            for look in ours(row, data, run, seed, budget.share):
                tell(*look)
        else:
            row.peers[contender](data, run, seed, budget, tell)


def draw(row: Row, curves: Mapping[tuple[str, int], Sequence[Look]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for (contender, seed), looks in curves.items():
        colour = f"C{[JARI, *row.peers].index(contender)}"
        dash = "-" if contender == JARI else "--"
        seconds, values = zip(*looks, strict=True)
        axes.plot(seconds, values, dash, color=colour, label=contender if seed == 1 else None)
    for mark in row.marks:
        axes.axhline(mark, color="grey", linewidth=0.8)
    # What lies far below all marks is left out.
    values = [value for looks in curves.values() for _, value in looks]
    first, last = row.marks[0], row.marks[-1]
    best = max(values) if row.higher else min(values)
    ends = first - 4 * (last - first), best + (last - first) / 4
    axes.set_ylim(*sorted(ends))
    axes.set_xlabel("CPU-seconds of training")
    axes.set_ylabel(row.unit)
    axes.set_xscale("log")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = timing.arguments(__doc__, rounds=1)
    parser.add_argument("--data", type=Path, required=True, help="a folder with tinyshakespeare/, mnist/, multi30k/")
    parser.add_argument("--out", type=Path, required=True, help="where what was found is kept")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--only", nargs="+", help="contenders, such as jari or Marian (default: all)")
    parser.add_argument("--seeds", type=int, default=1, help="of each (default: %(default)s)")
    parser.add_argument(
        "--cap", type=float, default=4000, help="CPU-seconds of another's trainer (default: %(default)s)"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of each budget, to try the script with")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    table = timing.Table(given.json)
    for name in given.rows:
        row, curves = ROWS[name], {}
        for seed in range(1, given.seeds + 1):
            for contender in (JARI, *row.peers):
                if given.only is not None and contender not in given.only:
                    continue
                looks = measured(name, contender, given, seed)
                if not looks:
                    print(f"{contender} is left out", file=sys.stderr)
                    continue
                curves[contender, seed] = looks
                told = {f"s to mark {i}": _told(row, looks, mark) for i, mark in enumerate(row.marks, 1)}
                table.add(row=name, contender=contender, seed=seed, **told, at_last=round(looks[-1][1], 4))
        draw(row, curves, given.out / f"{name}.svg")
    table.close()


def _told(row: Row, looks: Sequence[Look], mark: float) -> str:
    seconds = row.reached(looks, mark)
    return f"{mark} never in {looks[-1][0]:.0f}" if seconds is None else f"{mark} in {seconds:.0f}"


if __name__ == "__main__":
    main()
