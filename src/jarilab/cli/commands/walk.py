"""Follow one attention head, matrix by matrix."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_run


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.core.options import options_of

    add_run(parser)
    parser.add_argument(
        "--input", help="input, such as 12+1 (default: an example of the run's task)"
    )
    parser.add_options("verb", options_of(api.walk))
    parser.add_argument(
        "--softmax",
        action="store_true",
        help="compare the softmax for scores that are not divided by sqrt(d_k)",
    )
    parser.add_argument("--json", action="store_true", help="print the walk as one JSON object")


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.terminal import show
    from jarilab.inspect.explain import walk_text
    from jarilab.inspect.explain.softmax import softmax_lens

    result = api.walk(options.run, options.input, **options.verb)
    walk, answer = result.walk, result.answer
    record: dict[str, Any] = {"input": result.input, "answer": answer}
    headline = result.input if answer is None else f"{result.input} -> {answer}"
    if options.softmax:
        divisors = [divisor.as_dict() for divisor in softmax_lens(walk.call, walk.head)]
        record |= {"site": walk.site, "head": walk.head, "divisors": divisors}
        show(options, record, walk_text.lens_text(walk, headline))
    else:
        terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        show(options, record | walk.as_dict(), walk_text.walk_text(walk, headline, terminal))
