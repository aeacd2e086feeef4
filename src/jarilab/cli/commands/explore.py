"""`jarilab explore`: a page, live or saved, of what models attend to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli import pages
from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_open, add_runs, add_shared
from jarilab.core.errors import UserError

if TYPE_CHECKING:
    from jarilab.explorer.huggingface_subject import HuggingFaceSubject
    from jarilab.inspect.measure.link import TokenLinkHead

MAX_HEADS = 8
"""Heads of a link that are listed."""


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import explorer
    from jarilab.core.options import options_of

    add_runs(parser, "folders of runs, shown side by side", optional=True)
    _add_models(parser)
    parser.add_argument(
        "--input", help="what the models read, such as 21+211 (an example of the first run's task)"
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="write the page as one file that needs no network, and end; a name that ends in / is a folder for a "
        "server of files, with models of any size as ONNX (of runs)",
    )
    parser.add_argument(
        "--onnx-runtime",
        metavar="FOLDER",
        help="of a page in a folder: where onnxruntime-web lies (node_modules/onnxruntime-web/dist)",
    )
    parser.add_argument(
        "--measure",
        action="append",
        default=[],
        metavar="SPEC",
        help="a measure of your own to show too, such as mine.py:Mine; may be repeated",
    )
    add_open(parser, "the page")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (127.0.0.1, this machine alone)",
    )
    parser.add_argument("--port", type=int, default=8000, help="0 for any that is free (8000)")
    without = ("input", "trust_code", "model", "against", "link")
    parser.add_options("verb", options_of(explorer.explore), without=without)
    add_shared(parser, "threads", "trust_code")


def _add_models(parser: Parser) -> None:
    """Options of Hugging Face models."""
    group = parser.add_argument_group(
        "models of Hugging Face transformers, in place of runs or beside them"
    )
    group.add_argument(
        "--model",
        metavar="FOLDER",
        help="a folder that save_pretrained wrote: safetensors alone, no code of its own, no network; --input is a "
        "text, or the name of an image or of a .wav file",
    )
    group.add_argument(
        "--against",
        metavar="FOLDER",
        help="another such model beside it, where both make the same tokens",
    )
    group.add_argument(
        "--link",
        nargs=2,
        metavar=("QUERY", "KEY"),
        help="two tokens, such as it animal: list the heads that connect them, and open the page at the first",
    )


def run(options: argparse.Namespace) -> None:
    from jarilab import api, explorer
    from jarilab.training.progress import working

    _add_measures(options.measure)
    settings = options.verb
    api.use_threads(settings.pop("threads", None))
    models = [folder for folder in (options.model, options.against) if folder is not None]
    _check(options)
    initial = {name: settings.pop(name, None) for name in ("site", "head", "step")}
    still = settings.pop("still", False)
    with working(f"opening {' and '.join([*models, *options.runs])}"):
        session = explorer.open_explorer(options.runs, models, link=options.link, **settings)
    line = session.subjects[0].example() if options.input is None else options.input
    if models:
        with working(f"reading {line}"):
            session.record(line)
        subjects: Any = session.subjects[: len(models)]
        _print_models(line, subjects, options.link)
    if _is_folder(options.save):
        with working(f"looking at {line}"):
            runtime = _runtime_of(options)
            folder = explorer.save_folder(session, options.save, line, **initial, runtime=runtime)
        pages.report_folder(folder)
    elif options.save:
        with working(f"looking at {line}"):
            page = explorer.page(session, line, **initial, still=still or bool(models))
        pages.save(options, page)
    else:
        step = initial.pop("step")
        pages.serve(options, session, line, {**initial, "steps": session.all_at(step)})


def _check(options: argparse.Namespace) -> None:
    """Raises UserError for options that contradict each other, before anything is loaded."""
    from jarilab import serving
    from jarilab.cli.terminal import check_file
    from jarilab.explorer import page_folder

    if not options.runs and options.model is None:
        raise UserError(
            "explore looks into runs of jari, or with --model into a folder of Hugging Face; name one: "
            "jarilab explore runs/add, or jarilab explore --model FOLDER --input TEXT"
        )
    if options.save == "":  # which would be the current folder
        raise UserError(
            "--save names no file; write such as --save page.html, or page/ for a folder"
        )
    if options.model is None:
        for name in ("against", "link"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name} goes with --model FOLDER; add it")
    else:
        _check_model(options)
    if _is_folder(options.save):
        if options.verb.get("still"):
            raise UserError(
                "a folder is for models that run; with --still, save one file: --save page.html"
            )
        page_folder.check(Path(options.save), _runtime_of(options))
    elif options.save:
        check_file(Path(options.save))
    else:
        serving.check_installed()


def _add_measures(specs: Sequence[str]) -> None:
    """Add the measures that a user typed; their files are trusted."""
    from jarilab.core.registry import spec_file, trust_code
    from jarilab.inspect.measure.measures import add_measure

    for spec in specs:
        file = spec_file(spec)
        if file is not None:
            trust_code(file)
        add_measure(spec)


def _check_model(options: argparse.Namespace) -> None:
    """Raises UserError for options that do not go with --model."""
    if options.input is None:
        raise UserError(
            "--model reads what --input says; add it, such as --input \"The animal didn't cross the street because it "
            'was too tired"'
        )
    for name in ("step", "align"):
        if name in options.verb:
            raise UserError(f"--{name} is for runs of jari alone; omit it beside --model")
    if _is_folder(options.save):
        raise UserError(
            f"a page of --model is one file; expected such as page.html, got --save {options.save}"
        )


def _is_folder(name: str | None) -> bool:
    """Whether `--save` names a folder."""
    return name is not None and (name.endswith(("/", os.sep)) or Path(name).is_dir())


def _runtime_of(options: argparse.Namespace) -> Path:
    """The folder of ONNX Runtime Web."""
    from jarilab.explorer import page_folder

    folder = options.onnx_runtime
    return page_folder.DEFAULT_RUNTIME if folder is None else Path(folder)


def _print_models(
    line: str, subjects: Sequence[HuggingFaceSubject], link: tuple[str, str] | None
) -> None:
    """Print the heads of a link, and what is known of each model's maps."""
    if link is not None:
        _print_link(subjects[0].links(line, *link))
    for subject in subjects:
        print(subject.report(line))


def _print_link(heads: Sequence[TokenLinkHead]) -> None:
    print(
        "usual: what a head gives as far elsewhere, or to this key from elsewhere, whichever is more"
    )
    print("  weight    usual  head")
    for link in heads[:MAX_HEADS]:
        print(f"{link.weight:8.3f} {link.usual:8.3f}  {link.site} head {link.head}")
