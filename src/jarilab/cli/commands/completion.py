"""Print a script for your shell: Tab then completes commands and options."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.completion import SHELLS, script


def arguments(parser: Parser, words: Words) -> None:
    parser.epilog = (
        "bash: jarilab completion bash >> ~/.bashrc; zsh: the same with zsh and ~/.zshrc; "
        "fish: jarilab completion fish > ~/.config/fish/completions/jarilab.fish"
    )
    parser.add_argument(
        "shell", metavar="SHELL", choices=SHELLS, help="your shell: bash, zsh or fish"
    )


def run(options: argparse.Namespace) -> None:
    print(script(options.shell), end="")
