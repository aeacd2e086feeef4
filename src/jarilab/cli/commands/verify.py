"""Compare every file of runs with its checksum: what is damaged, and what can still be used."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_runs

if TYPE_CHECKING:
    from jarilab.runs.verifying import VerifiedRun


def arguments(parser: Parser, words: Words) -> None:
    add_runs(parser, "folders of runs")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="put what is damaged into the folder `damaged` of the run, so that the rest is used; nothing is deleted",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from jarilab.cli.terminal import show
    from jarilab.runs.verifying import verify

    verified = [verify(run, repair=options.repair) for run in options.runs]
    record = {"runs": [one.as_dict() for one in verified]}
    show(options, record, "\n\n".join(map(_text, verified)))
    return 0 if all(one.whole for one in verified) else 1


def _text(verified: VerifiedRun) -> str:
    from jarilab.cli.terminal import table

    rows = [[f"  {one.file}", one.state, one.about] for one in verified.files]
    lines = [verified.run, table(rows), *verified.repaired, _usable(verified)]
    return "\n".join(lines)


def _usable(verified: VerifiedRun) -> str:
    """What can be done with the run as it is."""
    if verified.answers_from is None:
        told = (
            "it cannot answer: run.json, what it keeps of its data and a checkpoint must be whole"
        )
    else:
        told = f"it answers from step {verified.answers_from:,}"
    if verified.finished:
        told += "; it is finished"
    elif verified.goes_on_from is not None:
        told += ", and training goes on from there"
    if not verified.whole:
        told = f"damaged; once what is damaged is put aside (--repair), {told}"
    return f"{told[0].upper()}{told[1:]}."
