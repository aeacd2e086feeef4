"""A Hugging Face folder as a subject of the explorer; its own tokenizer reads the input."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from jarilab.core.errors import UserError, as_user_error
from jarilab.data.images.image_files import IMAGE_END, INLINE_IMAGE
from jarilab.explorer.detail import lens_of, scores_of
from jarilab.explorer.effects import EffectsInProgress
from jarilab.explorer.huggingface_engine import engine_of
from jarilab.explorer.intervention import CONTROLS, InterventionRequest, controls_payload
from jarilab.explorer.output_comparison import OutputComparison, comparison_of, rows_of
from jarilab.explorer.payload import MAX_CELLS
from jarilab.explorer.subject import LRU, Subject, Writer, check_file
from jarilab.explorer.summaries import rollout
from jarilab.explorer.tape_subject import view_of_tape
from jarilab.explorer.window_sites import Windows, attentions_in
from jarilab.huggingface import ModelInput, load, read, reads_files, reads_image_and_text
from jarilab.inspect.cause.head_effects import HeadEffects
from jarilab.inspect.intervene.controls import (
    GaveWay,
    Proceed,
    compare_with_controls,
    giving_way,
)
from jarilab.inspect.intervene.edit import Edit
from jarilab.inspect.intervene.edits import TokenOff
from jarilab.inspect.intervene.interventions import operate
from jarilab.inspect.intervene.linear_memory import LinearMemory
from jarilab.inspect.measure.link import TokenLinkHead, heads_of_link
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.study.example import Batch
from jarilab.pages.kit.image_data import picture_of
from jarilab.pages.program.program import program_of

SEPARATOR = "/"
"""Separates the name of a layer that runs several times from the number of the call."""

PURPOSES = {
    "next": ("predicts the token that follows a text", "글 다음에 올 토큰을 예측합니다"),
    "image": (
        "predicts the token that follows an image and a text",
        "이미지와 글 다음에 올 토큰을 예측합니다",
    ),
    "masked": ("fills in masked tokens of a text", "글에서 가려진 토큰을 채웁니다"),
    "words": ("fills in masked tokens of a text", "글에서 가려진 토큰을 채웁니다"),
    "written": ("writes a text for its input", "입력에 맞는 글을 씁니다"),
    "transcribed": ("writes down the words of a sound", "소리에 담긴 말을 받아 적습니다"),
    "class": ("assigns a class to its input", "입력을 분류합니다"),
    "labels": ("assigns a class to each token", "토큰마다 분류를 하나씩 매깁니다"),
    "vectors": ("turns its input into vectors", "입력을 벡터로 바꿉니다"),
}
"""What models do, by the kind of their outputs or by what they read, in English and Korean."""


@dataclass(frozen=True, eq=False)
class RecordedForward:
    """An input of a Hugging Face model, its outputs as a page shows them, and its attention."""

    reading: ModelInput
    tape: Tape
    windows: Windows
    outputs: list[dict[str, Any]]

    @property
    def comparison(self) -> OutputComparison:
        """How the outputs of two forwards are compared."""
        return comparison_of(self.reading.output_reader)

    @property
    def edits(self) -> list[str]:
        """The kinds of edits that are possible."""
        if self.uneditable:
            return []
        try:
            for side in {self.tape.site(name).keys for name in self.tape.sites}:
                TokenOff.everywhere(self.tape, side, 0)
        except UserError:
            return ["head", "link"]
        return ["head", "link", "token"]

    @property
    def uneditable(self) -> tuple[str, str] | None:
        """Why no head can be switched off, in English and Korean; None if all can be."""
        if self.windows.note is not None:
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


@dataclass(frozen=True, eq=False)
class OutputBefore:
    """The output of a forward without edits, as it is compared, and its linear layers."""

    scores: torch.Tensor
    memory: LinearMemory


@dataclass(frozen=True, eq=False)
class EditedForward:
    """A forward with edits.

    key: its input, and the edits. effect: what a page shows, with the answer once it is known.
    """

    key: tuple[str, list[Edit]]
    tape: Tape
    outputs: Any
    effect: dict[str, Any]


class HuggingFaceSubject(Subject):
    """A model of Hugging Face transformers.

    flag: the option of the command line that names the folder. Raises UserError for a folder without a model.
    """

    def __init__(self, folder: str | Path, flag: str = "--model"):
        self.loaded, self._flag = load(folder), flag
        self.name = self.loaded.name
        self.reads_image_and_text = reads_image_and_text(self.loaded)
        self.reads_files = self.reads_image_and_text or reads_files(self.loaded)
        self._recordings: LRU[RecordedForward] = LRU()
        self._effects: dict[str, EffectsInProgress] = {}
        self._before: dict[str, OutputBefore] = {}
        self._edited: EditedForward | None = None

    def check_input(self, line: str, first: str) -> None:
        if self.reads_image_and_text:
            line, first = line.partition(IMAGE_END)[0], first.partition(IMAGE_END)[0]
        elif not self.reads_files:
            return
        if not line.startswith(INLINE_IMAGE):
            check_file(line, first, numbered=False)

    def tokens(self, line: str) -> Sequence[str] | None:
        return self.record(line).reading.names.get("source", ())

    def tape(self, line: str, step: int) -> Tape:
        return self.record(line).tape

    def record(self, line: str) -> RecordedForward:
        """Reads and answers the input, and records one forward."""
        return self._recordings.get_or_make(line, lambda: self._record(line))

    @torch.no_grad()
    def _record(self, line: str) -> RecordedForward:
        # The file that the line names may have changed.
        self._before.pop(line, None)
        self._effects.pop(line, None)
        if self._edited is not None and self._edited.key[0] == line:
            self._edited = None
        reading = read(self.loaded, line)
        # A tape may hold the square of its length, so two long ones are never kept.
        if max(map(len, reading.names.values()), default=0) > MAX_CELLS:
            self._recordings.clear()
            self._before.clear()
            self._effects.clear()
            self._edited = None
        with (
            as_user_error(f"{self.loaded.folder} cannot answer {line[:80]!r}"),
            _no_warnings(),
            record(self.loaded.model) as tape,
        ):
            outputs = self.loaded.model(**reading.inputs)
        image = reading.image
        grid = None if image is None else (image.rows, image.columns)
        windows = Windows.of(_split_calls(tape), grid)
        shown = comparison_of(reading.output_reader).shown(outputs)
        reading = reading.with_unplaced(_lengths(windows.tape).get("source", ()))
        return RecordedForward(reading, windows.tape, windows, shown)

    def links(self, line: str, query: str, key: str) -> list[TokenLinkHead]:
        recording = self.record(line)
        # Equal names of both sides are one sequence.
        names = {tuple(tokens): tokens for tokens in recording.reading.names.values()}
        sides = [(a, b) for a in names.values() for b in names.values()]
        # An error of a sequence without the tokens would hide why those that have them have no link.
        sides = [(a, b) for a, b in sides if query in a and key in b] or sides
        errors: list[UserError] = []
        heads: dict[tuple[str, int], TokenLinkHead] = {}
        for queries, keys in sides:
            try:
                links = heads_of_link(recording.tape, queries, keys, query, key)
            except UserError as error:
                errors.append(error)
                continue
            heads |= {(link.site, link.head): link for link in links}
        if not heads:
            raise errors[0]
        return sorted(heads.values(), key=lambda link: -link.above)

    def report(self, line: str) -> str:
        """A line for the terminal: attentions, how exactly they were recorded, and the answer."""
        recording, loaded = self.record(line), self.loaded
        tape = recording.tape
        trusts = {site: tape.trust(site) for site in tape.sites}
        error = max(trust.rebuild_error + trust.rounding for trust in trusts.values())
        failed = [site for site, trust in trusts.items() if not trust.holds]
        by_softmax = attentions_in(site for site in tape.sites if not tape.verified(site))
        note = f", {len(by_softmax)} of them by the model's own softmax" if by_softmax else ""
        if tape.missing:
            note += f" ({len(tape.missing)} more cannot be recorded: {next(iter(tape.missing))})"
        if tape.partial:
            note += f" (some maps of {next(iter(tape.partial))} cannot be recorded)"
        answer = recording.reading.answer
        return (
            f"{loaded.name}: {loaded.kind}, {len(attentions_in(tape.sites))} attentions{note}; weights times values "
            f"equal their outputs within {error:.0e}"
            + (f"; not verified: {', '.join(failed)}" if failed else "")
            + ("" if answer is None else f"; it answers {answer!r}")
        )

    def view(self, line: str, step: int) -> dict[str, Any]:
        recording, loaded = self.record(line), self.loaded
        tape, reading = recording.tape, recording.reading
        lengths = _lengths(tape)
        # A model that adds tokens of its own has other lengths: its tokens are numbered.
        names = {
            side: tokens
            for side, tokens in reading.names.items()
            if len(tokens) in lengths.get(side, ())
        }
        view = view_of_tape(tape, names | recording.windows.names, loaded.name)
        for side, image in (("source", reading.image), ("target", reading.target_image)):
            if image is not None and side in names:
                view["sides"][side]["picture"] = picture_of(image)
        types_BL = reading.inputs.get("token_type_ids")
        if reading.image is None and types_BL is not None and {0, 1} <= {*types_BL[0].tolist()}:
            for side in names:
                view["sides"][side]["second"] = types_BL[0].tolist().index(1)
        kind = "image" if self.reads_image_and_text else recording.comparison.kind
        is_sound = reading.image is not None and reading.image.seconds is not None
        purpose = PURPOSES["transcribed" if is_sound and kind == "written" else kind]
        note = recording.windows.note or view["purpose"] or ("", "")
        sides = {side: shown["tokens"] for side, shown in view["sides"].items()}
        # Rollout multiplies maps of equal size; pooling and windows change the size.
        is_square = lengths.get("source") == {len(sides.get("source", ()))}
        return {
            **view,
            "rollout": rollout(tape, sides) if is_square else None,
            "purpose": [
                f"{loaded.kind} {purpose[0]}. {note[0]}".strip(),
                f"{loaded.kind} 모델은 {purpose[1]}. {note[1]}".strip(),
            ],
            "run": str(loaded.folder),
            "encoding": loaded.config.model_type,
            "input": line,
            "with_image": self.reads_image_and_text,
            "answer": reading.answer,
            "outputs": recording.outputs,
            "prompt": 0 if reading.generated is None else reading.generated.prompt,
            "words": [self._flag, str(loaded.folder)],
            "edits": recording.edits,
            "uneditable": recording.uneditable,
            "opens": ["lens"] if any(tape.verified(site) for site in tape.sites) else [],
            "says": recording.comparison.kind,
            "mask": None if reading.output_reader is None else reading.output_reader.mask,
        }

    def detail(self, line: str, step: int, site: str, head: int, query: int) -> dict[str, Any]:
        tape = self.record(line).tape
        tape.head(site, head)
        return {
            "query": None,
            **scores_of(tape, site, head),
            "lens": lens_of(tape.recorded(site).call, head),
            "valued": None,
        }

    def intervene(
        self,
        line: str,
        step: int,
        intervention: InterventionRequest,
        *,
        proceed: Proceed | None,
        draft: bool = False,
    ) -> tuple[Tape, dict[str, Any]]:
        recording, model = self.record(line), self.loaded.model
        self._check(recording, intervention)
        tape, effect = self._edit(line, intervention, draft=draft)
        comparison = recording.comparison
        if proceed is None:
            return tape, effect

        def output() -> torch.Tensor:
            return comparison.of(model(**recording.reading.inputs))

        edits, distance = intervention.edits, comparison.distance
        try:
            with (
                _no_warnings(),
                self._output_before(line).memory.reuse(),
                giving_way(model, proceed),
            ):
                each = compare_with_controls(
                    model, output, distance, edits, CONTROLS, proceed=proceed
                )
        except GaveWay:
            return tape, effect | {"controls": [], "rank": None, "interrupted": True}
        return tape, effect | controls_payload(each)

    @torch.no_grad()
    def _edit(
        self, line: str, intervention: InterventionRequest, *, draft: bool
    ) -> tuple[Tape, dict[str, Any]]:
        """The tape and the effect of the edited forward. Only the last is kept."""
        recording, model, key = self.record(line), self.loaded.model, (line, intervention.edits)
        before, comparison = self._output_before(line), recording.comparison
        with _no_warnings(), before.memory.reuse():
            if self._edited is None or self._edited.key != key:
                self._edited = None
                with operate(model, intervention.edits), record(model) as tape:
                    outputs = model(**recording.reading.inputs)
                effect = comparison.effect(before.scores, comparison.of(outputs))
                self._edited = EditedForward(key, tape, outputs, effect)
            edited = self._edited
            if "answer" not in edited.effect and not (draft and comparison.anew):
                edited.effect["answer"] = self._answer(recording, intervention, edited.outputs)
        return edited.tape, {"answer": None} | edited.effect

    def _output_before(self, line: str) -> OutputBefore:
        """The output without edits. Only the last is kept."""
        if line not in self._before:
            recording, memory = self.record(line), LinearMemory()
            with torch.no_grad(), _no_warnings(), memory.record():
                outputs = self.loaded.model(**recording.reading.inputs)
            self._before = {line: OutputBefore(recording.comparison.of(outputs), memory)}
        return self._before[line]

    def effects(self, line: str, step: int) -> EffectsInProgress | None:
        """Only the last are kept: they hold the activations of a forward."""
        recording = self.record(line)
        if recording.uneditable:
            return None
        if line not in self._effects:
            reading, comparison = recording.reading, recording.comparison
            batch = Batch(kwargs=reading.inputs, tokens=[reading.names])
            before = self._output_before(line).scores

            def read(outputs: Any, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
                each = [comparison.measured(before, one) for one in rows_of(outputs, len(rows))]
                logs, likeliest = zip(*each, strict=True)
                return torch.stack(logs), torch.stack(likeliest)

            effects = HeadEffects(self.loaded.model, batch, read)
            self._effects = {line: EffectsInProgress(effects, *comparison.described)}
        return self._effects[line]

    def engine(self, line: str, step: int, program: Writer = program_of) -> dict[str, Any]:
        recording = self.record(line)
        if recording.uneditable:
            return {"why": recording.uneditable}
        with _no_warnings():
            return engine_of(self.loaded, recording.reading, recording.tape, program)

    @torch.no_grad()
    def _answer(
        self, recording: RecordedForward, intervention: InterventionRequest, outputs: Any
    ) -> str | None:
        """The answer in the outputs of the changed model; a generated one is generated anew."""
        comparison, edited = recording.comparison, nullcontext()
        if comparison.anew:  # generated text may end sooner than the edited tokens
            edited = operate(self.loaded.model, intervention.edits, free=True)
        with edited, _no_warnings():
            return comparison.answer(outputs)

    def _check(self, recording: RecordedForward, intervention: InterventionRequest) -> None:
        """Raises UserError for edits that this model does not allow."""
        if recording.uneditable:
            raise UserError(f"{recording.uneditable[0]} Look at its maps without edits")
        if intervention.places:
            raise UserError(
                f"{self.name} is a model of another library, whose positions cannot be moved; switch heads, links or "
                "tokens off instead"
            )
        for edit in intervention.edits:
            for site in edit.sites:
                recording.tape.head(site, edit.head or 0)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppresses Python warnings in the block."""
    # They name attentions that were not recorded, which the page lists itself.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _split_calls(tape: Tape) -> Tape:
    """A tape with one site for each call of a layer that runs several times."""
    calls, partial = {}, {}
    for site, calls_of_site in tape.calls.items():
        is_repeated = len(calls_of_site) > 1
        for number, recorded in enumerate(calls_of_site):
            name = f"{site}{SEPARATOR}{number}" if is_repeated else site
            calls[name] = [recorded]
            if site in tape.partial:
                partial[name] = tape.partial[site]
    return replace(tape, calls=calls, partial=partial)


def _lengths(tape: Tape) -> dict[str, set[int]]:
    """The sequence lengths of each side over all sites."""
    lengths: dict[str, set[int]] = {}
    for name in tape.sites:
        site, call = tape.site(name), tape.recorded(name).call
        lengths.setdefault(site.queries, set()).add(call.q.shape[2])
        lengths.setdefault(site.keys, set()).add(call.k.shape[2])
    return lengths
