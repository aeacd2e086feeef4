"""What it costs to look inside: the maps, a live answer, memory.

    python benchmarks/explorer.py                       # everything, about 4 minutes
    python benchmarks/explorer.py --only capture look   # some of it
    python benchmarks/explorer.py --only edit --model FOLDER --input TEXT   # heads of a Hugging Face model switched off

capture: the map of a layer (`tape.weights`, float32) beside that layer's forward with the fused kernel, and beside its
fused kernel alone, 8 heads of 64; aim: at most 1.5 forwards of the layer.
look: `Explorer.look` on an input that it has not seen, all of it and by parts; aim: below 300 ms.
memory: what `Explorer.look` needs on top, for inputs up to 2048 tokens; aim: 1 GiB.
edit: `Explorer.operate` with a head of the first, the middle and the last layer off, beside one forward of the model.

Times are CPU seconds of one thread, as in `timing.py`; a wall time beside them says what a person waited on a machine
that others use too, and the load is shown. What the page takes in a browser: pages.py.

Seen on 2 cores of an Intel Xeon, PyTorch 2.13.0 (CPU), 2026-11-21, load 0.5 to 2:
capture: a map takes 0.10 to 0.58 of its layer's forward, and 0.8 to 1.7 of the fused kernel alone.
look, CPU ms: 289, 436 and 459 for 4+4 layers (width 64, 128, 256; 8, 16, 32 tokens), which misses the aim, and 63 and
264 for language models of 4 layers (width 64 and 256; 8 and 32 tokens). Most of it is the forward for each head that is
switched off (`matters`: 187, 271, none above 64 heads, 35, 194), then the tests of order (`checks`: 43, 78, 228).
memory, MB on top, of a first look and after three: rotary 456 and 528 at 512 tokens, 208 and 318 at 1024, 373 and 473
at 2048; alibi 502 and 691, 331 and 413, 785 and 882. Above 591 tokens 12 heads are not measured.
edit, a BERT-base with random weights and 47 tokens, 2026-11-27, load 5 to 6, in turns before -> after linear layers
below the edit were reused and only changed maps were sent; CPU ms in the first, the middle and the last layer: 263,
261 and 260 -> 244, 180 and 121, which are 1.46 forwards -> 1.36, 0.98 and 0.67; kB sent: 851 -> 851, 426 and 71.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import timing
import torch

import jarilab
from jarilab.attention.kernels import attend
from jarilab.explorer import open_explorer, payload, run_subject, summaries
from jarilab.inspect.record.capture import record
from jarilab.pages.kit.page import to_json
from jarilab.runs.experiment import Experiment
from jarilab.tasks.predictors.base import Predictor
from jarilab.training.determinism import deterministic
from jarilab.training.loop import train

LETTERS = "abcdefghijklmnopqrstuvwxyz "
ONE_STEP = {
    "training.batch_size": 2,
    "training.examples": 2,
    "training.epochs": None,
    "training.tokens": None,
    "training.evaluations": 1,
    "training.evaluation_examples": 2,
}
LOOKS = [
    # model, width, heads, tokens
    ("encoder_decoder", 64, 4, 8),
    ("encoder_decoder", 128, 4, 16),
    ("encoder_decoder", 256, 8, 32),
    ("language_model", 64, 4, 8),
    ("language_model", 256, 8, 32),
]
LAYERS = 4
LONG = 2048


# The maps ------------------------------------------------------------------------------------------------------------


def capture(table: timing.Table, rounds: int, encodings: tuple[str, ...] = ("none", "rotary", "alibi")) -> None:
    for encoding in encodings:
        for tokens in (128, 512):
            for causal in (False, True):
                capture_one(table, rounds, encoding, tokens, causal)


def capture_one(table: timing.Table, rounds: int, encoding: str, tokens: int, causal: bool) -> None:
    layer = jarilab.Attention(512, 8, encoding=encoding, causal=causal, kernel="fused").eval()
    x_BLD, mask = torch.randn(1, tokens, 512), jarilab.Mask(causal=True) if causal else None
    with torch.no_grad():
        with record(layer) as tape:
            layer(x_BLD, mask=mask)
        (site,) = tape.sites
        call = tape.recorded(site).call
        contenders = {
            "layer": lambda: layer(x_BLD, mask=mask),
            "kernel": lambda: attend(call, "fused"),
            "map": lambda: tape.weights(site),
        }
        times = timing.measure(contenders, rounds)
    table.add(
        encoding=encoding,
        mask="causal" if causal else "",
        tokens=tokens,
        **{f"{name}_ms": timing.milliseconds(times, name) for name in contenders},
        map_over_layer=timing.ratio(times, "map", "layer"),
        map_over_kernel=timing.ratio(times, "map", "kernel"),
        aim=1.5,
    )


# A live answer -------------------------------------------------------------------------------------------------------


def run_of(folder: Path, model: str, width: int, heads: int, tokens: int, encoding: str = "rotary") -> Path:
    """A run of one step, which answers as slowly as any other."""
    run = folder / f"{model}-{width}-{heads}-{tokens}-{encoding}"
    sizes = {"model.d_model": width, "model.n_heads": heads}
    if model == "language_model":
        text = folder / "text.txt"
        text.write_text("\n".join(line_of(model, 100, random.Random(number)) for number in range(500)))
        own = {
            "task.train": str(text),
            "task.context_length": tokens,
            "task.tokenizer": "characters",
            "model.n_layers": LAYERS,
        }
        task = "text"
    else:
        lines = {"task.lines": 64, "task.held_out": 2, "task.lengths": str(tokens)}
        own = {**lines, "model.n_encoder_layers": LAYERS, "model.n_decoder_layers": LAYERS}
        task = "reverse"
    experiment = Experiment.of(task, encoding, {**ONE_STEP, **sizes, **own}, 1, "float32")
    train(experiment, run, threads=1)
    return run


def line_of(model: str, tokens: int, numbers: random.Random) -> str:
    if model == "language_model":
        return "".join(numbers.choice(LETTERS[:-1]) for _ in range(tokens))
    return " ".join(str(numbers.randrange(50)) for _ in range(tokens))


class Parts:
    """CPU seconds of each part, what runs inside another one counted once, there."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        self._inside.append(0.0)
        begin = time.process_time()
        try:
            yield
        finally:
            whole = time.process_time() - begin
            self.seconds[name] += whole - self._inside.pop()
            self._inside[-1] += whole

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            with self.timed(name):
                return function(*arguments, **named)

        return run

    @contextmanager
    def watching(self, predictor: Predictor) -> Iterator[None]:
        """While `jarilab.explorer` answers with the model that was trained."""

        @contextmanager
        def recording(model: torch.nn.Module) -> Iterator[Any]:
            with self.timed("record" if model is predictor.traced_model else "untrained"), record(model) as tape:
                yield tape

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(run_subject, "record", recording))
            for module, function, name in (
                (type(predictor), "trace", "answer"),
                (payload, "sites_of", "maps"),
                (payload, "measures_of", "measures"),
                (summaries, "checks", "checks"),
                (summaries, "matters", "matters"),
                (summaries, "probe", "probe"),
            ):
                stack.enter_context(mock.patch.object(module, function, self.of(name, getattr(module, function))))
            yield


def look(table: timing.Table, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for model, width, heads, tokens in LOOKS:
            look_one(table, rounds, run_of(Path(folder), model, width, heads, tokens), (model, width, heads, tokens))


def look_one(table: timing.Table, rounds: int, run: Path, case: tuple[str, int, int, int]) -> None:
    model, width, heads, tokens = case
    explorer, numbers = open_explorer([run]), random.Random(1)
    subject: Any = explorer.subjects[0]
    explorer.look(line_of(model, tokens, numbers), live=True)
    walls: list[float] = []
    cpus: list[float] = []
    parts: list[dict[str, float]] = []
    for _ in range(rounds):
        watch, line = Parts(), line_of(model, tokens, numbers)
        wall, cpu = time.perf_counter(), time.process_time()
        with watch.watching(subject.run.predictor):
            found = explorer.look(line, live=True)
            with watch.timed("json"):
                to_json(found)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        parts.append(watch.seconds)
    median = {name: 1000 * statistics.median(part[name] for part in parts) for name in parts[0]}
    names = ("answer", "record", "untrained", "maps", "measures", "checks", "matters", "probe", "json")
    table.add(
        model=model,
        width=width,
        heads=heads,
        tokens=tokens,
        cpu_ms=timing.Spread.of([1000 * cpu for cpu in cpus]),
        wall_ms=round(1000 * statistics.median(walls)),
        aim=300,
        **{name: round(median.get(name, 0.0), 1) for name in names},
        load=round(os.getloadavg()[0], 1),
    )


# Memory --------------------------------------------------------------------------------------------------------------


def memory(table: timing.Table, rounds: int) -> None:
    """Each look in a process of its own, since a peak is of a process."""
    for encoding in ("rotary", "alibi"):
        for tokens in (512, 1024, LONG):
            spawn = multiprocessing.get_context("spawn")
            with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, spawn) as pool:
                before, peaks, seconds = pool.submit(memory_of, folder, tokens, encoding).result()
            table.add(
                encoding=encoding,
                heads=f"{LAYERS}x12",
                tokens=tokens,
                before_mb=before,
                look_mb=peaks[0],
                after_3_looks_mb=peaks[-1],
                cpu_s=seconds,
                aim=1024,
            )


def memory_of(folder: str, tokens: int, encoding: str) -> tuple[int, list[int], float]:
    """MB before; MB that looks at three inputs needed on top, at the peak; CPU seconds of the first."""
    deterministic(threads=1)
    explorer = open_explorer([run_of(Path(folder), "language_model", 96, 12, 64, encoding)])
    before, peaks, numbers = peak(), [], random.Random(1)
    begin = time.process_time()
    seconds = 0.0
    for number in range(3):
        found = explorer.look(line_of("language_model", tokens, numbers), live=True)
        seconds = time.process_time() - begin if not number else seconds
        assert max(found["views"][0]["sites"][0]["shape"]) <= payload.MAX_CELLS
        peaks.append(peak() - before)
    return before, peaks, round(seconds, 1)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# An edit of a Hugging Face model --------------------------------------------------------------------------------------


def edit(table: timing.Table, rounds: int, folder: str, line: str) -> None:
    explorer = open_explorer(models=[folder])
    subject: Any = explorer.subjects[0]
    sites = explorer.look(line, live=True)["views"][0]["sites"]
    inputs = subject.record(line).reading.inputs
    for place in (0, len(sites) // 2, len(sites) - 1):
        heads, sizes = itertools.cycle(range(sites[place]["heads"])), []

        def switch_off(
            site: str = sites[place]["site"], heads: Iterator[int] = heads, sizes: list[int] = sizes
        ) -> None:
            off = {"kind": "head", "site": site, "head": next(heads)}
            sizes.append(len(to_json(explorer.operate(line, 0, [off], proceed=None))))

        with torch.no_grad():
            contenders = {"forward": lambda: subject.loaded.model(**inputs), "edit": switch_off}
            times = timing.measure(contenders, rounds)
        table.add(
            site=sites[place]["site"],
            **{f"{name}_ms": timing.milliseconds(times, name) for name in contenders},
            edit_over_forward=timing.ratio(times, "edit", "forward"),
            kb=max(sizes) // 1000,
            load=round(os.getloadavg()[0], 1),
        )


def main() -> None:
    parser = timing.arguments(__doc__, rounds=9)
    kinds = {"capture": capture, "look": look, "memory": memory}
    parser.add_argument("--only", nargs="+", choices=[*kinds, "edit"], default=list(kinds))
    parser.add_argument("--model", help="folder of a Hugging Face model, for edit")
    parser.add_argument("--input", default="", help="what it reads")
    given = parser.parse_args()
    if given.model:
        kinds["edit"] = partial(edit, folder=given.model, line=given.input)
    elif "edit" in given.only:
        parser.error("edit needs the folder of a model, --model")
    deterministic(threads=1)
    table = timing.Table(given.json)
    for name in given.only:
        kinds[name](table, given.rounds)
    table.close()


if __name__ == "__main__":
    main()
