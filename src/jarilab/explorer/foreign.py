"""The page of models that are not jari's: folders of Hugging Face, each by its own tokenizer, side by side."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jarilab.errors import UserError
from jarilab.explorer import payload
from jarilab.explorer.opening import opening_of
from jarilab.explorer.page_file import view_of_tape
from jarilab.explorer.windows import Windows
from jarilab.huggingface import Loaded, Reading, read
from jarilab.inspect.capture import Tape, record
from jarilab.inspect.link import HeadOfLink, heads_of_link


@dataclass(frozen=True, eq=False)
class Looked:
    """A model that read a line: what it was given, and its attention."""

    loaded: Loaded
    reading: Reading
    tape: Tape
    windows: Windows

    def link(self, query: str, key: str) -> list[HeadOfLink]:
        """The heads that connect two tokens, first those that do most; within the target where there is one, within
        the source, and from target to source. Raises UserError where no head may."""
        names = {tuple(of_side): of_side for of_side in self.reading.names.values()}
        sides = [(a, b) for a in names.values() for b in names.values()]
        problems: list[UserError] = []
        found: list[HeadOfLink] = []
        for queries, keys in sides:
            try:
                found += heads_of_link(self.tape, queries, keys, query, key)
            except UserError as error:
                problems.append(error)
        if not found:
            raise problems[0]
        once = {(one.site, one.head): one for one in found}
        return sorted(once.values(), key=lambda one: -one.above)


@torch.no_grad()
def look(loaded: Loaded, line: str) -> Looked:
    """Read a line and record it. Raises UserError for what the model cannot read."""
    reading = read(loaded, line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what was not heard is told beside what was
        with record(loaded.model) as tape:
            loaded.model(**reading.inputs)
    windows = Windows.of(_apart(tape), reading.grid)
    return Looked(loaded, reading, windows.tape, windows)


def _apart(tape: Tape) -> Tape:
    """With a site for each call of a layer that runs several times."""
    calls = {}
    for site, of_site in tape.calls.items():
        several = len(of_site) > 1
        for number, recorded in enumerate(of_site):
            calls[f"{site}/{number}" if several else site] = [recorded]
    return Tape(calls, unheard=tape.unheard)


def page_of(
    looked: Sequence[Looked],
    line: str,
    link: HeadOfLink | None = None,
    beside: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The page of one model or of two beside each other. link: what it opens at. beside: views of runs of jari, which
    cut a line by vocabularies of their own. Raises UserError where the models make other tokens of the line."""
    first = looked[0].reading.names
    for other in looked[1:]:
        if other.reading.names.get("source") != first.get("source"):
            raise UserError(
                f"{looked[0].loaded.name} and {other.loaded.name} make other tokens of the line, so their maps cannot "
                "stand side by side; look at each alone"
            )
    views = [*(_view(one, line) for one in looked), *beside]
    site, head = (None, None) if link is None else (link.site, link.head)
    opening = opening_of(views, site, head)
    if link is not None:
        opening |= {"query": link.row, "key": link.column}
    return payload.page_of(views, live=False, opening=opening)


def _view(looked: Looked, line: str) -> dict[str, Any]:
    loaded, reading = looked.loaded, looked.reading
    lengths = _lengths(looked.tape)
    # Where a model puts tokens of its own among them, numbers say less, but nothing wrong.
    names = {
        side: of_side
        for side, of_side in reading.names.items()
        if len(of_side) in lengths.get(side, ())
    }
    view = view_of_tape(looked.tape, names | looked.windows.names, loaded.name)
    more = looked.windows.told or view["purpose"] or ("", "")
    return {
        **view,
        "purpose": [
            f"{loaded.kind} of Hugging Face transformers. {more[0]}".strip(),
            f"Hugging Face transformers의 {loaded.kind}입니다. {more[1]}".strip(),
        ],
        "encoding": loaded.config.model_type,
        "input": line,
        "answer": reading.answer,
    }


def _lengths(tape: Tape) -> dict[str, set[int]]:
    """How many places each side has, at one site or another."""
    lengths: dict[str, set[int]] = {}
    for name in tape.sites:
        site, call = tape.site(name), tape.recorded(name).call
        lengths.setdefault(site.queries, set()).add(call.q.shape[2])
        lengths.setdefault(site.keys, set()).add(call.k.shape[2])
    return lengths
