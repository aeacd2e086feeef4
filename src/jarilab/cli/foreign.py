"""`jarilab explore --model FOLDER`: a page of models that are not jari's."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jarilab.cli.arguments import Parser
from jarilab.core.errors import UserError

if TYPE_CHECKING:
    from jarilab.explorer.foreign import Looked
    from jarilab.inspect.measure.link import HeadOfLink

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
    of_both = ("site", "head", "still", "trust_code")
    of_runs = [name for name in options.verb if name not in of_both]
    if of_runs:
        raise UserError(
            f"--{of_runs[0].replace('_', '-')} is for runs of jari alone; omit it beside --model"
        )
    if options.save is not None and options.save.endswith(("/", os.sep)):
        raise UserError(
            f"a page of --model is one file; expected such as page.html, got --save {options.save}"
        )
    return True


def run(options: argparse.Namespace) -> None:
    """Read the line with each model, tell what was found, and show their page: live, or as a file."""
    from jarilab.cli.pages import save, serve
    from jarilab.explorer import ForeignExplorer, Page, render
    from jarilab.training.progress import working

    given = options.verb
    folders = [options.model] if options.against is None else [options.model, options.against]
    with working(f"opening {' and '.join([*folders, *options.runs])}"):
        session = ForeignExplorer(
            folders,
            options.runs,
            link=options.link,
            trust_code=given.get("trust_code", False),
        )
    with working(f"reading {options.input}"):
        looked = session.looked(options.input)
    heads = [] if options.link is None else looked[0].link(*options.link)
    opens = {name: given.get(name) for name in ("site", "head")}
    _tell(looked, heads)
    if options.save is not None:
        save(options, Page(render(session.look(options.input, live=False, **opens))))
    else:
        serve(options, session, options.input, opens)


def _tell(looked: Sequence[Looked], heads: Sequence[HeadOfLink]) -> None:
    """The heads of a link, and what is known of each model's maps."""
    from jarilab.explorer.windows import attentions_in

    if heads:
        print(
            "usual: what a head gives as far elsewhere, or to this key from elsewhere, whichever is more"
        )
        print("  weight    usual  head")
    for one in heads[:SHOWN]:
        print(f"{one.weight:8.3f} {one.usual:8.3f}  {one.site} head {one.head}")
    for one in looked:
        trusts = [one.tape.trust(site).rebuild_error for site in one.tape.sites]
        attentions = attentions_in(one.tape.sites)
        seen = attentions_in(site for site in one.tape.sites if not one.tape.verified(site))
        told = f", {len(seen)} of them by the model's own softmax" if seen else ""
        if one.tape.missing:
            told += f" ({len(one.tape.missing)} more cannot be recorded: {one.tape.missing[0]})"
        answer = "" if one.reading.answer is None else f"; it answers {one.reading.answer!r}"
        print(
            f"{one.loaded.name}: {one.loaded.kind}, {len(attentions)} attentions{told}; weights times values give "
            f"their outputs back within {max(trusts):.0e}{answer}"
        )
