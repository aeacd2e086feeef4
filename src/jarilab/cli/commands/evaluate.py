"""Measure a run on its held-out data, or on files."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_answer_options, add_run


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.core.options import options_of

    add_run(parser)
    parser.add_options("verb", options_of(api.evaluate))
    parser.add_argument("--json", action="store_true", help="print the metrics as one JSON object")
    add_answer_options(parser, words, "scoring", "how answers are generated and judged, for")


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.result_output import metrics_text
    from jarilab.cli.terminal import say, show
    from jarilab.training.memory import keep_freed_memory
    from jarilab.training.progress import working

    keep_freed_memory()
    with working(f"measuring {options.run}"):
        metrics = api.evaluate(options.run, **options.verb, **options.answer)
    for notice in metrics["notices"]:
        say(notice)
    show(options, metrics, metrics_text(metrics, options.run))
