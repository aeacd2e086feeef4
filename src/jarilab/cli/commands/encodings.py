"""List the encodings there are."""

from __future__ import annotations

import argparse
from typing import Any

from jarilab.cli.arguments import Parser, Words


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, with what options mean"
    )


def run(options: argparse.Namespace) -> None:
    from jarilab.cli.terminal import show, table
    from jarilab.runs.listing import listed_encodings

    encodings = listed_encodings()
    head = ["encoding", "axes", "acts in", "options", "what it does"]
    hint = "\n\nWith options: rotary:base=500,fraction=0.5; a sum: sinusoidal+alibi."
    show(options, {"encodings": encodings}, table([head, *map(_row, encodings)]) + hint)


def _row(encoding: dict[str, Any]) -> list[str]:
    also = f" ({', '.join(encoding['also'])})" if encoding["also"] else ""
    axes = ",".join(map(str, encoding["axes"]))
    hooks = ", ".join(encoding["hooks"])
    options = ", ".join(option["name"] for option in encoding["options"])
    return [encoding["name"] + also, axes, hooks or "-", options or "-", encoding["what"]]
