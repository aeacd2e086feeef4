"""Look inside trained models, live in a browser or as one file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from jarilab.cli import foreign, pages
from jarilab.cli.arguments import Parser, Words
from jarilab.cli.runs import add_open, add_runs, add_shared


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import explorer
    from jarilab.core.options import options_of

    add_runs(parser, "folders of runs, shown side by side", optional=True)
    foreign.arguments(parser)
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


def run(options: argparse.Namespace) -> None:
    from jarilab import api, explorer, serving
    from jarilab.cli.terminal import check_file
    from jarilab.core.errors import UserError
    from jarilab.explorer import page_folder
    from jarilab.training.progress import working

    chosen = options.verb
    api.use_threads(chosen.pop("threads", None))
    of_others = foreign.is_asked(options)
    if not options.runs and not of_others:
        raise UserError(
            "explore looks into runs of jari, or with --model into a folder of Hugging Face; name one: "
            "jarilab explore runs/add, or jarilab explore --model FOLDER --input TEXT"
        )
    if options.save == "":  # which would be the folder one stands in
        raise UserError(
            "--save names no file; write such as --save page.html, or page/ for a folder"
        )
    if is_folder(options.save) and not of_others:
        page_folder.check(Path(options.save), runtime_of(options))
    elif options.save:
        check_file(Path(options.save))  # told before the page is made
    if not options.save:
        serving.check_installed()
    if of_others:
        foreign.run(options)
        return
    opens = {"site": chosen.pop("site", None), "head": chosen.pop("head", None)}
    still, step = chosen.pop("still", False), chosen.pop("step", None)
    with working(f"opening {' and '.join(options.runs)}"):
        session = explorer.Explorer(options.runs, **chosen)
    line = options.input
    if line is None:
        line = api.open_run(options.runs[0], trust_code=chosen.get("trust_code", False)).example()
    if is_folder(options.save):
        if still:
            raise UserError(
                "a folder is for models that run; with --still, save one file: --save page.html"
            )
        _save_folder(options, session, line, {**opens, "step": step})
    elif options.save:
        with working(f"looking at {line}"):
            page = explorer.page(session, line, **opens, step=step, still=still)
        pages.save(options, page)
    else:
        pages.serve(options, session, line, {**opens, "steps": session.all_at(step)})


def is_folder(name: str | None) -> bool:
    """Whether a page is saved as a folder."""
    return name is not None and (name.endswith(("/", os.sep)) or Path(name).is_dir())


def runtime_of(options: argparse.Namespace) -> Path:
    """Where ONNX Runtime Web lies."""
    from jarilab.explorer import page_folder

    given = options.onnx_runtime
    return page_folder.USUAL_RUNTIME if given is None else Path(given)


def _save_folder(
    options: argparse.Namespace, session: Any, line: str, opens: dict[str, Any]
) -> None:
    from jarilab import explorer
    from jarilab.training.progress import working

    with working(f"looking at {line}"):
        out = explorer.save_folder(
            session, options.save, line, **opens, runtime=runtime_of(options)
        )
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    print(f"{out}: {size:.1f} MB, for any server of files, such as python -m http.server -d {out}")
