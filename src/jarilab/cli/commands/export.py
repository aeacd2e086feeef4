"""Write a run's model for another program."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_run, add_shared


def arguments(parser: Parser, words: Words) -> None:
    add_run(parser)
    parser.add_argument(
        "--to", choices=("ctranslate2",), default="ctranslate2", help="the program (ctranslate2)"
    )
    parser.add_argument("--out", metavar="FOLDER", required=True, help="the folder to write")
    add_shared(parser, "trust_code")


def run(options: argparse.Namespace) -> None:
    from jarilab import export

    export.ctranslate2(options.run, options.out, **options.verb)
    print(f"{options.to} model in {options.out}")
