"""Write the examples of a task to a file."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.setting_flags import ENCODING, add_task, settings_from


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument("--out", metavar="FILE", required=True, help="file to write")
    add_task(parser, words, without=(ENCODING,))


def run(options: argparse.Namespace) -> None:
    from jarilab import api

    count = api.write_examples(options.task, options.out, settings_from(options))
    print(f"{count:,} lines in {options.out}")
