"""Explore what models attend to, on a live page or a saved one."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import (
    add_listening,
    add_measures,
    add_memory_limit,
    add_open,
    add_runs,
    add_shared,
    limit_memory,
)
from jarilab.cli.terminal import open_in_browser
from jarilab.core.errors import UserError

if TYPE_CHECKING:
    from jarilab.cli.waiting_page import WaitingPage
    from jarilab.explorer import Explorer, Page
    from jarilab.inspect.measure.link import TokenLinkHead

MAX_HEADS = 8
"""Heads that `--link` lists."""


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import explorer
    from jarilab.core.options import options_of

    add_runs(parser, "folders of runs, shown side by side", optional=True)
    _add_models(parser)
    parser.add_argument(
        "--input",
        "--text",
        help="input of the models, such as 21+211 (default: an example of the first run's task)",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="write the page to this file, which needs no network, and exit. A name in .svg, .pdf or .png saves a "
        "figure of one head. A name that ends in / saves a folder for a web server, with ONNX models of any size",
    )
    parser.add_argument(
        "--onnx-runtime",
        metavar="FOLDER",
        help="folder of onnxruntime-web, for a page in a folder (default: node_modules/onnxruntime-web/dist)",
    )
    parser.add_argument(
        "--measure",
        action="append",
        default=[],
        metavar="SPEC",
        help="a measure of your own to show too, such as mine.py:Mine; may be repeated",
    )
    add_open(parser, "the page")
    add_listening(parser)
    without = ("input", "image", "trust_code", "model", "against", "link")
    parser.add_options("verb", options_of(explorer.explore), without=without)
    add_shared(parser, "threads", "trust_code")


def _add_models(parser: Parser) -> None:
    """Add the options of Hugging Face models."""
    group = parser.add_argument_group("models of Hugging Face transformers")
    group.add_argument(
        "--model",
        metavar="FOLDER",
        help="folder of a Hugging Face model, as save_pretrained writes it. Nothing is downloaded, and none of its "
        "code runs. --input is a text, an image file or a .wav file",
    )
    group.add_argument(
        "--image",
        metavar="FILE",
        help="image that a model such as LLaVA reads beside the text of --input",
    )
    group.add_argument(
        "--against",
        metavar="FOLDER",
        help="second model to compare, with the same tokens",
    )
    group.add_argument(
        "--link",
        nargs=2,
        metavar=("QUERY", "KEY"),
        help="two tokens, such as it animal: list the heads that connect them and open the page at the first",
    )
    add_memory_limit(group)


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.waiting_page import WaitingPage

    add_measures(options.measure)
    limit_memory(options)
    settings = options.verb
    api.use_threads(settings.pop("threads", None))
    models = [folder for folder in (options.model, options.against) if folder is not None]
    _check(options)
    listening = None if options.save else _listen(options)
    with WaitingPage(listening) as waiting:
        _explore(options, models, waiting, listening)


def _listen(options: argparse.Namespace) -> socket.socket:
    """Open the port before models are read."""
    from jarilab.serving import run_server

    listening = run_server.listen(options.host, options.port)
    if options.open:
        open_in_browser(run_server.address_of(listening))  # the socket listens already
    return listening


def _explore(
    options: argparse.Namespace,
    models: Sequence[str],
    waiting: WaitingPage,
    listening: socket.socket | None,
) -> None:
    """Open runs and models, then save the page or serve it."""
    from jarilab import explorer

    settings = options.verb
    initial = {name: settings.pop(name, None) for name in ("site", "head", "step")}
    still = settings.pop("still", False)
    with waiting.working(f"opening {' and '.join([*models, *options.runs])}"):
        session = explorer.open_explorer(options.runs, models, link=options.link, **settings)
    line = session.subjects[0].example() if options.input is None else options.input
    line = session.input_of(line, options.image)
    if models:
        with waiting.working(f"reading {line}"):
            session.record(line)
        subjects: Any = session.subjects[: len(models)]
        if options.link is not None:
            _print_link(subjects[0].links(line, *options.link))
        for subject in subjects:
            print(subject.report(line))
    if _is_folder(options.save):
        with waiting.working(f"looking at {line}"):
            runtime = _runtime_of(options)
            folder = explorer.save_folder(session, options.save, line, **initial, runtime=runtime)
        _print_folder(folder)
    elif options.save:
        is_figure = Path(options.save).suffix.lower() not in explorer.PAGES
        still = still or is_figure
        with waiting.working(f"looking at {line}"):
            page = explorer.page(session, line, **initial, still=still)
        _save(options, page)
    else:
        step = initial.pop("step")
        first = {**initial, "steps": session.all_at(step)}
        assert listening is not None
        _serve(session, line, first, waiting, listening)


def _check(options: argparse.Namespace) -> None:
    """Raises UserError for options that contradict each other, before anything is loaded."""
    from jarilab import explorer, serving
    from jarilab.cli.terminal import check_file
    from jarilab.explorer import page_folder

    if not options.runs and options.model is None:
        raise UserError(
            "explore expects runs of jari or a Hugging Face model, such as "
            "jarilab explore runs/add or jarilab explore --model FOLDER --input TEXT"
        )
    if options.save == "":  # which would be the current folder
        raise UserError(
            "--save expects a file or a folder, got nothing; write such as --save page.html or --save page/"
        )
    if options.model is None:
        for name in ("against", "image", "link"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name} needs --model FOLDER; add it")
    else:
        _check_model(options)
    if _is_folder(options.save):
        if options.verb.get("still"):
            raise UserError(
                "--still expects one file, got a folder; write such as --save page.html"
            )
        page_folder.check(Path(options.save), _runtime_of(options))
    elif options.save:
        check_file(Path(options.save))
        explorer.check_ending(Path(options.save))
    else:
        serving.check_installed()


def _check_model(options: argparse.Namespace) -> None:
    """Raises UserError for options that do not go with --model."""
    if options.input is None:
        raise UserError(
            "--model needs --input; add it, such as --input \"The animal didn't cross the street because it "
            'was too tired"'
        )
    for name in ("step", "align"):
        if name in options.verb:
            raise UserError(f"--{name} works with runs only, not with --model; omit it")


def _is_folder(name: str | None) -> bool:
    """Whether `--save` names a folder."""
    return name is not None and (name.endswith(("/", os.sep)) or Path(name).is_dir())


def _runtime_of(options: argparse.Namespace) -> Path:
    """The folder of onnxruntime-web."""
    from jarilab.explorer import page_folder

    folder = options.onnx_runtime
    return page_folder.DEFAULT_RUNTIME if folder is None else Path(folder)


def _save(options: argparse.Namespace, page: Page) -> None:
    """Write the page or the figure to the file of `--save`."""
    from jarilab import explorer
    from jarilab.cli.terminal import say

    page.save(options.save)
    if Path(options.save).suffix.lower() not in explorer.PAGES:
        print(f"{options.save}: a figure of {page.payload['site']}, head {page.payload['head']}")
        return
    size = len(page.html.encode()) / 1e6
    print(f"{options.save}: {size:.1f} MB, opens in any browser without a network")
    if any((view["effects"] or {}).get("done") is False for view in page.payload["views"]):
        say(
            "the effects of some heads are not fully compared with chance, since the time for it was over; to save "
            "them all, open the page live, without --save, wait, and press Save this page as it is"
        )
    if options.open:
        open_in_browser(Path(options.save).resolve().as_uri())


def _print_folder(folder: Path) -> None:
    """Print the size of a page that was saved as a folder, and how to serve it."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    print(
        f"{folder}: {size:.1f} MB, for any static file server, such as python -m http.server -d {folder}"
    )


def _serve(
    explorer: Explorer,
    line: str,
    initial: dict[str, Any],
    waiting: WaitingPage,
    listening: socket.socket,
) -> None:
    """Serve the live page until interrupted. initial: the `site`, `head` and `steps` of its first view."""
    from jarilab.explorer import server
    from jarilab.serving import run_server

    with waiting.working(f"looking at {line}"):
        # Errors appear here rather than in the browser.
        explorer.look(line, live=True, **initial)
    address = run_server.address_of(listening)

    def on_ready() -> None:
        waiting.end()
        print(f"{address}    open this address in a browser; Ctrl-C ends it", flush=True)

    server.serve(explorer, line, listening, on_ready, **initial)


def _print_link(heads: Sequence[TokenLinkHead]) -> None:
    print(
        "usual: weight of the head at this distance elsewhere, or from other queries to this key; the larger one"
    )
    print("  weight    usual  head")
    for link in heads[:MAX_HEADS]:
        print(f"{link.weight:8.3f} {link.usual:8.3f}  {link.site} head {link.head}")
