"""Predict with a run: answer, translate, continue a text, classify, detect or paint."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_answer_options, add_run, add_shared
from jarilab.cli.terminal import lines, say
from jarilab.core.errors import UserError

if TYPE_CHECKING:
    from jarilab.tasks.predictors.base import Prediction


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.core.options import options_of

    add_run(parser)
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="*",
        help="a text, an image file, a held-out image such as '#5' or a caption (default: lines of standard input)",
    )
    parser.more = "sources"
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="one source as an option, instead of SOURCE",
    )
    parser.add_options("verb", options_of(api.predict), without=("at_once",))
    add_shared(parser, "threads")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each source")
    add_answer_options(parser, words, "options", "how to answer, for")


def run(options: argparse.Namespace) -> int:
    from jarilab import api
    from jarilab.training.memory import keep_freed_memory
    from jarilab.training.progress import working

    keep_freed_memory()
    api.use_threads(options.verb.pop("threads", None))
    with working(f"opening {options.run}"):
        opened = api.open_run(options.run, **options.verb)
    _check_out(options, opened.predictor.options)
    sources, is_interactive = _sources(options)
    at_once = 1 if is_interactive else api.AT_ONCE
    has_failed = False
    for prediction in api.predict(opened, sources, at_once=at_once, **options.answer):
        has_failed |= prediction.error is not None
        for message in prediction.messages:
            say(message)
        _print(prediction, options.json)
    return 2 if has_failed else 0


def _print(prediction: Prediction, as_json: bool) -> None:
    """Print a prediction as JSON, or piece by piece as it is generated."""
    if as_json:
        print(json.dumps(prediction.record(), ensure_ascii=False), flush=True)
        return
    for piece in prediction.text():
        print(piece, end="", flush=True)


def _sources(options: argparse.Namespace) -> tuple[Iterable[str | UserError], bool]:
    """The sources to answer, and whether a person types them and waits for each answer."""
    words: list[str] = options.sources
    if options.prompt is not None:
        if words:
            raise UserError("expected sources as words or as --prompt, got both; omit one")
        words = [options.prompt]
    if words:
        return words, False
    is_interactive = sys.stdin.isatty()
    if is_interactive:
        say("type a line to answer; Ctrl-D on an empty line ends")
    return lines(sys.stdin.buffer), is_interactive


def _check_out(options: argparse.Namespace, target: type) -> None:
    """Raises UserError if the answer is an image and `--out` does not name a file for it."""
    from jarilab.core.options import options_of

    if "out" in options_of(target) and "out" not in options.answer:
        raise UserError("this run answers with an image; pass --out FILE.png")
