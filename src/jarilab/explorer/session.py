"""The explorer: models side by side on the same input."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.data.images.image_files import IMAGE_END
from jarilab.explorer import payload, summaries
from jarilab.explorer.effects import SAVING_SECONDS, SLICE_SECONDS
from jarilab.explorer.initial_view import check_head, initial_view
from jarilab.explorer.intervention import InterventionRequest
from jarilab.explorer.subject import Subject
from jarilab.inspect.intervene.controls import Proceed
from jarilab.inspect.measure.link import TokenLinkHead
from jarilab.inspect.record.capture import Tape

IMAGES = (".png", ".jpg", ".jpeg", ".webp")


class Explorer:
    """Subjects side by side on the same input; each is a view with a number.

    One caller at a time computes; the others wait. Methods raise UserError for an input that a subject cannot read, and
    for a view, step, site or head that does not exist.

    link: two tokens; a page opens at the head of the first subject that connects them most. flags: options of `jarilab
    explore` that a page needs to be made again. forward_seconds: spent in recorded forwards; callers may reset it.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        *,
        link: tuple[str, str] | None = None,
        flags: Sequence[str] = (),
    ):
        self.subjects, self.flags = list(subjects), list(flags)
        self._link = link
        self._lock = threading.Lock()
        self.forward_seconds = 0.0

    def check(self, line: str, first: str) -> None:
        """Raises UserError for an input that names a file that a page may not read.

        first: the input that the page was opened with.
        """
        for subject in self.subjects:
            subject.check_input(line.strip(), first.strip())

    def input_of(self, text: str, image: str | Path | None) -> str:
        """The input of a text and an image, if there is one. Raises UserError for models that do not read both."""
        if image is None:
            return text
        for subject in self.subjects:
            if not subject.reads_image_and_text:
                raise UserError(
                    f"expected a model that reads an image and a text, such as LLaVA, got {subject.name}; leave out "
                    "--image, and name an image that a model reads alone by --input"
                )
        return f"{image}{IMAGE_END}{text}"

    def files(self, line: str) -> list[str]:
        """The images beside the one that an input names; none for models that read no files."""
        path = Path(line.partition(IMAGE_END)[0])
        reads_files = any(subject.reads_files for subject in self.subjects)
        if not reads_files or path.suffix.lower() not in IMAGES:
            return []
        return sorted(str(each) for each in path.parent.iterdir() if each.suffix.lower() in IMAGES)

    def all_at(self, step: int | None) -> dict[int, int]:
        """`step` for every view, as `look` takes it; of None, the newest of each."""
        return {} if step is None else dict.fromkeys(range(len(self.subjects)), step)

    def look(
        self,
        line: str,
        steps: Mapping[int, int] | None = None,
        *,
        live: bool,
        site: str | None = None,
        head: int | None = None,
    ) -> dict[str, Any]:
        """The payload of one input.

        steps: training steps by the number of the view; the newest by default. site, head: what the page opens at; by
        default the link, or the head that matters most.
        """
        with self._lock:
            chosen = [self._chosen(number, steps or {}) for number in range(len(self.subjects))]
            tapes = self._tapes(line, chosen)
            check_head(tapes, site, head)
            link = self._link_in(line) if site is None and head is None else None
            views = [subject.view(line, step) for subject, step in chosen]
            for view, (subject, step) in zip(views, chosen, strict=True):
                view["effects"] = _effects(subject, line, step, 0 if live else SAVING_SECONDS)
            if not live:
                views = [dict(payload.fitted(view)) for view in views]
            if link is None:
                opens = initial_view(views, site, head)
            else:
                opens = initial_view(views[:1], link.site, link.head)
                shown = next(one for one in views[0]["sites"] if one["site"] == link.site)
                opens |= {
                    "query": link.row // shown["pooled"],
                    "key": link.column // shown["pooled"],
                }
            recipes = [subject.recipe(step) for subject, step in chosen]
            pairs = zip(recipes, tapes, strict=True)
            noise = summaries.noise([(recipe, tape) for recipe, tape in pairs if recipe])
        return payload.page_of(views, live=live, initial=opens) | {"noise": noise}

    def _chosen(self, number: int, steps: Mapping[int, int]) -> tuple[Subject, int]:
        subject = self.subjects[number]
        with self._named(subject):
            return subject, subject.model_step(steps.get(number))

    def record(self, line: str) -> None:
        """Run every model on the input, which its views then reuse."""
        with self._lock:
            self._tapes(line, [self._chosen(number, {}) for number in range(len(self.subjects))])

    def _tapes(self, line: str, chosen: Sequence[tuple[Subject, int]]) -> list[Tape]:
        """The forwards of all subjects. Raises UserError if they split the line into different tokens."""
        tapes = []
        for subject, step in chosen:
            with self._named(subject):
                tapes.append(self._tape(subject, line, step))
        models = [(subject.name, subject.tokens(line)) for subject, _ in chosen]
        first, *others = [(name, tokens) for name, tokens in models if tokens is not None] or [
            ("", [])
        ]
        for name, tokens in others:
            if tokens != first[1]:
                raise UserError(
                    f"{first[0]} and {name} split the input into different tokens, so their maps cannot be compared; "
                    "look at each alone"
                )
        return tapes

    def _tape(self, subject: Subject, line: str, step: int) -> Tape:
        begun = time.perf_counter()
        tape = subject.tape(line, step)
        self.forward_seconds += time.perf_counter() - begun
        return tape

    @contextmanager
    def _named(self, subject: Subject) -> Iterator[None]:
        """Errors of one of several subjects begin with its name."""
        try:
            yield
        except UserError as error:
            if len(self.subjects) == 1 or str(error).startswith(subject.name):
                raise
            raise UserError(f"{subject.name}: {error}") from None

    def _link_in(self, line: str) -> TokenLinkHead | None:
        """The head that connects the two tokens most; None if the line has no such link."""
        try:
            return None if self._link is None else self.subjects[0].links(line, *self._link)[0]
        except UserError:
            return None

    def head(
        self, line: str, view: int, site: str, head: int, step: int | None = None, query: int = 0
    ) -> dict[str, Any]:
        """The payload of one head. query: the decoding step of a recurrent decoder."""
        subject = self.subject(view)
        with self._lock:
            step = subject.model_step(step)
            self._tape(subject, line, step)  # counted apart from the measures
            return subject.detail(line, step, site, head, query)

    def effects(
        self, line: str, view: int, step: int | None = None, *, proceed: Proceed = lambda: True
    ) -> dict[str, Any] | None:
        """The effects of a view's heads, measured for some time more while `proceed` holds; None for a tape."""
        subject = self.subject(view)
        with self._lock:
            return _effects(subject, line, subject.model_step(step), SLICE_SECONDS, proceed)

    def operate(
        self,
        line: str,
        view: int,
        changes: Sequence[Mapping[str, Any]],
        step: int | None = None,
        *,
        proceed: Proceed | None = lambda: True,
        draft: bool = False,
    ) -> dict[str, Any]:
        """One view's answer and the maps that change under an intervention.

        proceed: of the random control edits, see `inspect.intervene.controls`; None without these. draft: see
        `Subject.intervene`.
        """
        subject = self.subject(view)
        with self._lock:
            step = subject.model_step(step)
            before = self._tape(subject, line, step)
            intervention = InterventionRequest(changes, before)
            tape, effect = subject.intervene(line, step, intervention, proceed=proceed, draft=draft)
            sites = payload.changed_sites(tape, before)
            return {"view": {"sites": sites}, "effect": effect}

    def subject(self, view: int) -> Subject:
        """The subject with this number. Raises UserError if there is none."""
        if not 0 <= view < len(self.subjects):
            raise UserError(f"expected a view from 0 to {len(self.subjects) - 1}, got {view}")
        return self.subjects[view]


def _effects(
    subject: Subject, line: str, step: int, seconds: float, proceed: Proceed = lambda: True
) -> dict[str, Any] | None:
    """The payload of a subject's effects, measured for these seconds more; None for a tape."""
    effects = subject.effects(line, step)
    if effects is None:
        return None
    if seconds:
        effects.advance(seconds, proceed)
    return effects.payload()
