"""Export the model of a run for another program."""

from __future__ import annotations

import argparse
from typing import Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_run, add_shared

PROGRAMS = ("onnx", "torch", "huggingface", "ctranslate2")


def arguments(parser: Parser, words: Words) -> None:
    add_run(parser)
    parser.add_argument(
        "--to",
        choices=PROGRAMS,
        default="ctranslate2",
        help="onnx: graphs for ONNX Runtime; torch: programs of torch.export; huggingface: a folder for transformers; "
        "ctranslate2: a translator for CPUs (default: ctranslate2)",
    )
    parser.add_argument("--out", metavar="FOLDER", required=True, help="folder to write")
    add_shared(parser, "trust_code")


def run(options: argparse.Namespace) -> None:
    print(_WRITE.get(options.to, _program)(options))


def _program(options: argparse.Namespace) -> str:
    from jarilab.export import programs

    description = programs.export(options.run, options.out, to=options.to, **options.verb)
    files = ", ".join(part["file"] for part in description["parts"])
    difference, reads = _difference(description), description["reads"]
    return f"{options.to} model in {options.out}: {files}, {programs.DESCRIPTION}; {difference}; {reads}"


def _huggingface(options: argparse.Namespace) -> str:
    from jarilab.export import huggingface

    description = huggingface.export(options.run, options.out, **options.verb)
    return f"{description['kind']} in {options.out}; {_difference(description)}; {description['reads']}"


def _ctranslate2(options: argparse.Namespace) -> str:
    from jarilab.export import ctranslate2

    description = ctranslate2.export(options.run, options.out, **options.verb)
    return f"ctranslate2 model in {options.out}; {_difference(description)}; {description['reads']}"


def _difference(description: dict[str, Any]) -> str:
    difference, largest = description["largest_difference"], description["largest_score"]
    return f"scores differ by {difference:.1e} from the run's, of up to {largest:.3g}"


_WRITE = {"huggingface": _huggingface, "ctranslate2": _ctranslate2}
