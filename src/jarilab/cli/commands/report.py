"""Write a page with the training curves of runs."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_open, add_runs


def arguments(parser: Parser, words: Words) -> None:
    add_runs(parser, "folders of runs; their curves share one page")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="page to write (default: report.html in RUN, or beside several; curves.html beside trials of a study)",
    )
    add_open(parser, "the page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.terminal import open_or_point_to, show

    page = api.report(options.runs, options.out)
    record = {"report": str(page), "runs": options.runs}
    show(options, record, str(page))
    open_or_point_to(options, page)
