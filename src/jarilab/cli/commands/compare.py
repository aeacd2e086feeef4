"""Train the same model under several encodings, and compare."""

from __future__ import annotations

import argparse
from pathlib import Path

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_open
from jarilab.cli.settings import ENCODING, add_task, settings_from, specs_of


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.options import options_of

    parser.add_argument(
        "--encodings", metavar="SPEC,SPEC,...", required=True, help="such as none,sinusoidal,rotary"
    )
    parser.add_argument(
        "--out", metavar="FOLDER", required=True, help="where runs, table.json and report.html go"
    )
    # What a trial and a training have in common is said there.
    own, of_train = options_of(api.compare), options_of(api.train)
    options = {name: of_train.get(name, option) for name, option in own.items()}
    parser.add_options("verb", options, without=("encodings", "settings"))
    add_open(parser, "the report")
    parser.add_argument("--json", action="store_true", help="print the table as one JSON object")
    add_task(parser, words, without=(ENCODING,))


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.results import table_text
    from jarilab.cli.terminal import show, tell_page

    encodings, settings = specs_of("--encodings", options.encodings), settings_from(options)
    task, out = options.task, options.out
    table = api.compare(task, out, encodings=encodings, settings=settings, **options.verb)
    show(options, table, table_text(table, Path(out)))
    tell_page(options, Path(out) / "report.html")
