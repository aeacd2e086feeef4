"""A study from its first trial to its tables and its page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jarilab.comparison import report_data
from jarilab.comparison.places import NotRunError, Place
from jarilab.comparison.report import render
from jarilab.comparison.running import train_all
from jarilab.comparison.study import Study
from jarilab.comparison.table import tabulate
from jarilab.comparison.trial import Trial
from jarilab.comparison.tuning import best_rates, tuned
from jarilab.comparison.writing import figures_csv, latex, trials_csv
from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_json, write_text
from jarilab.runs.lock import locked
from jarilab.tasks.base import Task
from jarilab.training.preflight import check_trainable


def run(study: Study, out: Path, place: Place) -> dict[str, Any]:
    """Train what is not trained yet, then write the tables and report.html. See `jarilab.compare`.

    place: where the trials run."""
    place.check()
    study.check_folder(out)
    trials = study.trials(out)
    task = study.experiment.resolved.build_task()
    for trial in trials[: len(study.encodings)]:
        check_trainable(trial.experiment, task)  # all of them, before any is trained
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be a folder for the study: {error}") from None
    with locked(out, "compares"):
        study.write(out)
        try:
            found = _tune(study, out, task, place)
            trials = study.trials(out, best_rates(found, task.metric))
            failed = train_all(trials, place.engine(trials, out, study.snapshots))
        except NotRunError as script:
            commands = [shlex.join(trial.command) for trial in script.trials]
            return {"script": str(script.path), "commands": commands}
        return _report(trials, task, out, failed, found)


def _tune(study: Study, out: Path, task: Task, place: Place) -> list[dict[str, Any]]:
    """Train with every learning rate that may be chosen; what came out. Raises UserError for an encoding that no rate
    trains: one that fails is not chosen."""
    trials = study.tuning(out)
    if not trials:
        return []
    (out / "tuning").mkdir(exist_ok=True)
    failed = train_all(trials, place.engine(trials, out))
    found = tuned(trials, task.metric)
    reached = {one["encoding"] for one in found}
    for trial in trials:
        if trial.experiment.encoding not in reached:
            raise UserError(
                f"no learning rate trains {trial.experiment.encoding}: {failed[trial.name]}; choose others"
            )
    return found


def report(study: Study, out: Path) -> dict[str, Any]:
    """Write the tables and report.html of the trials that are finished, and train nothing; give the table."""
    task = study.experiment.resolved.build_task()
    found = tuned(study.tuning(out), task.metric)
    return _report(study.trials(out, best_rates(found, task.metric)), task, out, {}, found)


def _report(
    trials: Sequence[Trial],
    task: Task,
    out: Path,
    failed: Mapping[str, str],
    found: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """failed: the names of trials, and why. found: what learning rates were chosen by."""
    finished = [trial for trial in trials if trial.finished]
    unfinished = []
    for trial in trials:
        if trial not in finished:
            reason = failed.get(trial.name, "not trained to its end yet")
            where = {"encoding": trial.experiment.encoding, "seed": trial.experiment.seed}
            unfinished.append({**where, "reason": reason, "log": str(trial.log)})
    if failed:
        reasons = [f"{name}: {reason}" for name, reason in failed.items()]
        lines = "\n  ".join(reasons)
        told = f"{len(failed)} of {len(trials)} trials failed; the others are kept, and the same command tries again:"
        if not finished:
            raise UserError(f"{told}\n  {lines}")
        print(f"jarilab: {told}\n  {lines}", file=sys.stderr)
    if not finished:
        raise UserError(f"no trial of {out} is finished yet; `jarilab compare {out}` trains them")
    table = {**tabulate(finished, task, unfinished), "tuning": list(found)}
    write_json(out / "table.json", table)
    write_text(out / "table.csv", figures_csv(table))
    write_text(out / "trials.csv", trials_csv(table))
    write_text(out / "table.tex", latex(table))
    shown = [(trial.experiment, trial.folder) for trial in finished]
    write_text(out / "report.html", render(report_data.payload(table, shown, task)))
    return table
