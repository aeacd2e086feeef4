"""Train the same model with several encodings, and compare the results."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from jarilab.cli.arguments import Parser, Words, first_positional, nargs_of
from jarilab.cli.run_arguments import TRUST, add_open
from jarilab.cli.setting_flags import (
    ENCODING,
    add_eval_lengths,
    add_task,
    eval_lengths_from,
    parse_specs,
    settings_from,
)
from jarilab.core.errors import UserError

RESOURCES = "resources of each trial in SLURM, with --sbatch"


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.comparison.study import is_study
    from jarilab.core.options import options_of

    # Options that training has too are described there.
    of_train = options_of(api.train)
    options = {name: of_train.get(name, option) for name, option in options_of(api.compare).items()}
    without = ("encodings", "settings", "rates", "eval_lengths", "train", "trust_code", "resources")
    parser.add_argument("--json", action="store_true", help="print the table as one JSON object")
    add_open(parser, "the report")
    add_eval_lengths(parser, options["eval_lengths"])
    first = first_positional(words, lambda: {**nargs_of(parser), "--report": 0, TRUST: 0})
    if first is not None and is_study(first):
        _add_study(parser, {name: options[name] for name in ("seeds", "jobs", "sbatch")})
        return
    parser.add_argument(
        "--encodings",
        metavar="SPEC,SPEC,...",
        required=True,
        help="encodings to compare, such as none,sinusoidal,rotary",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        required=True,
        help="folder for the runs, table.json and report.html",
    )
    parser.add_argument(
        "--tune",
        metavar="RATE,RATE,...",
        help="learning rates to try; each encoding is compared at its best one",
    )
    parser.add_options("verb", options, without=without)
    add_resources(parser)
    parser.epilog = "`jarilab compare FOLDER` continues a study, adds encodings or seeds, or reports it (--report)."
    add_task(parser, words, without=(ENCODING,))
    parser.show_first(
        "--encodings",
        "--out",
        "--seeds",
        "--tune",
        "--eval-lengths",
        "--model",
        "--set",
        "--json",
        "--open",
    )
    parser.show_last(RESOURCES)


def add_resources(parser: Parser) -> None:
    """Add the resources that trials request from SLURM."""
    from jarilab.comparison.launchers.resources import Resources
    from jarilab.core.options import options_of

    parser.add_options("resources", options_of(Resources), title=RESOURCES)


def _add_study(parser: Parser, options: dict[str, Any]) -> None:
    """Add the arguments of an existing study, whose settings are fixed."""
    parser.add_argument("task", metavar="FOLDER", help="folder of a study")
    parser.add_argument("--encodings", metavar="+SPEC,...", help="encodings to add, such as +t5")
    seeds = replace(options["seeds"], default=None, meaning="seeds of each encoding in all")
    parser.add_options("verb", {**options, "seeds": seeds})
    parser.add_argument(
        "--report",
        action="store_true",
        help="do not train; show the finished trials and open the report",
    )
    parser.add_argument(
        TRUST, action="store_true", help="execute the Python files that the study names"
    )
    add_resources(parser)
    parser.unknown_hint = "the settings of a study are fixed; use another --out for a new study"


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.result_output import table_text
    from jarilab.cli.terminal import open_or_point_to, show
    from jarilab.comparison.launchers.resources import Resources

    keywords = {**options.verb, "resources": Resources(**options.resources)}
    keywords |= eval_lengths_from(options)
    if options.encodings is not None:
        keywords["encodings"] = parse_specs("--encodings", options.encodings)
    if hasattr(options, "report"):
        out = options.task
        options.open |= options.report
        table = api.compare(
            out, train=not options.report, trust_code=options.trust_code, **keywords
        )
    else:
        out = options.out
        if options.tune is not None:
            keywords["rates"] = _rates(options.tune)
        table = api.compare(options.task, out, settings=settings_from(options), **keywords)
    if "script" in table:
        show(options, table, _script_text(table, out))
        return
    show(options, table, table_text(table, Path(out)))
    open_or_point_to(options, Path(out) / "report.html")


def _script_text(table: dict[str, Any], out: str) -> str:
    """How to use the script for sbatch."""
    count = len(table["commands"])
    counted = "1 trial" if count == 1 else f"{count} trials"
    return (
        f"{table['script']}: {counted}, not trained yet\n"
        f"  sbatch {shlex.quote(table['script'])}\n"
        f"  jarilab compare {shlex.quote(out)} --report     once they are finished"
    )


def _rates(text: str) -> list[float]:
    """The numbers in `0.002,0.004`. Raises UserError for other text."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise UserError(
            f"--tune: expected learning rates such as 0.002,0.004; got {text!r}"
        ) from None
