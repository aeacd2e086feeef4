"""Write a run's model for another program."""

from __future__ import annotations

import argparse
from typing import Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_run, add_shared

PROGRAMS = ("onnx", "torch", "huggingface", "ctranslate2")


def arguments(parser: Parser, words: Words) -> None:
    add_run(parser)
    parser.add_argument(
        "--to",
        choices=PROGRAMS,
        default="ctranslate2",
        help="onnx: graphs that ONNX Runtime runs; torch: the same as programs of torch.export; huggingface: a folder "
        "that transformers opens; ctranslate2: a translator for CPUs (ctranslate2)",
    )
    parser.add_argument("--out", metavar="FOLDER", required=True, help="the folder to write")
    add_shared(parser, "trust_code")


def run(options: argparse.Namespace) -> None:
    print(_WRITE.get(options.to, _program)(options))


def _program(options: argparse.Namespace) -> str:
    from jarilab.export import programs

    made = programs.export(options.run, options.out, to=options.to, **options.verb)
    files = ", ".join(part["file"] for part in made["parts"])
    return f"{options.to} model in {options.out}: {files}, {programs.DESCRIPTION}; {_close(made)}"


def _huggingface(options: argparse.Namespace) -> str:
    from jarilab.export import huggingface

    made = huggingface.export(options.run, options.out, **options.verb)
    return f"{made['kind']} in {options.out}; {_close(made)}; {made['reads']}"


def _ctranslate2(options: argparse.Namespace) -> str:
    from jarilab.export import ctranslate2

    ctranslate2.export(options.run, options.out, **options.verb)
    return f"ctranslate2 model in {options.out}"


def _close(made: dict[str, Any]) -> str:
    difference, largest = made["largest_difference"], made["largest_score"]
    return f"scores differ by {difference:.1e} from the run's, of up to {largest:.3g}"


_WRITE = {"huggingface": _huggingface, "ctranslate2": _ctranslate2}
