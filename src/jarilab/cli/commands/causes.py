"""Find out which head decides an answer, and how."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_memory_limit, add_open, limit_memory

if TYPE_CHECKING:
    from jarilab.explorer.causes import Causes

INPUTS = {"q": "queries", "k": "keys", "v": "values"}
MAX_ROWS = 12
"""Heads that the terminal shows."""


def arguments(parser: Parser, words: Words) -> None:
    from jarilab.core.options import options_of
    from jarilab.explorer.causes import causes

    parser.add_argument(
        "model", metavar="MODEL", help="folder of a run, or of a Hugging Face model"
    )
    parser.add_argument(
        "--text", required=True, help="input text, or an image file for a model that reads images"
    )
    parser.add_options("verb", options_of(causes), without=("report",))
    parser.add_argument("--out", metavar="FILE", help="page to write, such as causes.html")
    add_open(parser, "the page")
    add_memory_limit(parser)
    parser.add_argument("--json", action="store_true", help="print all numbers as one JSON object")


def run(options: argparse.Namespace) -> None:
    from jarilab.cli.terminal import check_file, open_or_point_to, show
    from jarilab.core.errors import UserError
    from jarilab.explorer.causes import causes
    from jarilab.training.progress import CountProgress, working

    if options.open and not options.out:
        raise UserError("--open expects a page, got no --out; name it, such as --out causes.html")
    if options.out:
        check_file(Path(options.out))  # before the work
    limit_memory(options)
    quicker = (
        ""
        if options.verb.get("screen")
        else " (of hundreds of heads, --screen 8 is quicker, but may miss some)"
    )
    opening = working(f"ablating the heads of {options.model}{quicker}")
    heads = CountProgress(f"heads of {options.model}", 1, unit="ablations")
    with opening, heads:

        def report(done: int, total: int) -> None:
            opening.end()
            heads.total = total
            heads.update(done)

        result = causes(options.model, options.text, report=report, **options.verb)
    if options.json or options.out or options.verb.get("steer"):
        with working("computing the sections of the page"):
            result.sections  # noqa: B018 - computed on first use
    show(options, result.as_dict() if options.json else None, _text(result))
    if options.out:
        result.save(options.out)
        open_or_point_to(options, Path(options.out))


def _text(causes: Causes) -> str:
    """The conclusion, and a table of the heads with the largest effects."""
    from jarilab.cli.terminal import table

    def strength(row: dict[str, Any]) -> float:
        return max(abs(row[name] or 0.0) for name in ("total", "mean", "direct"))

    order = sorted(causes.rows, key=strength, reverse=True)
    columns = {"zero": "total", "mean": "mean", "direct": "direct"}
    if causes.patching is not None:
        columns |= {"noised": "noised", "restored": "restored"}
    is_screened = "checked" in order[0]
    header = ["head", *columns, "largest of random", *["estimate", "chosen"] * is_screened]
    rows = [_line(row, columns.values()) for row in order[:MAX_ROWS]]
    lines = [causes.sentence, "", table([[*header, "verdict"], *rows])]
    if len(order) > MAX_ROWS:
        rest = len(order) - MAX_ROWS
        lines.append(f"{rest} more heads have smaller effects; --json prints all")
    about = causes.about
    tokens = " | ".join(dict.fromkeys(map(" ".join, about["tokens"].values())))
    best = ", ".join(f"{each['answer']!r} {each['probability']:.1%}" for each in about["best"])
    lines += [
        "",
        *(_edge(edge) for edge in causes.edges if edge["target"] != "answer"),
        *_changes(causes),
        f"Effects are nats that the score loses without the head. Means are over {causes.means}.",
        f"Most likely answers: {best}",
    ]
    if causes.scored.special:
        lines.append(f"Tokens: {shorten(tokens, 200)}")
    if causes.scored.unknown:
        unknown = causes.scored.unknown
        lines.append(f"Unknown tokens: {unknown}; use words that the tokenizer knows")
    return "\n".join(lines)


def _changes(causes: Causes) -> list[str]:
    """The sentences of patching, and of steering where that is computed."""
    sections: dict[str, Any] = {"patching": causes.patching, **vars(causes).get("sections", {})}
    named = [(name, sections.get(name)) for name in ("patching", "steering")]
    return [
        f"{name.capitalize()}: {section.get('sentence') or section['refused']}"
        for name, section in named
        if section
    ]


def _line(row: dict[str, Any], columns: Iterable[str]) -> list[str]:
    numbers = ["-" if row[name] is None else f"{row[name]:+.4f}" for name in columns]
    control = "not tested" if row["control"] is None else f"{row['control']:+.4f}"
    estimate = [f"{-row['estimate']:+.4f}", row["checked"]] if "checked" in row else []
    return [row["head"], *numbers, control, *estimate, row["words"]]


def _edge(edge: dict[str, Any]) -> str:
    part = f" by its {INPUTS[edge['input']]}"
    return f"{edge['source']} acts on {edge['target']}{part}: {edge['effect']:+.4f} nats"
