"""Train a model into a folder, or go on with it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import TRUST
from jarilab.cli.settings import add_task, settings_from
from jarilab.core.errors import UserError

if TYPE_CHECKING:
    from jarilab.cli.repeating import Pattern


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.cli.repeating import Pattern
    from jarilab.core.options import options_of

    parser.add_argument(
        "--from",
        dest="pattern",
        metavar="RUN",
        help="take task, model, seed and every setting from this run, or its run.json; what else is given wins, "
        "such as --seed 2",
    )
    parser.add_argument(
        TRUST,
        action="store_true",
        help="execute the Python files that the run of --from names",
    )
    parser.add_argument(
        "--out", metavar="RUN", help="the folder of the run (runs/TASK-ENCODING-SEED)"
    )
    # The encoding is a setting of the model.
    without = ("encoding", "settings", "report")
    parser.add_options("verb", options_of(api.train), without=without)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    pattern = Pattern.among(words)
    recorded = None if pattern is None else pattern.experiment
    add_task(parser, words, optional=True, recorded=recorded)


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.ranks import is_first
    from jarilab.cli.repeating import Telling
    from jarilab.cli.results import metrics_text
    from jarilab.cli.terminal import say, show
    from jarilab.training.progress import TrainingProgress, working

    pattern = _pattern(options)
    settings = settings_from(options)
    telling = None
    if pattern is not None:
        if is_first():
            telling = Telling(pattern, say)
            telling.tell(pattern.changes(settings))
            telling.tell(pattern.other_versions())
        settings = pattern.settings(settings)
    out = options.out
    if out is None:
        out = _folder(options, settings)
        if is_first():
            say(f"training into {out}")
    name = Path(out).name
    with TrainingProgress() as progress, working(f"preparing the data of {options.task}") as wait:

        def report(row: dict[str, Any]) -> None:
            wait.end()
            if telling is not None:
                telling.opened(Path(out))
            progress.update(name, row)

        result = api.train(options.task, out, settings=settings, report=report, **options.verb)
    if telling is not None:
        telling.opened(Path(out))  # nothing was reported of a run that was finished already
    if is_first():
        show(options, result, metrics_text(result, out))


def _pattern(options: argparse.Namespace) -> Pattern | None:
    """The run of --from, from which comes what is not given. Raises UserError for another task or kind of model."""
    from jarilab.cli.ranks import is_first
    from jarilab.cli.repeating import Pattern
    from jarilab.cli.terminal import say

    if options.pattern is None:
        if options.task is None:
            raise UserError(
                "train needs a task, such as jarilab train arithmetic; or --from RUN, a run to repeat"
            )
        return None
    pattern = Pattern.read(options.pattern, trust_code=options.trust_code)
    experiment = pattern.experiment
    model = options.verb.get("model", experiment.model)
    if options.task not in (None, experiment.task) or model != experiment.model:
        raise UserError(
            f"{pattern.folder} is a run of {experiment.task} with {experiment.model}, and --from repeats it; for "
            "another task or kind of model give its settings one by one"
        )
    options.task = experiment.task
    own = {"seed": experiment.seed, "precision": experiment.precision, "model": model}
    own["threads"] = pattern.record["environment"]["threads"]
    if is_first():
        for name in own.keys() & options.verb.keys():
            if options.verb[name] != own[name]:
                say(f"not as in {pattern.folder}: {name} is {options.verb[name]}, was {own[name]}")
    options.verb = {**own, **options.verb}
    return pattern


def _folder(options: argparse.Namespace, settings: dict[str, Any]) -> str:
    """Where the run goes by default. Raises UserError for what cannot be trained."""
    from jarilab.runs.experiment import Experiment

    deciding = {name: options.verb[name] for name in ("seed", "model") if name in options.verb}
    return Experiment.of(options.task, None, settings, **deciding).folder
