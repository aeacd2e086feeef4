"""Paired trials: the same model under several encodings and seeds, with equal budgets, and their table."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.comparison import report_data
from jarilab.comparison.report import render
from jarilab.comparison.statistics import mean_interval, paired_difference
from jarilab.errors import UserError
from jarilab.runs.experiment import Experiment, as_file_name
from jarilab.runs.folder import (
    read_experiment,
    read_metrics,
    read_result,
    read_run,
)
from jarilab.runs.options import deciding
from jarilab.runs.precision import Precision
from jarilab.runs.signals import StopSignals
from jarilab.storage.files import write_json, write_text
from jarilab.tasks.base import Task
from jarilab.tasks.metrics import Metric
from jarilab.training.loop import check_trainable
from jarilab.training.progress import TrainingProgress


@dataclass(frozen=True)
class Trial:
    """One training of the study."""

    name: str
    experiment: Experiment
    folder: Path


def jobs_for(trials: int, cores: int) -> int:
    """How many trials to run at once, one thread each, so that no core is idle in the last round: 3 trials on 2 cores
    run all at once, 5 in rounds of 3 and 2."""
    rounds = max(1, trials // cores)
    return -(-trials // rounds)


def run(
    task: str,
    out: Path,
    encodings: Sequence[str],
    seeds: int,
    settings: Mapping[str, Any],
    precision: Precision,
    model: str | None,
    jobs: int,
    snapshots: int = 0,
) -> dict[str, Any]:
    """Train what is not trained yet, then write table.json and report.html. See `jarilab.compare`."""
    if seeds < 1:
        raise UserError(f"a comparison needs at least one seed, got {seeds}")
    # Seed by seed, so that a study that is cut off has whole pairs.
    numbers = range(1, seeds + 1)
    pairs = itertools.product(numbers, encodings)
    experiments = (
        Experiment.of(task, spec, settings, seed, precision, model) for seed, spec in pairs
    )
    trials = _trials(out, experiments)
    instance = trials[0].experiment.task_instance()
    of_each = {trial.experiment.encoding: trial.experiment for trial in trials}
    for experiment in of_each.values():
        check_trainable(experiment, instance)  # all of them, before any is trained
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be a folder for the study: {error}") from None
    _train_all(trials, jobs, snapshots)
    table = tabulate(trials, instance)
    write_json(out / "table.json", table)
    finished = [(trial.experiment, trial.folder) for trial in trials]
    payload = report_data.payload(table, finished, instance)
    write_text(out / "report.html", render(payload))
    return table


def _trials(out: Path, experiments: Iterable[Experiment]) -> list[Trial]:
    trials: list[Trial] = []
    for experiment in experiments:
        encoding = as_file_name(experiment.encoding)
        name = f"{encoding}-{experiment.seed}"
        trials.append(Trial(name, experiment, out / name))
    taken = [trial.name for trial in trials]
    for name in taken:
        if taken.count(name) > 1:
            twice = [trial.experiment.encoding for trial in trials if trial.name == name]
            raise UserError(
                f"two trials would be called {name}, of {' and '.join(twice)}; name each encoding once, and give "
                "files of your own different names"
            )
    return trials


def _train_all(trials: Sequence[Trial], jobs: int, snapshots: int = 0) -> None:
    """Run each unfinished trial as `jarilab train` in a process of its own with one thread: the same command a person
    would give, so a trial can be repeated alone and gives the same bits."""
    waiting = [trial for trial in trials if not (trial.folder / "result.json").exists()]
    running: dict[str, tuple[Trial, subprocess.Popen[bytes]]] = {}
    failed: dict[str, str] = {}
    shown = {trial.name: len(_curve(trial)) for trial in waiting}
    names = [trial.name for trial in waiting]

    def end_all() -> None:
        for _, process in running.values():
            process.send_signal(signal.SIGTERM)

    with TrainingProgress(names) as progress, StopSignals(end_all) as stop:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    trial = waiting.pop(0)
                    running[trial.name] = (trial, _start(trial, snapshots))
                time.sleep(0.5)
                stop.check()
                for name, (trial, process) in list(running.items()):
                    rows = _curve(trial)
                    news = _as_one(rows[shown[name] :])
                    if news:
                        progress.update(name, news)
                    shown[name] = len(rows)
                    if process.poll() is None:
                        continue
                    del running[name]
                    if process.returncode:
                        failed[name] = _reason(_log(trial), process.returncode)
        except BaseException:  # whatever it was: no trial outlives the comparison
            end_all()
            for _, process in running.values():
                process.wait()
            raise
    if failed:
        reasons = [f"{name}: {reason}" for name, reason in failed.items()]
        lines = "\n  ".join(reasons)
        raise UserError(
            f"{len(failed)} of {len(trials)} trials failed; the others are kept:\n  {lines}"
        )


def _as_one(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of a curve that came together, told as one: a rate between them would be that of reading them."""
    together: dict[str, Any] = {}
    for row in rows:
        together |= row
    return together


def _start(trial: Trial, snapshots: int) -> subprocess.Popen[bytes]:
    experiment = trial.experiment
    # -P: the current folder is not on the import path, so that a statistics.py lying there is not executed.
    command = [sys.executable, "-P", "-m", "jarilab", "train", experiment.task]
    command += ["--out", str(trial.folder), "--threads", "1"]
    command += ["--seed", str(experiment.seed), "--precision", experiment.precision]
    command += ["--model", experiment.model, "--snapshots", str(snapshots)]
    sections = {
        "task": experiment.task_options,
        "model": experiment.model_options,
        "training": deciding(experiment.training),
    }
    for section, options in sections.items():
        for name, value in options.items():
            in_json = value is None or isinstance(value, list | tuple)
            text = json.dumps(value) if in_json else value
            command += ["--set", f"{section}.{name}={text}"]
    with _log(trial).open("wb") as log:
        # A session of its own: Ctrl-C reaches the trials through us, once.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def _log(trial: Trial) -> Path:
    return trial.folder.parent / f"{trial.name}.log"


def _curve(trial: Trial) -> list[dict[str, Any]]:
    begun = (trial.folder / "metrics.jsonl").exists()
    return read_metrics(trial.folder) if begun else []


def _reason(log: Path, code: int) -> str:
    """What a trial said last: of a mistake (2) the whole message, without the program's name, which stands before ours;
    else the last line."""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    beginning = "\njarilab: " if code == 2 else "\n"
    _, _, last = f"\n{text}".rpartition(beginning)
    return last.replace("\n", "\n  ")


def tabulate(trials: Sequence[Trial], task: Task) -> dict[str, Any]:
    """The table of finished trials. Raises UserError where their budgets are not equal."""
    rows: list[dict[str, Any]] = []
    reference = trials[0].experiment
    for trial in trials:
        record = read_run(trial.folder)
        held = read_experiment(record, trial.folder / "run.json")
        unequal = trial.experiment.difference(held)
        if unequal:
            lines = "\n  ".join(unequal)
            raise UserError(
                f"{trial.folder} cannot be compared: it holds another run than this comparison asks for; choose "
                f"another --out, or give its settings:\n  {lines}"
            )
        result = read_result(trial.folder, trial.experiment.hash)
        rows.append(_row(trial, held, result, task))
    rows_of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        rows_of.setdefault(row["encoding"], []).append(row)
    metric = task.metric
    summaries = [_summary(name, of_name, metric) for name, of_name in rows_of.items()]
    pairs = itertools.combinations(rows_of, 2)
    differences = [_difference(first, second, rows, metric) for first, second in pairs]
    return {
        "task": reference.task,
        "describe": task.describe(),
        "metric": metric.name,
        "ceiling": task.ceiling(),
        "trials": rows,
        "encodings": summaries,
        "differences": differences,
    }


def _row(trial: Trial, held: Experiment, result: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """A finished trial in the table."""
    metric = task.metric.name
    groups = {}
    for group in task.groups[1:]:
        key = f"{metric}_{group}"
        if key in result:
            groups[group] = result[key]
    return {
        "encoding": held.encoding,
        "seed": held.seed,
        "value": result[metric],
        "best_value": result["best"][metric],
        "groups": groups,
        "parts": result.get("parts", {}),
        "hash": trial.experiment.hash,
        "held_out": int(result["examples"]),
        "parameters": result["parameters"],
        "examples": result["trained_examples"],
        "steps": result["steps"],
        "cpu_seconds": result["cpu_seconds"],
        "seconds_per_step": result["seconds"] / result["steps"],
        "run": str(trial.folder),
    }


def _summary(name: str, rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Any]:
    """One encoding over all its seeds."""
    first = rows[0]
    values = [row["value"] for row in rows]
    interval = mean_interval(values, first["held_out"], share=metric.share)
    groups = {}
    for group in first["groups"]:
        of_group = [row["groups"][group] for row in rows]
        groups[group] = _mean(of_group)

    def mean(key: str) -> float:
        return _mean([row[key] for row in rows])

    return {
        "encoding": name,
        "trials": len(rows),
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "interval": interval.how,
        "best_mean": mean("best_value"),
        "groups": groups,
        "parts": _mean_parts(rows),
        "parameters": first["parameters"],
        "seconds_per_step": mean("seconds_per_step"),
        "cpu_seconds": mean("cpu_seconds"),
    }


def _mean_parts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parts of several seeds, which were measured on the same examples; those that all of them have."""
    means: dict[str, Any] = {}
    for by, parts in rows[0]["parts"].items():
        if any(by not in row["parts"] for row in rows):
            continue
        means[by] = {}
        for name, part in parts.items():
            values = [row["parts"][by][name]["value"] for row in rows]
            means[by][name] = {**part, "value": _mean(values)}
    return means


def _difference(
    first: str, second: str, rows: Sequence[Mapping[str, Any]], metric: Metric
) -> dict[str, Any]:
    of_first = [row["value"] for row in rows if row["encoding"] == first]
    of_second = [row["value"] for row in rows if row["encoding"] == second]
    difference = _mean(of_first) - _mean(of_second)
    low, high = paired_difference(of_first, of_second) or (None, None)
    if low is None or high is None:
        verdict = "one seed each, so not ranked: --seeds 3 would tell chance from encoding"
    elif low <= 0 <= high:
        verdict = "below the seed noise; not ranked"
    else:
        better = first if metric.better(difference, 0.0) else second
        verdict = f"{better} is better"
    return {
        "first": first,
        "second": second,
        "difference": difference,
        "low": low,
        "high": high,
        "verdict": verdict,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
