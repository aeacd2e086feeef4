"""Print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.completion import SHELLS, script


def arguments(parser: Parser, words: Words) -> None:
    parser.epilog = "For bash: jarilab completion bash >> ~/.bashrc"
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=" or ".join(SHELLS))


def run(options: argparse.Namespace) -> None:
    print(script(options.shell), end="")
