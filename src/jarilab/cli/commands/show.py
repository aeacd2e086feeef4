"""Draw encodings side by side: what each adds, turns or subtracts; or the softmax of your own numbers."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_open
from jarilab.cli.settings import specs_of
from jarilab.core.errors import UserError

if TYPE_CHECKING:
    from jarilab.pages.encodings import Drawings

PAGE = "encodings.html"
"""What is written where nothing else is asked for."""


def arguments(parser: Parser, words: Words) -> None:
    from jarilab.core.options import options_of
    from jarilab.pages import encodings

    # A row of numbers may begin with a minus.
    parser._negative_number_matcher = re.compile(r"^-[0-9.].*$")
    parser.add_argument(
        "encodings",
        metavar="SPEC,SPEC,...",
        nargs="?",
        help="such as rotary, sinusoidal,sinusoidal:layout=concatenated or my_encoding.py:Mine",
    )
    parser.add_options("verb", options_of(encodings.draw_encodings))
    parser.add_argument(
        "--softmax",
        nargs="+",
        metavar="NUMBERS",
        help="rows of numbers, such as 0.3,0.4,0.1 30,40,10: their softmax and its derivative, instead of encodings",
    )
    parser.add_argument(
        "--divide",
        metavar="D,D,...",
        help="the softmax of the numbers divided by sqrt(D) too, such as 64,512",
    )
    parser.add_argument(
        "--save", metavar="FILE", help=f"the page to write, which needs no network ({PAGE})"
    )
    parser.add_argument(
        "--svg", metavar="FOLDER", help="write each drawing as an SVG file into this folder"
    )
    add_open(parser, "the page")
    parser.add_argument(
        "--json", action="store_true", help="print the numbers of the drawings as one JSON object"
    )


def run(options: argparse.Namespace) -> None:
    from jarilab.cli.terminal import check_file, say, show, tell_page
    from jarilab.inspect.explain.text import softmax_text

    if options.save:
        check_file(Path(options.save))  # told before anything is drawn
    if options.softmax:
        drawings, found = _softmax(options)
        record = {"softmax": [one.as_dict() for one in found]}
        show(options, record, softmax_text(found))
    else:
        drawings = _encodings(options)
        show(options, drawings.as_dict(), _text(drawings))
    if options.svg:
        paths = drawings.save_svgs(options.svg)
        say(f"{len(paths)} SVG files in {options.svg}")
    only_told = options.json or options.svg or options.softmax
    if options.save or options.open or not only_told:
        tell_page(options, drawings.save(options.save or PAGE))


def _encodings(options: argparse.Namespace) -> Drawings:
    from jarilab.pages.encodings import draw_encodings

    if options.encodings is None:
        raise UserError(
            "nothing to draw; name encodings, such as rotary or t5,alibi, or give numbers: --softmax 0.3,0.4,0.1"
        )
    if options.divide:
        raise UserError("--divide is of numbers; give them with --softmax, or omit it")
    return draw_encodings(*specs_of("SPEC", options.encodings), **options.verb)


def _softmax(options: argparse.Namespace) -> tuple[Drawings, list[Any]]:
    from jarilab.inspect.explain.softmax import softmax_of
    from jarilab.pages.encodings import drawn

    if options.encodings is not None or options.verb:
        given = options.encodings or f"--{next(iter(options.verb))}"
        raise UserError(f"--softmax draws numbers alone, got {given} too; omit one of them")
    rows = [_numbers("--softmax", row) for row in options.softmax]
    divide = _numbers("--divide", options.divide) if options.divide else []
    found = softmax_of(rows, divide)
    return drawn(found), found


def _numbers(flag: str, text: str) -> list[float]:
    """`0.3,0.4`. Raises UserError for what is no number."""
    numbers = []
    for piece in text.split(","):
        try:
            numbers.append(float(piece))
        except ValueError:
            raise UserError(
                f"{flag}: expected numbers with commas between them, got {piece!r} in {text!r}; "
                "write such as 0.3,0.4,0.1"
            ) from None
    return numbers


def _text(drawings: Drawings) -> str:
    """What is on the page, for a terminal."""
    lines = []
    for column in drawings.columns:
        lines.append(column.name)
        lines += [f"  {sentence}." for sentence in column.sentences]
        lines += [f"  - {words[0]}" for words in column.facts]
        if column.drawings:
            lines.append(f"  drawn: {'; '.join(one.title[0] for one in column.drawings)}")
        lines.append("")
    return "\n".join(lines[:-1])
