"""Check every file of runs against its checksum."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_runs

if TYPE_CHECKING:
    from jarilab.runs.verifying import VerifiedRun


def arguments(parser: Parser, words: Words) -> None:
    add_runs(parser, "folders of runs")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="move damaged files to the folder `damaged` of the run, so that the rest can be used; deletes nothing",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from jarilab.cli.terminal import show
    from jarilab.runs.verifying import verify

    verified = [verify(run, repair=options.repair) for run in options.runs]
    record = {"runs": [run.as_dict() for run in verified]}
    show(options, record, "\n\n".join(map(_text, verified)))
    return 0 if all(run.whole for run in verified) else 1


def _text(verified: VerifiedRun) -> str:
    from jarilab.cli.terminal import table

    rows = [[f"  {file.file}", file.state, file.about] for file in verified.files]
    lines = [verified.run, table(rows), *verified.repaired, _usable(verified)]
    return "\n".join(lines)


def _usable(verified: VerifiedRun) -> str:
    """What the run can still be used for."""
    if verified.answers_from is None:
        text = "it cannot answer: run.json, its data files and a checkpoint must be intact"
    else:
        text = f"it answers from step {verified.answers_from:,}"
    if verified.finished:
        text += "; it is finished"
    elif verified.goes_on_from is not None:
        text += ", and training continues from there"
    if not verified.whole:
        text = f"damaged; with the damaged files moved away (--repair), {text}"
    return f"{text[0].upper()}{text[1:]}."
