"""What a person does with jari, as functions: the command line is a thin cover over these."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from jari.comparison import study
from jari.errors import UserError
from jari.inspect import walk as walking
from jari.inspect.walk import Walk
from jari.positions import Positions, Tokens
from jari.tasks.base import Task
from jari.text import FIRST
from jari.training import checkpoint, loop
from jari.training.experiment import Experiment
from jari.training.loop import Report
from jari.training.precision import Precision
from jari.training.run import read_experiment, read_run

AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Loaded:
    """A trained run: its experiment, task, and model in evaluation mode, in float32."""

    folder: Path
    record: dict[str, Any]
    experiment: Experiment
    task: Task
    model: torch.nn.Module
    step: int


def load(run: str | Path, *, trust_code: bool = False) -> Loaded:
    """The model of a run, from its newest whole checkpoint.

    Nothing of the run is executed, unless its encoding or task is a Python file and `trust_code` says it may be.
    Raises UserError for a folder that is no run, has no checkpoint yet, or is damaged.
    """
    folder = Path(run)
    record = read_run(folder)
    experiment = read_experiment(record, folder / "run.json", trust_code=trust_code)
    path, problems = checkpoint.newest(folder / "checkpoints")
    if path is None:
        raise UserError(f"{folder} has no checkpoint yet; train it first, with the command in its run.json")
    if problems:
        raise UserError("; ".join(problems) + f"; {path} before it is whole: remove the damaged one to use that")
    task = experiment.task_instance()
    model = experiment.model_instance(task)
    checkpoint.load_model(path, model, experiment.hash)
    return Loaded(folder, record, experiment, task, model.eval(), int(path.name.removeprefix("step-")))


def data(task: str, out: str | Path, settings: Mapping[str, Any] | None = None) -> int:
    """Write a task's examples to a file, one a line, in generation order; gives their number."""
    instance = Experiment.of(task, None, settings).task_instance()
    lines = getattr(instance, "lines", None)
    if lines is None:
        raise UserError(f"{task} has no data to write: it reads the files it is given")
    count = 0
    partial = Path(f"{out}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for some in chunks(lines(), 65536):
                file.write("".join(f"{line}\n" for line in some))
                count += len(some)
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return count


def train(
    task: str,
    out: str | Path,
    *,
    encoding: str | None = None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    precision: Precision = "auto",
    threads: int | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Train a model of `task` into the folder `out`, going on where it was left off; gives the final metrics.

    settings: `{"model.width": 128, "training.examples": 400000, ...}`. threads: all cores by default.
    """
    experiment = Experiment.of(task, encoding, settings, seed, precision)
    return loop.train(experiment, Path(out), threads=threads or cores(), report=report)


def evaluate(run: str | Path, *, threads: int | None = None, trust_code: bool = False) -> dict[str, Any]:
    """The metrics of a run's newest checkpoint on all held-out data, by free generation, with the ceiling."""
    loop.deterministic(threads or cores())
    loaded = load(run, trust_code=trust_code)
    metrics = loop.evaluate(loaded.model, loaded.task)
    who = {"run": str(run), "encoding": loaded.experiment.encoding, "seed": loaded.experiment.seed, "step": loaded.step}
    return {**who, **metrics, "ceiling": loaded.task.ceiling()}


@dataclass(frozen=True)
class Answer:
    """The answer to one line, or why there is none. tokens: what was written, the end included, with probabilities."""

    line: int
    input: str
    answer: str | None = None
    log_probability: float | None = None
    tokens: tuple[tuple[str, float], ...] = ()
    error: str | None = None


def predict(
    run: str | Path | Loaded, lines: Iterable[str | UserError], *, at_once: int = AT_ONCE, trust_code: bool = False
) -> Iterator[Answer]:
    """An Answer for each line, in order; a line that cannot be read gets its error and stops nothing.

    at_once: how many lines to answer together. A UserError among the lines is one that could not even be decoded.
    """
    loaded = run if isinstance(run, Loaded) else load(run, trust_code=trust_code)
    for chunk in chunks(enumerate(lines, 1), at_once):
        readable: list[tuple[int, str, list[int]]] = []
        answers: dict[int, Answer] = {}
        for number, line in chunk:
            try:
                if isinstance(line, UserError):
                    raise line
                readable.append((number, line, loaded.task.read(line)))
            except UserError as error:
                shown = "" if isinstance(line, UserError) else line[:80]
                answers[number] = Answer(number, shown, error=str(error))
        if readable:
            written = loop.answer(loaded.model, loaded.task, loaded.task.sources([ids for _, _, ids in readable]))
            for (number, line, _), ids, logs in zip(
                readable, written.ids.tolist(), written.log_probabilities.tolist(), strict=True
            ):
                names = loaded.task.show_target(ids)
                kept = [(n, math.exp(p)) for n, p, i in zip(names, logs, ids, strict=True) if i != 0]
                answers[number] = Answer(number, line.strip(), loaded.task.write(ids), math.fsum(logs), tuple(kept))
        for number, _ in chunk:
            yield answers[number]


def compare(
    task: str,
    out: str | Path,
    *,
    encodings: Sequence[str],
    seeds: int = 1,
    settings: Mapping[str, Any] | None = None,
    precision: Precision = "auto",
    jobs: int | None = None,
) -> dict[str, Any]:
    """Train the same model under each encoding and seed, side by side, and compare: gives the table.

    Writes table.json and report.html into `out`. Trials run `jobs` at a time with one thread each; a study that was
    cut off goes on with the trials that are not finished.
    """
    jobs = jobs or study.jobs_for(len(encodings) * seeds, cores())
    return study.run(task, Path(out), encodings, seeds, dict(settings or {}), precision, jobs)


@dataclass(frozen=True, eq=False)
class Followed:
    """An input, the run's answer to it, and the walk through one head on the way."""

    input: str
    answer: str
    walk: Walk


def walk(run: str | Path, line: str, *, site: str = "encoder.0", head: int = 0, trust_code: bool = False) -> Followed:
    """Follow one head of one attention, matrix by matrix, from the embedding to its output, in float64."""
    loaded = load(run, trust_code=trust_code)
    model, task = loaded.model.double(), loaded.task
    source = task.sources([task.read(line)])
    written = loop.answer(model, task, source).ids[0].tolist()
    # One forward over the whole answer shows what generation saw step by step.
    said = torch.tensor([[FIRST, *written[:-1]]])
    target = Tokens(said, Positions.sequence(said.shape[1], frame="target"))
    names = {"source": task.show_source(source.ids[0].tolist()), "target": task.show_target(said[0].tolist())}
    queries = names["source" if site.startswith("encoder") else "target"]
    keys = names["target" if site.endswith(".self") else "source"]
    followed = walking.walk(model, (source, target), site=site, head=head, queries=queries, keys=keys)
    return Followed(line.strip(), task.write(written), followed)


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The items in lists of `size`, the last perhaps shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
