"""A model that is not jari's, looked into: a folder of Hugging Face, which reads a line by its own tokenizer."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from jarilab.core.errors import UserError
from jarilab.explorer.detail import lens_of, scores_of
from jarilab.explorer.intervention import CONTROLS, Operation, controls_told
from jarilab.explorer.page_file import view_of_tape
from jarilab.explorer.payload import LARGEST, weights_of
from jarilab.explorer.remembering import remembered
from jarilab.explorer.saying import Saying, saying_of
from jarilab.explorer.summaries import rollout
from jarilab.explorer.windows import Windows
from jarilab.huggingface import Loaded, Reading, read
from jarilab.inspect.intervene.controls import compared
from jarilab.inspect.intervene.interventions import operate
from jarilab.inspect.measure.link import HeadOfLink, heads_of_link
from jarilab.inspect.record.capture import Tape, record

SEPARATOR = "/"
"""Between the name of a layer that runs several times and the number of the run."""


@dataclass(frozen=True, eq=False)
class Looked:
    """A model that read a line: what it was given, what it said at each place, and its attention."""

    loaded: Loaded
    reading: Reading
    tape: Tape
    windows: Windows
    shown: list[dict[str, Any]]

    @property
    def saying(self) -> Saying:
        """What of its forwards is compared."""
        return saying_of(self.reading.says)

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

    @property
    def edits(self) -> list[str]:
        """The kinds of edits that can be made. What cannot be heard would see a token still."""
        if self.uneditable:
            return []
        return ["head", "link"] if self.tape.missing else ["head", "link", "token"]

    @property
    def uneditable(self) -> tuple[str, str] | None:
        """Why no head of this model is switched off, in English and in Korean; None where each can be."""
        if self.windows.told is not None:
            return (
                "This model attends in windows, and an edit would change all windows of a layer.",
                "이 모델은 창으로 나누어 보므로, 편집하면 한 층의 모든 창이 바뀝니다.",
            )
        if not any(SEPARATOR in site for site in self.tape.sites):
            return None
        return (
            "One layer of this model runs several times, and an edit would change all of its runs.",
            "이 모델은 층 하나를 여러 번 쓰므로, 편집하면 그 모두가 바뀝니다.",
        )


class ExploredModel:
    """A folder whose model's inside is looked at."""

    def __init__(self, loaded: Loaded, flag: str):
        """flag: of the command line, that names such a folder."""
        self.loaded, self._flag = loaded, flag
        self._looked: OrderedDict[Hashable, Looked] = OrderedDict()

    def look(self, line: str) -> Looked:
        """Read a line and record it. Raises UserError for what cannot be read."""
        return remembered(self._looked, line, lambda: self._look(line))

    @torch.no_grad()
    def _look(self, line: str) -> Looked:
        loaded = self.loaded
        reading = read(loaded, line)
        # A tape is large then: no two of them.
        if max(map(len, reading.names.values()), default=0) > LARGEST:
            self._looked.clear()
        with _unwarned(), record(loaded.model) as tape:
            outputs = loaded.model(**reading.inputs)
        windows = Windows.of(_apart(tape), reading.grid)
        shown = saying_of(reading.says).shown(outputs)
        return Looked(loaded, reading, windows.tape, windows, shown)

    def view(self, line: str) -> dict[str, Any]:
        """This model's part of the page."""
        looked = self.look(line)
        loaded, reading = self.loaded, looked.reading
        lengths = _lengths(looked.tape)
        # Where a model puts tokens of its own among them, numbers say less, but nothing wrong.
        names = {
            side: of_side
            for side, of_side in reading.names.items()
            if len(of_side) in lengths.get(side, ())
        }
        view = view_of_tape(looked.tape, names | looked.windows.names, loaded.name)
        more = looked.windows.told or view["purpose"] or ("", "")
        proven = any(looked.tape.verified(site) for site in looked.tape.sites)
        sides = {side: shown["tokens"] for side, shown in view["sides"].items()}
        # From layer to layer it is of the same places: a model that pools, or cuts windows, has others.
        rolls = lengths.get("source") == {len(sides.get("source", ()))}
        return {
            **view,
            "rollout": rollout(looked.tape, sides) if rolls else None,
            "purpose": [
                f"{loaded.kind} of Hugging Face transformers. {more[0]}".strip(),
                f"Hugging Face transformers의 {loaded.kind}입니다. {more[1]}".strip(),
            ],
            "run": str(loaded.folder),
            "encoding": loaded.config.model_type,
            "input": line,
            "answer": reading.answer,
            "outputs": looked.shown,
            "words": [self._flag, str(loaded.folder)],
            "edits": looked.edits,
            "uneditable": looked.uneditable,
            "opens": ["lens"] if proven else [],
            "says": looked.saying.kind,
            "mask": None if reading.says is None else reading.says.mask,
        }

    def detail(self, line: str, site: str, head: int) -> dict[str, Any]:
        """One head: its scores, and what other divisors would make of them. What went into it is not known. Raises
        UserError for a site or a head that is not there, and for an attention that wrote its scores out itself."""
        tape = self.look(line).tape
        tape.head(site, head)
        return {
            "query": None,
            **scores_of(tape, site, head),
            "lens": lens_of(tape.recorded(site).call, head),
            "valued": None,
        }

    def operate(
        self, line: str, changes: Sequence[Mapping[str, Any]], *, controls: bool
    ) -> dict[str, Any]:
        """The answer and the maps under changes, and how far they are from what they were. controls: and how far they
        are under the same changes at random other places."""
        looked = self.look(line)
        operation = _operation(looked, changes)
        model, inputs, saying = self.loaded.model, looked.reading.inputs, looked.saying

        def says() -> torch.Tensor:
            return saying.of(model(**inputs))

        with torch.no_grad(), _unwarned():
            before = says()
            with operate(model, operation.edits), record(model) as tape:
                outputs = model(**inputs)
            told = saying.told(before, saying.of(outputs))
            found = {}
            if controls:
                beside = compared(model, says, saying.apart, operation.edits, CONTROLS)
                found = controls_told(beside)
        sites = [weights_of(tape, site, operation.weights(tape, site)) for site in tape.sites]
        answer = self._answer(looked, operation, outputs)
        return {"view": {"sites": sites}, "effect": {"answer": answer, **told, **found}}

    def without(self, line: str, site: str, head: int) -> str | None:
        """The answer without one head; None of a model that gives none."""
        looked = self.look(line)
        if looked.reading.answer is None or looked.uneditable:
            return None
        operation = Operation([{"kind": "head", "site": site, "head": head}], looked.tape)
        model = self.loaded.model
        with torch.no_grad(), operate(model, operation.edits):
            outputs = model(**looked.reading.inputs)
        return self._answer(looked, operation, outputs)

    @torch.no_grad()
    def _answer(self, looked: Looked, operation: Operation, outputs: Any) -> str | None:
        """outputs: of the changed model. What is written token by token is written anew, and may end sooner."""
        anew = looked.saying.anew
        edited = operate(self.loaded.model, operation.edits, free=True) if anew else nullcontext()
        with edited, _unwarned():
            return looked.saying.answer(outputs)


def _operation(looked: Looked, changes: Sequence[Mapping[str, Any]]) -> Operation:
    """Raises UserError for what cannot be edited here."""
    if looked.uneditable:
        raise UserError(f"{looked.uneditable[0]} Look at its maps without edits")
    operation = Operation(changes, looked.tape)
    if operation.places:
        raise UserError(
            f"{looked.loaded.name} is a model of another library, whose tokens have places that it alone knows; switch "
            "heads, links or tokens off instead"
        )
    for edit in operation.edits:
        for site in edit.sites:
            looked.tape.head(site, edit.head or 0)
    return operation


@contextmanager
def _unwarned() -> Iterator[None]:
    """What was not heard is told beside what was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _apart(tape: Tape) -> Tape:
    """With a site for each call of a layer that runs several times."""
    calls = {}
    for site, of_site in tape.calls.items():
        several = len(of_site) > 1
        for number, recorded in enumerate(of_site):
            calls[f"{site}{SEPARATOR}{number}" if several else site] = [recorded]
    return Tape(calls, missing=tape.missing)


def _lengths(tape: Tape) -> dict[str, set[int]]:
    """How many places each side has, at one site or another."""
    lengths: dict[str, set[int]] = {}
    for name in tape.sites:
        site, call = tape.site(name), tape.recorded(name).call
        lengths.setdefault(site.queries, set()).add(call.q.shape[2])
        lengths.setdefault(site.keys, set()).add(call.k.shape[2])
    return lengths
