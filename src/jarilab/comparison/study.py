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
    Interrupted,
    StopSignals,
    read_experiment,
    read_metrics,
    read_result,
    read_run,
)
from jarilab.runs.options import deciding
from jarilab.runs.precision import Precision
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
    pairs = itertools.product(range(1, seeds + 1), encodings)
    trials = _trials(
        out, (Experiment.of(task, spec, settings, seed, precision, model) for seed, spec in pairs)
    )
    instance = trials[0].experiment.task_instance()
    for experiment in {trial.experiment.encoding: trial.experiment for trial in trials}.values():
        check_trainable(experiment, instance)  # all of them, before any is trained
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be a folder for the study: {error}") from None
    _train_all(trials, jobs, snapshots)
    table = tabulate(trials, instance)
    write_json(out / "table.json", table)
    payload = report_data.payload(table, [(t.experiment, t.folder) for t in trials], instance)
    write_text(out / "report.html", render(payload))
    return table


def _trials(out: Path, experiments: Iterable[Experiment]) -> list[Trial]:
    trials: list[Trial] = []
    for experiment in experiments:
        name = f"{as_file_name(experiment.encoding)}-{experiment.seed}"
        trials.append(Trial(name, experiment, out / name))
    taken = [trial.name for trial in trials]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"the encoding of {twice} is named twice; name each encoding once")
    return trials


def _train_all(trials: Sequence[Trial], jobs: int, snapshots: int = 0) -> None:
    """Run each unfinished trial as `jarilab train` in a process of its own with one thread: the same command a person
    would give, so a trial can be repeated alone and gives the same bits."""
    waiting = [trial for trial in trials if not (trial.folder / "result.json").exists()]
    running: dict[str, tuple[Trial, subprocess.Popen[bytes]]] = {}
    failed: dict[str, str] = {}
    shown = {trial.name: len(_curve(trial)) for trial in waiting}
    names = [trial.name for trial in waiting]
    with TrainingProgress(names) as progress, StopSignals() as stop:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    trial = waiting.pop(0)
                    running[trial.name] = (trial, _start(trial, snapshots))
                time.sleep(0.5)
                stop.check()
                for name, (trial, process) in list(running.items()):
                    rows = _curve(trial)
                    # Rows that came together are told as one: a rate between them would be that of reading them.
                    if news := {
                        key: value for row in rows[shown[name] :] for key, value in row.items()
                    }:
                        progress.update(name, news)
                    shown[name] = len(rows)
                    if process.poll() is not None:
                        del running[name]
                        if process.returncode:
                            failed[name] = _reason(
                                trial.folder.parent / f"{name}.log", process.returncode
                            )
        except Interrupted:
            for _, process in running.values():
                process.send_signal(signal.SIGTERM)
            for _, process in running.values():
                process.wait()
            raise
    if failed:
        reasons = "\n  ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise UserError(
            f"{len(failed)} of {len(trials)} trials failed; the others are kept:\n  {reasons}"
        )


def _start(trial: Trial, snapshots: int) -> subprocess.Popen[bytes]:
    experiment = trial.experiment
    # -P: the current folder is not on the import path, so that a statistics.py lying there is not executed.
    command = [sys.executable, "-P", "-m", "jarilab", "train", experiment.task]
    command += ["--out", str(trial.folder), "--threads", "1"]
    command += [
        "--seed",
        str(experiment.seed),
        "--precision",
        experiment.precision,
        "--model",
        experiment.model,
    ]
    command += ["--snapshots", str(snapshots)]
    for section in ("task", "model", "training"):
        options = (
            deciding(experiment.training)
            if section == "training"
            else getattr(experiment, f"{section}_options")
        )
        for name, value in options.items():
            text = json.dumps(value) if value is None or isinstance(value, list | tuple) else value
            command += ["--set", f"{section}.{name}={text}"]
    log = (trial.folder.parent / f"{trial.name}.log").open("wb")
    with log:
        # A session of its own: Ctrl-C reaches the trials through us, once.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def _curve(trial: Trial) -> list[dict[str, Any]]:
    return read_metrics(trial.folder) if (trial.folder / "metrics.jsonl").exists() else []


def _reason(log: Path, code: int) -> str:
    """What a trial said last: of a mistake (2) the whole message, without the program's name, which stands before ours;
    else the last line."""
    text = "\n" + log.read_text(encoding="utf-8", errors="replace").strip()
    return text.rpartition("\njarilab: " if code == 2 else "\n")[2].replace("\n", "\n  ")


def tabulate(trials: Sequence[Trial], task: Task) -> dict[str, Any]:
    """The table of finished trials. Raises UserError where their budgets are not equal."""
    rows: list[dict[str, Any]] = []
    reference = trials[0].experiment
    for trial in trials:
        held = read_experiment(read_run(trial.folder), trial.folder / "run.json")
        unequal = trial.experiment.difference(held)
        if unequal:
            lines = "\n  ".join(unequal)
            raise UserError(
                f"{trial.folder} cannot be compared: it holds another run than this comparison asks for; choose "
                f"another --out, or give its settings:\n  {lines}"
            )
        result = read_result(trial.folder, trial.experiment.hash)
        metric = task.metric.name
        groups = {g: result[f"{metric}_{g}"] for g in task.groups[1:] if f"{metric}_{g}" in result}
        rows.append(
            {
                "encoding": held.encoding,
                "seed": held.seed,
                "value": result[metric],
                "best_value": result["best"][metric],
                "groups": groups,
                "held_out": int(result["examples"]),
                "parameters": result["parameters"],
                "examples": result["trained_examples"],
                "steps": result["steps"],
                "cpu_seconds": result["cpu_seconds"],
                "seconds_per_step": result["seconds"] / result["steps"],
                "run": str(trial.folder),
            }
        )
    names = list(dict.fromkeys(row["encoding"] for row in rows))
    return {
        "task": reference.task,
        "describe": task.describe(),
        "metric": task.metric.name,
        "ceiling": task.ceiling(),
        "trials": rows,
        "encodings": [
            _summary(name, [row for row in rows if row["encoding"] == name], task.metric)
            for name in names
        ],
        "differences": [
            _difference(a, b, rows, task.metric) for a, b in itertools.combinations(names, 2)
        ],
    }


def _summary(name: str, rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, Any]:
    interval = mean_interval(
        [row["value"] for row in rows], rows[0]["held_out"], share=metric.share
    )

    def mean(key: str) -> float:
        return sum(row[key] for row in rows) / len(rows)

    return {
        "encoding": name,
        "trials": len(rows),
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "interval": interval.how,
        "best_mean": mean("best_value"),
        "groups": {g: sum(row["groups"][g] for row in rows) / len(rows) for g in rows[0]["groups"]},
        "parameters": rows[0]["parameters"],
        "seconds_per_step": mean("seconds_per_step"),
        "cpu_seconds": mean("cpu_seconds"),
    }


def _difference(
    first: str, second: str, rows: Sequence[Mapping[str, Any]], metric: Metric
) -> dict[str, Any]:
    a = [row["value"] for row in rows if row["encoding"] == first]
    b = [row["value"] for row in rows if row["encoding"] == second]
    ends = paired_difference(a, b)
    mean = sum(a) / len(a) - sum(b) / len(b)
    if ends is None:
        verdict = "one seed each, so not ranked: --seeds 3 would tell chance from encoding"
    elif ends[0] <= 0 <= ends[1]:
        verdict = "below the seed noise; not ranked"
    else:
        verdict = f"{first if metric.better(mean, 0.0) else second} is better"
    return {
        "first": first,
        "second": second,
        "difference": mean,
        "low": None if ends is None else ends[0],
        "high": None if ends is None else ends[1],
        "verdict": verdict,
    }
