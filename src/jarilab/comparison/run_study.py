"""Run a study: train its trials, then write its tables and its report."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jarilab.comparison.launchers.launcher import Launcher, NotRunError
from jarilab.comparison.launchers.processes import LocalProcesses, Running, last_message
from jarilab.comparison.report import payload, render
from jarilab.comparison.study import Study, Trial, best_rates, tuned_values
from jarilab.comparison.table import tabulate
from jarilab.comparison.table_export import figures_csv, latex, trials_csv
from jarilab.core.errors import UserError
from jarilab.core.private_paths import without_home
from jarilab.core.storage.files import write_text
from jarilab.runs import metrics_log
from jarilab.runs.lock import locked
from jarilab.runs.signals import StopSignals
from jarilab.tasks.base import Task
from jarilab.training.preflight import check_trainable
from jarilab.training.progress import TrainingProgress


def run(study: Study, out: Path, launcher: Launcher) -> dict[str, Any]:
    """Train the unfinished trials, then write the tables and report.html; return the table.

    See `jarilab.compare`. Raises UserError if the study cannot be run or written.
    """
    launcher.check()
    study.check_folder(out)
    trials = study.trials(out)
    task, longer = study.experiment.resolved.build_task_at(study.eval_lengths)
    # One trial of each encoding, before any is trained.
    for trial in trials[: len(study.encodings)]:
        check_trainable(trial.experiment, task, list(longer.values()))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be a folder for the study: {error}") from None
    with locked(out, "compares"):
        study.write(out)
        try:
            rate_values = _tune(study, out, task, launcher)
            trials = study.trials(out, best_rates(rate_values, task.metric))
            failures = train_all(trials, launcher.processes(trials, out, study.snapshots))
        except NotRunError as script:
            commands = [shlex.join(trial.command) for trial in script.trials]
            return {"script": str(script.path), "commands": commands}
        return _write_report(trials, task, out, failures, rate_values)


def _tune(study: Study, out: Path, task: Task, launcher: Launcher) -> list[dict[str, Any]]:
    """Train each encoding with every learning rate; return the values that they reached.

    Raises UserError for an encoding that no rate trains. A rate that fails is not chosen.
    """
    trials = study.tuning(out)
    if not trials:
        return []
    (out / "tuning").mkdir(exist_ok=True)
    failures = train_all(trials, launcher.processes(trials, out))
    rate_values = tuned_values(trials, task.metric)
    trained = {row["encoding"] for row in rate_values}
    for trial in trials:
        if trial.experiment.encoding not in trained:
            raise UserError(
                f"no learning rate trains {trial.experiment.encoding}: {failures[trial.name]}; choose others"
            )
    return rate_values


def report_study(study: Study, out: Path) -> dict[str, Any]:
    """Write the tables and report.html of the finished trials, without training; return the table."""
    task = study.experiment.resolved.build_task()
    rate_values = tuned_values(study.tuning(out), task.metric)
    trials = study.trials(out, best_rates(rate_values, task.metric))
    return _write_report(trials, task, out, {}, rate_values)


def _write_report(
    trials: Sequence[Trial],
    task: Task,
    out: Path,
    failures: Mapping[str, str],
    rate_values: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Write every table and the page; return the table.

    failures: the reason of each failed trial, by its name. rate_values: from `tuned_values`.
    """
    finished = [trial for trial in trials if trial.finished]
    unfinished = []
    for trial in trials:
        if trial not in finished:
            reason = failures.get(trial.name, "not trained to its end yet")
            identity = {"encoding": trial.experiment.encoding, "seed": trial.experiment.seed}
            unfinished.append({**identity, "reason": reason, "log": str(trial.log)})
    _report_failures(failures, len(trials), bool(finished))
    if not finished:
        raise UserError(f"no trial of {out} is finished yet; `jarilab compare {out}` trains them")
    table = {**tabulate(finished, task, unfinished), "tuning": list(rate_values)}
    in_json = json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(out / "table.json", without_home(in_json) + "\n")
    write_text(out / "table.csv", figures_csv(table))
    write_text(out / "trials.csv", trials_csv(table))
    write_text(out / "table.tex", latex(table))
    runs = [(trial.experiment, trial.folder) for trial in finished]
    write_text(out / "report.html", render(payload(table, runs, task)))
    return table


def _report_failures(failures: Mapping[str, str], count: int, any_finished: bool) -> None:
    """Print the failed trials of `count`. Raises UserError if no trial is finished."""
    if not failures:
        return
    lines = "\n  ".join(f"{name}: {reason}" for name, reason in failures.items())
    message = f"{len(failures)} of {count} trials failed; the others are kept, and the same command tries again:"
    if not any_finished:
        raise UserError(f"{message}\n  {lines}")
    print(f"jarilab: {message}\n  {lines}", file=sys.stderr)


def train_all(trials: Sequence[Trial], processes: LocalProcesses) -> dict[str, str]:
    """Train each unfinished trial with `jarilab train`, in its own process; return the reason of each failure.

    The command is the one that a user would type, so a trial can be repeated alone with the same bits. Raises
    Interrupted after a signal, once all trials of this machine have ended.
    """
    waiting = [trial for trial in trials if not trial.finished]
    by_name = {trial.name: trial for trial in waiting}
    running: dict[str, Running] = {}
    failures: dict[str, str] = {}
    row_counts = {trial.name: len(_curve(trial)) for trial in waiting}

    def end_all() -> None:
        for handle in running.values():
            handle.end()

    with TrainingProgress(list(by_name)) as progress, StopSignals(end_all) as stop:
        try:
            while waiting or running:
                for trial, handle in processes.start(waiting, running):
                    waiting.remove(trial)
                    running[trial.name] = handle
                time.sleep(processes.poll_seconds)
                stop.check()
                for name, handle in list(running.items()):
                    trial = by_name[name]
                    rows = _curve(trial)
                    update = _merge_rows(rows[row_counts[name] :])
                    if update:
                        progress.update(name, update)
                    row_counts[name] = len(rows)
                    if handle.poll() is None:
                        continue
                    del running[name]
                    if handle.returncode:
                        failures[name] = last_message(trial, handle.returncode)
                    elif not trial.finished:
                        # Another process trained it and stopped early: resume it here.
                        waiting.insert(0, trial)
        except BaseException:  # also Ctrl-C: no trial of this machine outlives the comparison
            end_all()
            for handle in running.values():
                handle.wait()
            raise
    return failures


def _merge_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """New rows of a curve merged into one."""
    together: dict[str, Any] = {}
    for row in rows:
        together |= row
    return together


def _curve(trial: Trial) -> list[dict[str, Any]]:
    path = trial.folder / "metrics.jsonl"
    # The trial itself reports a damaged line and drops it.
    return metrics_log.read(path, trial.experiment.hash).rows if path.exists() else []
