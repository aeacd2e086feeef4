"""Training time to a target quality: steps and CPU-seconds of jari and of other libraries, all tuned alike.

    pip install --no-deps vit-pytorch einops x-transformers torch-einops-utils einx loguru frozendict
    python benchmarks/time_to_quality.py --data FOLDER --out docs/results/time_to_quality

A row for each task: arithmetic (reads no file), language (FOLDER/tinyshakespeare/input.txt), images (FOLDER/mnist),
translation (FOLDER/multi30k, German to English).
jari trains as `jarilab train` does; the others are in `peers.py`. A library that is not installed is left out.

The search: each contender trains with three learning rates times three lengths of the schedule, seed 0. If the best
rate or the best length is at an edge, one more is tried beyond it. The best setting needs the fewest steps to the mark,
or ends best if none reaches it. It is then trained with three fresh seeds. If a seed never reaches the mark, the next
settings are trained too, four in all at most (BLEU 35: one), until all seeds of one reach it. The table shows each.
For BLEU 35 the grids of two contenders are smaller, since the search to BLEU 30 shows what is worse.

A run reaches the mark where the line between two evaluations crosses it, if the next evaluation is beyond it too. A
peer's run ends early, after two evaluations beyond the mark or when it can no longer be the best. Its first evaluation
is after a fifth of the schedule.

Other programs change the seconds, but not the steps. So the time of a step is measured apart: the contenders of a row
take turns with three short runs each, on an idle machine, one thread, and the fastest stretch between two evaluations
counts. Seconds are steps times this time, without evaluations.

Each run is a process of its own. Its evaluations are kept in a file of --out, and it is not trained again:
docs/results/time_to_quality has all of them. With `--at-once N`, the script only trains, N contenders side by side.
Then repeat the command without it on an idle machine.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import peers
import timing
import torch
from peers import Peer, Recipe

import jarilab

SEARCH_EVALUATIONS, EVALUATIONS, FIRST_EVALUATION = 12, 25, 0.2
SEEDS = (1, 2, 3)
LENGTH_RATIO = 1.4
TIMED_STEPS, TIMED_EVALUATIONS, TIMED_SEEDS = 60, 6, (101, 102, 103)
KEEPING = threading.Lock()
JARI = "jari"


class Evaluation(NamedTuple):
    """The quality after a step. seconds: of training so far, without evaluations."""

    step: int
    value: float
    seconds: float = 0.0


@dataclass(frozen=True)
class Contender:
    """peer: None for jari. precision: of autocast, if the processor has it.

    needs: packages. settings: of jari, beside the row's.
    """

    peer: Peer | None
    rates: Sequence[float]
    lengths: Sequence[int]
    today: bool = True
    precision: str = "bfloat16"
    needs: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A task and its mark. examples, search_examples: on how many held-out examples an evaluation is taken.

    batch: examples of a step; what they are on average where a batch holds so many tokens. settings, files: of jari's
    run. higher: whether more is better. max_chosen: settings that are trained with fresh seeds, at most.
    """

    task: str
    encoding: str
    batch: int
    mark: float
    unit: str
    higher: bool
    examples: int
    search_examples: int
    contenders: Mapping[str, Contender]
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Callable[[Path], dict[str, Any]] = field(default=lambda data: {})
    max_chosen: int = 4

    def reached(self, evaluations: Sequence[Evaluation]) -> float | None:
        """The step at which the mark is reached."""
        values = [
            evaluation.value - self.mark if self.higher else self.mark - evaluation.value for evaluation in evaluations
        ]
        for place, value in enumerate(values):
            if not value >= 0 or (place + 1 < len(values) and not values[place + 1] >= 0):
                continue
            if place == 0:
                return evaluations[0].step
            share = values[place - 1] / (values[place - 1] - value)
            return evaluations[place - 1].step + share * (evaluations[place].step - evaluations[place - 1].step)
        return None

    def held(self, evaluations: Sequence[Evaluation]) -> bool:
        """Whether the last two evaluations are beyond the mark, so that later ones change nothing."""
        return len(evaluations) > 1 and self.reached(evaluations[-2:]) == evaluations[-2].step


MUON = (4e-3, 8e-3, 1.6e-2)
ADAMW = (2e-3, 4e-3, 8e-3)
VIT = ("vit_pytorch", "einops")
SHORT = {
    "model.token_before": True, "model.tied": False, "model.activation": "gelu", "training.muon_steps": 3,
}  # fmt: skip
ROWS = {
    "arithmetic": Row(
        "arithmetic", "sinusoidal", 512, 0.99, "99 % of held-out answers right", True, 2000, 1000,
        {
            JARI: Contender(None, (7.5e-3, 1.5e-2, 3e-2), (400, 560, 800)),
            # Casts of many small tensors cost more than bfloat16 gains: a step takes 181 ms with it and 152 without.
            "nn.Transformer, Muon": Contender(
                peers.nn_transformer, (7.5e-3, 1.5e-2, 3e-2), (800, 1100, 1550), precision="float32"
            ),
            "nn.Transformer, AdamW": Contender(
                peers.nn_transformer, ADAMW, (1000, 1400, 2000), today=False, precision="float32"
            ),
        },
    ),
    "language": Row(
        "text", "rotary", peers.BATCH, 1.7, "1.70 nats a character", False, 900, 300,
        {
            JARI: Contender(None, MUON, (700, 1000, 1400)),
            "jari, short recipe": Contender(None, MUON, (500, 700, 1000), settings=SHORT),
            "nanoGPT, rotary, Muon, bfloat16": Contender(peers.nanogpt, MUON, (700, 1000, 1400)),
            "nanoGPT, the same and token before": Contender(peers.nanogpt_before, MUON, (500, 700, 1000)),
            "x-transformers, Muon, bfloat16": Contender(
                peers.x_transformers, MUON, (700, 1000, 1400), needs=("x_transformers", "torch_einops_utils", "einx")
            ),
            "nanoGPT, AdamW": Contender(peers.nanogpt, ADAMW, (2000, 2800, 4000), today=False, precision="float32"),
        },
        {"task.context_length": peers.CONTEXT, "model.n_layers": peers.LAYERS, "model.n_heads": peers.HEADS,
         "model.d_model": peers.WIDTH, "model.dropout": 0.0, "training.batch_size": peers.BATCH},
        lambda data: {"task.train": str(data / "tinyshakespeare" / "input.txt")},
    ),
    "images": Row(
        "images", "rotary2d", 128, 0.98, "98 % of held-out images right", True, 10_000, 2500,
        {
            JARI: Contender(None, MUON, (470, 700, 1050)),
            "jari, 25 patches": Contender(
                None, MUON, (470, 700, 1050), settings={"model.kept_patches": peers.KEPT_PATCHES}
            ),
            "vit-pytorch, Muon, bfloat16": Contender(
                peers.vit_pytorch, MUON, (470, 700, 1050), needs=VIT
            ),
            "vit-pytorch, the same and 25 patches": Contender(
                peers.vit_pytorch_kept, MUON, (470, 700, 1050), needs=VIT
            ),
            "vit-pytorch, AdamW, bfloat16": Contender(
                peers.vit_pytorch, (1.5e-3, 3e-3, 6e-3), (700, 1050, 1500), today=False, needs=VIT
            ),
        },
        {"training.warmup": 0.05},
        lambda data: {"task.train": str(data / "mnist"), "task.valid": str(data / "mnist")},
    ),
    "translation": Row(
        "translation", "rotary", peers.PAIRS_OF_BATCH, 30.0, "BLEU 30 on 300 held-out pairs", True, 300, 120,
        {
            JARI: Contender(None, MUON, (700, 1000, 1400)),
            "nn.Transformer, Muon, bfloat16": Contender(peers.translator, MUON, (700, 1000, 1400)),
            "Hugging Face's Marian, AdamW": Contender(
                peers.marian, (5e-4, 1e-3, 2e-3), (1400, 2000, 2800), today=False, precision="float32",
                needs=("transformers",),
            ),
        },
        {"model.n_encoder_layers": peers.PAIRS.n_layers, "model.n_decoder_layers": peers.PAIRS.n_layers,
         "model.d_model": peers.PAIRS.d_model, "model.d_ff": peers.PAIRS.d_ff, "model.dropout": 0.0,
         "task.vocab_size": peers.PAIRS.vocab_size, "training.tokens": peers.TOKENS},
        lambda data: {f"task.{name}": files for name, files in peers.files_of_translation(data).items()},
    ),
}  # fmt: skip
# Without dropout, jari's trainings to BLEU 30 end at 29 to 35, whatever their length. Marian learns too slowly with it.
DROPOUT, LONGER, LONGEST = 0.1, (1400, 2000, 2800), (2000, 2800, 3920)
ROWS["translation-35"] = replace(
    ROWS["translation"],
    mark=35.0,
    unit="BLEU 35 on 300 held-out pairs",
    contenders={
        JARI: Contender(None, MUON, LONGER),
        "nn.Transformer, Muon": Contender(partial(peers.translator, dropout=DROPOUT), MUON, LONGEST),
        "nn.Transformer, Muon, no dropout": Contender(peers.translator, MUON, LONGER[1:]),
        "Hugging Face's Marian, AdamW": Contender(
            peers.marian, (1e-3, 2e-3), LONGEST[1:], today=False, precision="float32", needs=("transformers",)
        ),
    },
    settings={**ROWS["translation"].settings, "model.dropout": DROPOUT},
    max_chosen=1,
)


# What trains ----------------------------------------------------------------------------------------------------------


def train(name: str, contender: str, recipe: Recipe, seed: int, data: Path, limit: float) -> list[Evaluation]:
    """The evaluations of one training. limit: steps in which another reached the mark."""
    torch.set_num_threads(1)
    row, count, examples = ROWS[name], EVALUATIONS, ROWS[name].examples
    if seed == 0:
        count, examples = SEARCH_EVALUATIONS, row.search_examples
    if seed in TIMED_SEEDS:
        count, examples = TIMED_EVALUATIONS, row.batch
    entry = row.contenders[contender]
    if entry.peer is None:
        return _train_jari(row, {**row.settings, **entry.settings}, recipe, seed, data, count, examples)
    every, first = max(1, recipe.steps // count), 0.0 if seed in TIMED_SEEDS else FIRST_EVALUATION * recipe.steps
    evaluations, seconds, learner = [], 0.0, entry.peer(data, seed, recipe)
    for step in range(1, recipe.steps + 1):
        begin = time.process_time()
        learner.step()
        seconds += time.process_time() - begin
        if (step % every == 0 and step >= first) or step == recipe.steps:
            evaluations.append(Evaluation(step, learner.measure(examples), seconds))
            # Two evaluations behind the limit show whether the mark was reached before it, and held.
            if step >= limit + 2 * every or row.held(evaluations):
                break
    return evaluations


def _train_jari(
    row: Row, settings: Mapping[str, Any], recipe: Recipe, seed: int, data: Path, count: int, examples: int
) -> list[Evaluation]:
    settings = {
        **settings,
        **row.files(data),
        "training.examples": recipe.steps * row.batch,
        "training.lr": recipe.rate,
        "training.evaluations": count,
        "training.evaluation_examples": examples,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        jarilab.train(row.task, out, encoding=row.encoding, seed=seed, settings=settings, threads=1)
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        return [Evaluation(line["step"], line["value"], line["cpu_seconds"]) for line in lines if "value" in line]


# The search and the table ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Trainer:
    """Trains what is not kept, each run in a process of its own."""

    name: str
    contender: str
    given: Any

    def evaluations(self, recipe: Recipe, seed: int, limit: float = math.inf) -> list[Evaluation]:
        """The evaluations of a run, kept or trained now. Those of short runs that time a step are never kept."""
        kept = self.given.out / f"{self.name}.jsonl"
        title = {
            "contender": self.contender,
            "rate": recipe.rate,
            "steps": recipe.steps,
            "seed": seed,
            "precision": recipe.precision,
        }
        for line in kept.read_text().splitlines() if kept.exists() else ():
            run = json.loads(line)
            if run.items() >= title.items():
                return [Evaluation(*evaluation) for evaluation in run["evaluations"]]
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
            job = alone.submit(train, self.name, self.contender, recipe, seed, self.given.data, limit)
            evaluations = job.result()
        print(f"{title}: {evaluations[-1]}", file=sys.stderr, flush=True)
        if seed not in TIMED_SEEDS:
            numbers = [(step, round(value, 5)) for step, value, _ in evaluations]
            with KEEPING, kept.open("a") as file:
                print(json.dumps({**title, "evaluations": numbers}), file=file)
        return evaluations

    def grid(self) -> list[Recipe]:
        contender = ROWS[self.name].contenders[self.contender]
        sizes = itertools.product(contender.rates, contender.lengths)
        share, rest = self.given.share, (contender.today, contender.precision)
        return [Recipe(rate, max(2, int(steps * share)), *rest) for rate, steps in sizes]

    def ranked(self) -> list[Recipe]:
        """The recipes of the search, the best first."""
        row, contender = ROWS[self.name], ROWS[self.name].contenders[self.contender]
        tried: dict[Recipe, tuple[bool, float]] = {}

        def attempt(recipe: Recipe) -> None:
            limit = min((steps for never, steps in tried.values() if not never), default=math.inf)
            evaluations = self.evaluations(recipe, 0, limit)
            steps_to_mark = row.reached(evaluations)
            last = -evaluations[-1].value if row.higher else evaluations[-1].value
            tried[recipe] = (steps_to_mark is None, last if steps_to_mark is None else steps_to_mark)

        grid = self.grid()
        for recipe in sorted(grid, key=lambda recipe: recipe.steps):
            attempt(recipe)
        best = min(tried, key=lambda recipe: tried[recipe])
        rates, lengths = contender.rates, sorted({recipe.steps for recipe in grid})
        if best.rate in (rates[0], rates[-1]):
            attempt(replace(best, rate=best.rate / 2 if best.rate == rates[0] else best.rate * 2))
        if best.steps in (lengths[0], lengths[-1]):
            factor = LENGTH_RATIO if best.steps == lengths[-1] else 1 / LENGTH_RATIO
            attempt(replace(best, steps=round(best.steps * factor)))
        return sorted(tried, key=lambda recipe: tried[recipe])

    @property
    def chosen(self) -> list[tuple[Recipe, list[list[Evaluation]]]]:
        """The best recipe with the evaluations of its seeds, and the next best ones until all seeds reach the mark.

        All are kept, so it takes no time to ask again.
        """
        chosen = []
        for recipe in self.ranked()[: ROWS[self.name].max_chosen]:
            evaluations = [self.evaluations(recipe, seed) for seed in SEEDS]
            chosen.append((recipe, evaluations))
            if all(ROWS[self.name].reached(each) is not None for each in evaluations):
                break
        return chosen


def train_all(trainers: Sequence[Trainer], at_once: int) -> None:
    """Search for each contender, then train its seeds."""
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda trainer: trainer.chosen, trainers))


def step_times(trainers: Sequence[Trainer]) -> dict[Trainer, float]:
    """Milliseconds of a step of each, in the fastest stretch between two evaluations of short runs in turns."""
    found = dict.fromkeys(trainers, math.inf)
    for seed in TIMED_SEEDS:
        for trainer in trainers:
            evaluations = trainer.evaluations(replace(trainer.chosen[0][0], steps=TIMED_STEPS), seed)
            stretches = [(b.seconds - a.seconds) / (b.step - a.step) for a, b in pairwise(evaluations)]
            found[trainer] = min(found[trainer], 1000 * min(stretches))
    return found


def main() -> None:
    parser = timing.arguments(__doc__, rounds=1)
    parser.add_argument("--data", type=Path, required=True, help="a folder with tinyshakespeare/, mnist/ and multi30k/")
    parser.add_argument("--out", type=Path, required=True, help="the folder that keeps the evaluations")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--only", nargs="+", help="contenders whose titles have one of these in them")
    parser.add_argument("--at-once", type=int, default=1, help="only train, so many contenders at once")
    parser.add_argument("--share", type=float, default=1.0, help="of each schedule, to try the script with")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    table = timing.Table(given.json)
    trainers = []
    for name in given.rows:
        for title, contender in ROWS[name].contenders.items():
            missing = [name for name in contender.needs if importlib.util.find_spec(name) is None]
            if missing:
                print(f"{title} is left out: {', '.join(missing)} is not installed", file=sys.stderr)
            elif any(part in title for part in given.only or ("",)):
                trainers.append(Trainer(name, title, given))
    train_all(trainers, given.at_once)
    if given.at_once > 1:
        print("all are trained; repeat the command without --at-once on an idle machine", file=sys.stderr)
        return
    for name in given.rows:
        for trainer, ms in step_times([each for each in trainers if each.name == name]).items():
            row = ROWS[name]
            for recipe, evaluations in trainer.chosen:
                reached = [row.reached(each) for each in evaluations]
                never = f"never in {recipe.steps}"
                table.add(
                    mark=row.unit,
                    contender=trainer.contender,
                    setting=f"rate {recipe.rate:g}, {recipe.steps} steps",
                    steps=", ".join(never if step is None else f"{step:.0f}" for step in reached),
                    ms_a_step=f"{ms:.1f}",
                    seconds=", ".join("-" if step is None else f"{step * ms / 1000:.0f}" for step in reached),
                )
    table.close()


if __name__ == "__main__":
    main()
