"""Draw encodings side by side, or the softmax of numbers."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_open
from jarilab.cli.setting_flags import parse_specs
from jarilab.core.errors import UserError

if TYPE_CHECKING:
    from jarilab.pages.encodings import Drawings

DEFAULT_PAGE = "encodings.html"


def arguments(parser: Parser, words: Words) -> None:
    from jarilab.core.options import options_of
    from jarilab.pages import encodings

    # A row of numbers may begin with a minus sign, like a flag.
    parser._negative_number_matcher = re.compile(r"^-[0-9.].*$")
    parser.add_argument(
        "encodings",
        metavar="SPEC,SPEC,...",
        nargs="?",
        help="encodings, such as rotary, sinusoidal,sinusoidal:layout=concatenated or my_encoding.py:Mine",
    )
    parser.add_options("verb", options_of(encodings.draw_encodings))
    parser.add_argument(
        "--softmax",
        nargs="+",
        metavar="NUMBERS",
        help="draw the softmax of rows of numbers and its derivative instead, such as 0.3,0.4,0.1 30,40,10",
    )
    parser.add_argument(
        "--divide",
        metavar="D,D,...",
        help="also draw the softmax of the numbers divided by sqrt(D), such as 64,512",
    )
    parser.add_argument("--save", metavar="FILE", help=f"page to write (default: {DEFAULT_PAGE})")
    parser.add_argument(
        "--svg", metavar="FOLDER", help="write each drawing as an SVG file to this folder"
    )
    add_open(parser, "the page")
    parser.add_argument(
        "--json", action="store_true", help="print the numbers of the drawings as one JSON object"
    )


def run(options: argparse.Namespace) -> None:
    from jarilab.cli.terminal import check_file, open_or_point_to, say, show
    from jarilab.inspect.explain.walk_text import softmax_text

    if options.save:
        check_file(Path(options.save))  # before the work of drawing
    if options.softmax:
        drawings, rows = _softmax(options)
        show(options, {"softmax": [row.as_dict() for row in rows]}, softmax_text(rows))
    else:
        drawings = _encodings(options)
        show(options, drawings.as_dict(), _text(drawings))
    if options.svg:
        paths = drawings.save_svgs(options.svg)
        say(f"{len(paths)} SVG files in {options.svg}")
    has_other_output = options.json or options.svg or options.softmax
    if options.save or options.open or not has_other_output:
        open_or_point_to(options, drawings.save(options.save or DEFAULT_PAGE))


def _encodings(options: argparse.Namespace) -> Drawings:
    from jarilab.pages.encodings import draw_encodings

    if options.encodings is None:
        raise UserError(
            "expected encodings or numbers, got neither; write such as rotary, or --softmax 0.3,0.4,0.1"
        )
    if options.divide:
        raise UserError("--divide needs numbers; pass them with --softmax, or omit it")
    return draw_encodings(*parse_specs("SPEC", options.encodings), **options.verb)


def _softmax(options: argparse.Namespace) -> tuple[Drawings, list[Any]]:
    from jarilab.inspect.explain.softmax import softmax_of
    from jarilab.pages.encodings import drawn

    if options.encodings is not None or options.verb:
        extra = options.encodings or f"--{next(iter(options.verb))}"
        raise UserError(f"--softmax expects numbers only, got {extra} too; omit one of them")
    rows = [_numbers("--softmax", row) for row in options.softmax]
    divide = _numbers("--divide", options.divide) if options.divide else []
    softmaxes = softmax_of(rows, divide)
    return drawn(softmaxes), softmaxes


def _numbers(flag: str, text: str) -> list[float]:
    """The numbers in `0.3,0.4`. Raises UserError for other text."""
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
    """The page as text for a terminal."""
    lines = []
    for column in drawings.columns:
        lines.append(column.name)
        lines += [f"  {sentence}." for sentence in column.sentences]
        lines += [f"  - {words[0]}" for words in column.facts]
        if column.drawings:
            lines.append(f"  drawn: {'; '.join(drawing.title[0] for drawing in column.drawings)}")
        lines.append("")
    return "\n".join(lines[:-1])
