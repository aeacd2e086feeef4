"""Check the data of a task before training, or write its examples to a file."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from jarilab.cli.arguments import SWITCH, Parser, Words
from jarilab.cli.setting_flags import ENCODING, add_task, settings_from
from jarilab.core.errors import UserError, counted, printable


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the examples that the task generates to this file, such as those of arithmetic",
    )
    parser.add_argument(
        "--check",
        metavar="FILE",
        nargs="+",
        help="check files or folders as --train reads them: counts, lengths, repeats, overlap with --valid, unknown "
        "tokens, other scripts, alignment. Exit code 1: a finding is serious. Exit code 2: a file is unreadable",
    )
    parser.add_argument("--json", help="print the findings of --check as JSON", **SWITCH)
    add_task(parser, words, without=(ENCODING,))


def run(options: argparse.Namespace) -> int:
    from jarilab import api

    settings = settings_from(options)
    if (options.out is None) == (options.check is None):
        raise UserError(
            "expected --check FILE to check data, or --out FILE to write examples; pass one of the two"
        )
    if options.out is not None:
        count = api.write_examples(options.task, options.out, settings)
        print(f"{counted(count, 'lines')} in {options.out}")
        return 0
    findings = api.check_data(options.task, options.check, settings)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=2))
    for finding in () if options.json else findings:
        print(f"{finding.severity:<8} {finding.topic:<10} {printable(finding.line)}")
    return int(any(finding.severity == "serious" for finding in findings))
