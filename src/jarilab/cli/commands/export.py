"""Write a run's model for another program."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_run, add_shared

PROGRAMS = ("onnx", "torch", "ctranslate2")


def arguments(parser: Parser, words: Words) -> None:
    add_run(parser)
    parser.add_argument(
        "--to",
        choices=PROGRAMS,
        default="ctranslate2",
        help="onnx: graphs that ONNX Runtime runs; torch: the same as programs of torch.export; ctranslate2: a "
        "translator for CPUs (ctranslate2)",
    )
    parser.add_argument("--out", metavar="FOLDER", required=True, help="the folder to write")
    add_shared(parser, "trust_code")


def run(options: argparse.Namespace) -> None:
    if options.to == "ctranslate2":
        from jarilab.export import ctranslate2

        ctranslate2.export(options.run, options.out, **options.verb)
        print(f"ctranslate2 model in {options.out}")
        return
    from jarilab.export import programs

    made = programs.export(options.run, options.out, to=options.to, **options.verb)
    files = ", ".join(part["file"] for part in made["parts"])
    print(
        f"{options.to} model in {options.out}: {files}, {programs.DESCRIPTION}; scores differ by "
        f"{made['largest_difference']:.1e} from the run's, of up to {made['largest_score']:.3g}"
    )
