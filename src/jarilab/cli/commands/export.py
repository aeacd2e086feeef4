"""Export the model of a run for another program."""

from __future__ import annotations

import argparse

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
    from jarilab.export import ctranslate2, huggingface, programs

    to, where = options.to, options.out
    if to in programs.TARGETS:
        description = programs.export(options.run, where, to=to, **options.verb)
        files = ", ".join(part["file"] for part in description["parts"])
        where = f"{where}: {files}, {programs.DESCRIPTION}"
    else:
        export = {"huggingface": huggingface, "ctranslate2": ctranslate2}[to].export
        description = export(options.run, where, **options.verb)
    difference, largest = description["largest_difference"], description["largest_score"]
    print(
        f"{description.get('kind', f'{to} model')} in {where}; scores differ by {difference:.1e} from the run's, of up "
        f"to {largest:.3g}; {description['reads']}"
    )
