"""Train a model into a folder, or continue an earlier training."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import TRUST
from jarilab.cli.setting_flags import add_eval_lengths, add_task, eval_lengths_from, settings_from
from jarilab.core.errors import UserError

if TYPE_CHECKING:
    from jarilab.cli.rerun import SourceRun

MACHINE = "machine, checkpoints and logging"
FIRST = ("--encoding", "--model", "--out", "--seed", "--from", "--eval-lengths", "--set", "--json")


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.cli.rerun import SourceRun
    from jarilab.core.options import options_of

    parser.add_argument(
        "--from",
        dest="source",
        metavar="RUN",
        help="use task, model, seed and settings of this run; pass an option to change it, such as --seed 2",
    )
    parser.add_argument(
        TRUST,
        action="store_true",
        help="execute the Python files that the run of --from names",
    )
    parser.add_argument(
        "--out", metavar="RUN", help="folder of the run (default: runs/TASK-ENCODING-SEED)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = options_of(api.train)
    for name in ("model", "seed"):
        parser.add_option(parser, "verb", name, options[name])
    add_eval_lengths(parser, options["eval_lengths"])
    without = ("encoding", "model", "seed", "settings", "init", "eval_lengths", "report")
    parser.add_options("verb", options, title=MACHINE, without=without)
    source = SourceRun.among(words)
    recorded = None if source is None else source.experiment
    add_task(parser, words, optional=True, recorded=recorded)
    parser.show_first(*FIRST)
    parser.show_last(MACHINE)


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.rerun import DifferenceReport
    from jarilab.cli.result_output import metrics_text
    from jarilab.cli.terminal import is_first, say, show
    from jarilab.training.progress import TrainingProgress, working

    source = _source_run(options)
    settings = settings_from(options)
    differences = None
    if source is not None:
        if is_first():
            differences = DifferenceReport(source, say)
            differences.add(source.changes(settings))
            differences.add(source.other_versions())
        settings = source.settings(settings)
    out = options.out
    is_unsaid = out is None and is_first()
    if out is None:
        out = _default_folder(options, settings)
    name = Path(out).name
    with TrainingProgress() as progress, working(f"preparing the data of {options.task}") as wait:

        def report(row: dict[str, Any]) -> None:
            nonlocal is_unsaid
            wait.end()
            if is_unsaid:
                say(f"training into {out}")
                is_unsaid = False
            if differences is not None:
                differences.compare_folder(Path(out))
            progress.update(name, row)

        keywords = options.verb | eval_lengths_from(options)
        result = api.train(options.task, out, settings=settings, report=report, **keywords)
    if differences is not None:
        differences.compare_folder(Path(out))  # a finished run reports no step
    if is_first():
        show(options, result, metrics_text(result, out))


def _source_run(options: argparse.Namespace) -> SourceRun | None:
    """The run of `--from`, whose task and options are copied into `options` where they are not passed.

    Raises UserError for a task or kind of model that is not the run's.
    """
    from jarilab.cli.rerun import SourceRun
    from jarilab.cli.terminal import is_first, say

    if options.source is None:
        if options.task is None:
            raise UserError(
                "train expects a task, such as jarilab train arithmetic; or a run to repeat: --from RUN"
            )
        return None
    source = SourceRun.read(options.source, trust_code=options.trust_code)
    experiment = source.experiment
    model = options.verb.get("model", experiment.model)
    if options.task not in (None, experiment.task) or model != experiment.model:
        raise UserError(
            f"{source.folder} is a run of {experiment.task} with {experiment.model}; --from cannot change the task or "
            "the kind of model. Train without --from and pass the settings that you need"
        )
    options.task = experiment.task
    recorded = {"seed": experiment.seed, "precision": experiment.precision, "model": model}
    recorded["threads"] = source.record["environment"]["threads"]
    if is_first():
        for name in recorded.keys() & options.verb.keys():
            value = options.verb[name]
            if value != recorded[name]:
                say(f"not as in {source.folder}: {name} is {value}, was {recorded[name]}")
    options.verb = {**recorded, **options.verb}
    return source


def _default_folder(options: argparse.Namespace, settings: Mapping[str, Any]) -> str:
    """The folder of the run without `--out`. Raises UserError for an experiment that is invalid."""
    from jarilab import api
    from jarilab.runs.experiment import Experiment

    model, settings = api.with_origin(options.task, options.verb.get("model"), None, settings)
    seed = {"seed": options.verb["seed"]} if "seed" in options.verb else {}
    return Experiment.of(options.task, None, settings, model=model, **seed).folder
