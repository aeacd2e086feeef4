"""Check that an encoding, or a whole model, follows its laws (conformance tests)."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import TRUST, add_memory_limit, limit_memory

if TYPE_CHECKING:
    from jarilab.laws import Outcome

VERDICTS = ("holds", "broken", "skipped")
NO_FORMULA = "WARNING: not compared with a formula, so a wrong result of the encoding may pass: {}"


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument(
        "encoding",
        metavar="SPEC",
        nargs="?",
        help="encoding, such as rotary or my_encoding.py:Mine",
    )
    parser.add_argument(
        "--model",
        metavar="FOLDER",
        help="check a run or a model of Hugging Face transformers instead: do batches, padding, caching, packing, "
        "shifted positions or bfloat16 change its output?",
    )
    # `add_shared` would import torch for a line of help.
    parser.add_argument(
        TRUST, action="store_true", help="execute the Python files that the run names"
    )
    add_memory_limit(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from jarilab.cli.terminal import show
    from jarilab.core.errors import UserError
    from jarilab.laws import FORMULA, check_encoding

    if (options.encoding is None) == (options.model is None):
        raise UserError(
            "laws expects either an encoding or a model, such as jarilab laws rotary or jarilab laws --model FOLDER"
        )
    outcomes = check_encoding(options.encoding) if options.model is None else _of_folder(options)
    counter = Counter(outcome.verdict for outcome in outcomes)
    counts = {verdict: counter[verdict] for verdict in VERDICTS}
    lines = [line for outcome in outcomes for line in _lines(outcome)]
    lines.append(f"{counts['holds']} hold, {counts['broken']} broken, {counts['skipped']} skipped")
    unchecked = [
        outcome.detail
        for outcome in outcomes
        if (outcome.law, outcome.verdict) == (FORMULA, "skipped")
    ]
    lines += [NO_FORMULA.format(reason) for reason in unchecked]
    subject = {"encoding": options.encoding} if options.model is None else {"model": options.model}
    record = {**subject, **counts, "laws": [asdict(outcome) for outcome in outcomes]}
    show(options, record, "\n".join(lines))
    return 2 if counts["broken"] else 0


def _of_folder(options: argparse.Namespace) -> list[Outcome]:
    from pathlib import Path

    from jarilab import huggingface
    from jarilab.core.errors import UserError, as_user_error
    from jarilab.laws.whole_laws import check_model
    from jarilab.runs.loaded import load
    from jarilab.training.progress import working

    folder: str = options.model
    limit_memory(options)
    with working(f"checking {folder}"):
        if (Path(folder) / "run.json").is_file():
            run = load(folder, trust_code=options.trust_code)
            if not run.predictor.scores:
                raise UserError(
                    f"{folder}: expected a model that returns scores of tokens or classes, got one of "
                    f"{run.experiment.task}; check its encoding alone: jarilab laws {run.experiment.encoding}"
                )
            predictor = run.predictor
            image = predictor.task.shape if predictor.reads_images else None
            return check_model(run.model, image=image)
        model = huggingface.load(folder).model
        with as_user_error(f"{folder} cannot be checked"):
            return check_model(model)


def _lines(outcome: Outcome) -> list[str]:
    line = f"{outcome.verdict:8} {outcome.law}" + (f": {outcome.detail}" if outcome.detail else "")
    return [line, f"{'':8} to do: {outcome.cure}"] if outcome.cure else [line]
