"""Write a model card of a run in Markdown."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_run, add_shared


def arguments(parser: Parser, words: Words) -> None:
    add_run(parser)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="file to write, with a picture of an attention map beside it (default: print the card)",
    )
    add_shared(parser, "trust_code")


def run(options: argparse.Namespace) -> None:
    from pathlib import Path

    from jarilab.comparison import card
    from jarilab.runs.loaded import load

    loaded = load(options.run, **options.verb)
    if options.out is None:
        print(card.card(loaded), end="")
        return
    picture = card.write(loaded, Path(options.out))
    print(options.out if picture is None else f"{options.out}, {picture}")
