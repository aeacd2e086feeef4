"""Write a page with the curves of runs."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_open, add_runs


def arguments(parser: Parser, words: Words) -> None:
    add_runs(parser, "folders of runs, drawn over each other")
    parser.add_argument(
        "--out", metavar="FILE", help="the page to write (report.html in RUN, or beside several)"
    )
    add_open(parser, "the page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.terminal import show, tell_page

    page = api.report(options.runs, options.out)
    record = {"report": str(page), "runs": options.runs}
    show(options, record, str(page))
    tell_page(options, page)
