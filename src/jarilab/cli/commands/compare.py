"""Train the same model under several encodings, and compare."""

from __future__ import annotations

import argparse
from pathlib import Path

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_open
from jarilab.cli.settings import ENCODING, add_task, settings_from
from jarilab.errors import UserError


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

    encodings, settings = _specs(options.encodings), settings_from(options)
    task, out = options.task, options.out
    table = api.compare(task, out, encodings=encodings, settings=settings, **options.verb)
    show(options, table, table_text(table, Path(out)))
    tell_page(options, Path(out) / "report.html")


def _specs(text: str) -> list[str]:
    """`none,rotary:base=500,fraction=0.5` names two encodings: a piece `key=value` belongs to the one before it."""
    specs: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if specs and "=" in piece and ":" not in piece.partition("=")[0]:
            specs[-1] += f",{piece}"
        else:
            specs.append(piece)
    if not specs:
        raise UserError("--encodings names none; write --encodings none,sinusoidal,rotary")
    return specs
