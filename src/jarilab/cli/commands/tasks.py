"""List all tasks."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, with options")


def run(options: argparse.Namespace) -> None:
    from jarilab.cli.terminal import show, table
    from jarilab.runs.descriptions import describe_tasks

    tasks = describe_tasks()
    head = ["task", "models", "what it is"]
    rows = [[task["name"], ", ".join(task["models"]), task["what"]] for task in tasks]
    hint = "\n\n`jarilab train TASK --help` lists the options of a task."
    show(options, {"tasks": tasks}, table([head, *rows]) + hint)
