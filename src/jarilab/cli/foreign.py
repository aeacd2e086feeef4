"""`jarilab explore --model FOLDER`: a page of a model that is not jari's."""

from __future__ import annotations

import argparse
import os
import webbrowser
from pathlib import Path

from jarilab.cli.arguments import Parser
from jarilab.errors import UserError

SHOWN = 8
"""Heads of a link that are listed."""


def arguments(parser: Parser) -> None:
    """Folders in place of runs or beside them, and what is asked of them."""
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


def is_asked(options: argparse.Namespace) -> bool:
    """Whether a folder is to be looked at. Raises UserError for its options without one, and beside runs."""
    if options.model is None:
        for name in ("against", "link"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name} goes with --model FOLDER; add it")
        return False
    if options.input is None:
        raise UserError(
            "--model reads what --input says; add it, such as --input \"The animal didn't cross the street because it "
            'was too tired"'
        )
    of_runs = [name for name in options.verb if name not in ("still", "trust_code")]
    if of_runs:
        raise UserError(
            f"--{of_runs[0].replace('_', '-')} is for runs of jari alone; omit it beside --model, whose page "
            "opens at the first map, or at the head that --link finds"
        )
    if options.save is not None and options.save.endswith(("/", os.sep)):
        raise UserError(
            f"a page of --model is one file; expected such as page.html, got --save {options.save}"
        )
    return True


def run(options: argparse.Namespace) -> None:
    """Read the line with each model and write their page."""
    from jarilab import huggingface
    from jarilab.cli.terminal import check_file
    from jarilab.explorer import Explorer, Page, foreign, page_file, render
    from jarilab.training.progress import working

    folders = [options.model] if options.against is None else [options.model, options.against]
    out = Path(options.save or f"{Path(options.model).resolve().name}.html")
    check_file(out)
    looked = []
    for folder in folders:
        with working(f"reading {folder}"):
            looked.append(foreign.look(huggingface.load(folder), options.input))
    link = None
    if options.link is not None:
        heads = looked[0].link(*options.link)
        link = heads[0]
        print(
            "usual: what a head gives as far elsewhere, or to this key from elsewhere, whichever is more"
        )
        print("  weight    usual  head")
        for one in heads[:SHOWN]:
            print(f"{one.weight:8.3f} {one.usual:8.3f}  {one.site} head {one.head}")
    beside = []
    if options.runs:
        with working(f"opening {' and '.join(options.runs)}"):
            session = Explorer(options.runs, trust_code=options.verb.get("trust_code", False))
            beside = page_file.whole(session, options.input, None, None, still=True)["views"]
    page = Page(render(foreign.page_of(looked, options.input, link, beside)))
    page.save(out)
    for one in looked:
        trusts = [one.tape.trust(site).rebuild_error for site in one.tape.sites]
        seen = [site for site in one.tape.sites if not one.tape.proven(site)]
        told = f", {len(seen)} of them by the model's own softmax" if seen else ""
        if one.tape.unheard:
            told += f" ({len(one.tape.unheard)} more cannot be heard: {one.tape.unheard[0]})"
        answer = "" if one.reading.answer is None else f"; it answers {one.reading.answer!r}"
        print(
            f"{one.loaded.name}: {one.loaded.kind}, {len(trusts)} attentions{told}; weights times values give their "
            f"outputs back within {max(trusts):.0e}{answer}"
        )
    size = len(page.html.encode()) / 1e6
    print(f"{out}: {size:.1f} MB, opens in any browser without a network")
    if options.open:
        webbrowser.open(out.resolve().as_uri())
