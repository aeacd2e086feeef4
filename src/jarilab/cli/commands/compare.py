"""Train the same model under several encodings, and compare."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from jarilab.cli.arguments import Parser, Words, first_word, taken
from jarilab.cli.runs import TRUST, add_open
from jarilab.cli.settings import ENCODING, add_task, settings_from, specs_of
from jarilab.core.errors import UserError


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.comparison.study import is_study
    from jarilab.core.options import options_of

    # What a trial and a training have in common is said there.
    own, of_train = options_of(api.compare), options_of(api.train)
    options = {name: of_train.get(name, option) for name, option in own.items()}
    without = ("encodings", "settings", "rates", "train", "trust_code", "resources")
    parser.add_argument("--json", action="store_true", help="print the table as one JSON object")
    add_open(parser, "the report")
    first = first_word(words, {**taken(parser), "--report": 0, TRUST: 0})
    if first is not None and is_study(first):
        _arguments_of_a_study(
            parser, {name: options[name] for name in ("seeds", "jobs", "cluster")}
        )
        return
    parser.add_argument(
        "--encodings", metavar="SPEC,SPEC,...", required=True, help="such as none,sinusoidal,rotary"
    )
    parser.add_argument(
        "--out", metavar="FOLDER", required=True, help="where runs, table.json and report.html go"
    )
    parser.add_argument(
        "--tune",
        metavar="RATE,RATE,...",
        help="learning rates, of which each encoding gets its best",
    )
    parser.add_options("verb", options, without=without)
    add_resources(parser)
    parser.epilog = "`jarilab compare FOLDER` goes on with a study that was begun, and adds to it."
    add_task(parser, words, without=(ENCODING,))


def add_resources(parser: Parser) -> None:
    """What a trial asks of a cluster."""
    from jarilab.comparison.resources import Resources
    from jarilab.core.options import options_of

    title = "what each trial asks of a cluster"
    parser.add_options("resources", options_of(Resources), title=title)


def _arguments_of_a_study(parser: Parser, options: dict[str, Any]) -> None:
    """What may be asked of a study that is there: its settings are fixed."""
    parser.add_argument("task", metavar="FOLDER", help="the folder of a study")
    parser.add_argument("--encodings", metavar="+SPEC,...", help="what to add, such as +t5")
    parser.add_options("verb", options)
    add_resources(parser)
    parser.add_argument(
        "--report",
        action="store_true",
        help="train nothing; show what is finished, and open the report",
    )
    parser.add_argument(
        TRUST, action="store_true", help="execute the Python files that the study names"
    )
    parser.beside = "a study keeps its settings; another --out begins another one"


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.results import table_text
    from jarilab.cli.terminal import show, tell_page
    from jarilab.comparison.resources import Resources

    more = {**options.verb, "resources": Resources(**options.resources)}
    if options.encodings is not None:
        more["encodings"] = specs_of("--encodings", options.encodings)
    if hasattr(options, "report"):
        out = options.task
        options.open |= options.report
        table = api.compare(out, train=not options.report, trust_code=options.trust_code, **more)
    else:
        out = options.out
        if options.tune is not None:
            more["rates"] = _rates(options.tune)
        table = api.compare(options.task, out, settings=settings_from(options), **more)
    if "script" in table:
        show(options, table, _script_text(table, out))
        return
    show(options, table, table_text(table, Path(out)))
    tell_page(options, Path(out) / "report.html")


def _script_text(written: dict[str, Any], out: str) -> str:
    """What to do with a script for sbatch."""
    count = len(written["commands"])
    counted = "1 trial" if count == 1 else f"{count} trials"
    return (
        f"{written['script']}: {counted}, nothing is trained yet\n"
        f"  sbatch {shlex.quote(written['script'])}\n"
        f"  jarilab compare {shlex.quote(out)} --report     once they are finished"
    )


def _rates(text: str) -> list[float]:
    """`0.002,0.004` as numbers. Raises UserError."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise UserError(
            f"--tune: expected learning rates such as 0.002,0.004; got {text!r}"
        ) from None
