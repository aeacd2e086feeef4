"""Train a model into a folder, or go on with it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.settings import add_task, settings_from


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.options import options_of

    parser.add_argument(
        "--out", metavar="RUN", help="the folder of the run (runs/TASK-ENCODING-SEED)"
    )
    # The encoding is a setting of the model.
    without = ("encoding", "settings", "report")
    parser.add_options("verb", options_of(api.train), without=without)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_task(parser, words)


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.ranks import is_first
    from jarilab.cli.results import metrics_text
    from jarilab.cli.terminal import say, show
    from jarilab.training.progress import TrainingProgress, working

    settings = settings_from(options)
    out = options.out
    if out is None:
        out = _folder(options, settings)
        if is_first():
            say(f"training into {out}")
    name = Path(out).name
    with TrainingProgress() as progress, working(f"preparing the data of {options.task}") as wait:

        def report(row: dict[str, Any]) -> None:
            wait.end()
            progress.update(name, row)

        result = api.train(options.task, out, settings=settings, report=report, **options.verb)
    if is_first():
        show(options, result, metrics_text(result, out))


def _folder(options: argparse.Namespace, settings: dict[str, Any]) -> str:
    """Where the run goes by default. Raises UserError for what cannot be trained."""
    from jarilab.runs.experiment import Experiment

    deciding = {name: options.verb[name] for name in ("seed", "model") if name in options.verb}
    return Experiment.of(options.task, None, settings, **deciding).folder
