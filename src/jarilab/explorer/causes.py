"""Which head decides the answer to one input: `jarilab.causes`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.core.storage.files import write_text
from jarilab.data.text.text_files import lines
from jarilab.explorer.cause_changes import columns_of, patching, read_vector, screening, steering
from jarilab.explorer.cause_sections import or_refused, sections_of
from jarilab.explorer.cause_words import CERTAIN, Words, said, say, words_of
from jarilab.explorer.preview import preview_payload
from jarilab.explorer.scored_input import ScoredInput, read_input
from jarilab.inspect.cause.steering import SCALES
from jarilab.inspect.cause.which_head import CONTROLS, HeadCauses, Report
from jarilab.inspect.record.capture import record
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.head import heads_of
from jarilab.pages.kit.page import assemble, frame

STYLES = ("kit/theme.css", "kit/base.css", "kit/maps.css", "causes.css")
MAX_EXAMPLES = 256
"""Lines of a file over which means are taken."""
BEST = 5
"""Answers that the page lists."""


MaybeSection = dict[str, Any] | Callable[[], dict[str, Any]] | None


@dataclass(frozen=True, eq=False)
class Causes:
    """The heads of a model, each with its effect on one answer and a verdict; `save` writes a page.

    about: the model, the input and its score. rows, pairs, edges, conclusion: see `HeadCauses`. maps: of all heads.
    scored: the input. texts: other inputs, by which methods of relevance are judged. screening, patching, steering:
    these sections, or functions that compute them; None where they were not asked for.
    """

    about: dict[str, Any]
    rows: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    conclusion: dict[str, Any]
    maps: Mapping[str, Any]
    scored: ScoredInput
    texts: Sequence[str] = ()
    screening: MaybeSection = None
    patching: MaybeSection = None
    steering: MaybeSection = None

    @cached_property
    def sections(self) -> dict[str, dict[str, Any] | None]:
        """The sections of the page by name, computed when first read; None for what was not asked for."""
        changes = {
            "patching": self.patching,
            "steering": self.steering,
            "screening": self.screening,
        }
        computed = {
            name: or_refused(section) if callable(section) else section
            for name, section in changes.items()
        }
        return {**computed, **sections_of(self.scored, self.texts)}

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        return self._said[0]

    @property
    def _said(self) -> Words:
        conclusion, verdict = self.conclusion, self.conclusion["verdict"]
        words = {"heads": self._heads, "pair": self._pair, "no_single": self._no_single}
        first = words[verdict]() if verdict in words else say(verdict)
        is_hidden = verdict.startswith("no_") and (self.about["probability"] or 0.0) > CERTAIN
        certain = [say("certain")] if is_hidden else []
        numbers = (conclusion[each] for each in ("passing", "all", "controls", "by_chance"))
        screened = self.screening
        only = [words_of(screened)] if isinstance(screened, dict) else []
        is_chance = 0 < conclusion["passing"] <= 2 * conclusion["by_chance"]
        chance = [say("perhaps_chance")] if is_chance else []
        words = [first, *certain, say("passing", *numbers), *chance, *only]
        english, korean = map(" ".join, zip(*words, strict=True))
        return english, korean

    def _heads(self) -> Words:
        names, by = self.conclusion["heads"], self.conclusion["by"]
        rows = {row["head"]: row for row in self.rows}
        if len(names) > 1:
            listed = ", ".join(f"{each} ({rows[each]['total']:.2f})" for each in names)
            is_lead = by == "turns" and self.about["rival"] is not None
            return say("heads", len(names), listed, say("lead_is_lost" if is_lead else by))
        row = rows[names[0]]
        fall = self._fall(row["total"])
        if by == "turns" and self.about["rival"] is None:
            fall = say("and_turns", fall)
        return say("head", names[0], fall, (row["words"], row["korean"]))

    def _pair(self) -> Words:
        one, other = self.conclusion["together"][0]
        total = next(
            row["total"] for row in self.pairs if (row["head"], row["other"]) == (one, other)
        )
        return say("pair", one, other, self._fall(total))

    def _no_single(self) -> Words:
        return say("no_single", self.conclusion["strongest"], self._fall(self.conclusion["effect"]))

    def _fall(self, effect: float) -> Words:
        """The score before and after an effect, in words."""
        about, score = self.about, self.about["score"]
        if about["probability"] is not None:
            shares = (100 * math.exp(each) for each in (score, score - effect))
            return say("probability_falls", about["answer"], *shares)
        key = "continuation_falls" if about["rival"] is None else "lead_falls"
        return say(key, score, score - effect, about["answer"], about["rival"])

    @property
    def means(self) -> str:
        """Over what mean ablation takes its mean."""
        means = self.about["means"]
        return "the positions of this input" if means is None else f"{means[0]} texts of {means[1]}"

    def as_dict(self) -> dict[str, Any]:
        """All numbers, as plain data for JSON."""
        tables = {"heads": self.rows, "pairs": self.pairs, "edges": self.edges}
        words = said(self._said) | {"conclusion": self.conclusion}
        return {**self.about, **words, **tables, "sections": self.sections}

    @property
    def html(self) -> str:
        """The page."""
        title = f"jari · {self.about['model']}: which head does it?"
        payload = {**self.as_dict(), **self.maps}
        return assemble(
            "jarilab.explorer", "causes.html", STYLES, "causes.js", payload, title, live=False
        )

    def save(self, path: str | Path) -> None:
        """Write the page. Raises UserError if it cannot be written."""
        write_text(Path(path), self.html)

    def _repr_html_(self) -> str:
        return frame(self.html, 720)


def causes(
    model: str | Path,
    text: str,
    *,
    answer: str | None = None,
    rival: str | None = None,
    continuation: str | None = None,
    corrupt: str | None = None,
    against: str | Path | None = None,
    steer: str | Path | None = None,
    scale: Annotated[float, Gt(0)] = 1.0,
    screen: Annotated[int, Ge(1)] | None = None,
    at: int | None = None,
    means: str | Path | None = None,
    controls: Annotated[int, Ge(1), Le(999)] = CONTROLS,
    seed: Annotated[int, Ge(0)] = 0,
    trust_code: bool = False,
    report: Report | None = None,
) -> Causes:
    """Find out which heads decide the answer to one input.

    model: folder of a run, or of a Hugging Face model.
    text: input of the model; of a model for images, the name of a file.
    answer: one token or class, such as " Mary" (default: the most likely one).
    rival: answer to compare with; the score is then the difference of the two.
    continuation: text whose tokens are scored instead of one answer.
    corrupt: second input of the same length; parts are patched between the two, and the residual stream is steered by
        their difference.
    against: folder of a model of the same shape and tokenizer; parts are patched between the two models.
    steer: file (.npy, .safetensors) with a vector that steers the residual stream.
    scale: factor of the steering direction; the page shows -2 to 4 times that.
    screen: estimate the effect of every head from one gradient. Then ablate only this many heads with the largest
        estimates, and as many random ones.
    at: position whose prediction is scored (default: the last of a text, the first of an answer).
    means: file with one text a line. Mean ablation takes its mean over them (default: over the positions of the input),
        and methods of relevance are judged by them.
    controls: random directions that each head is compared with.
    seed: seed of the random directions.
    trust_code: execute the Python files that the run names.
    report: callback after each forward, with the number of ablations that are done, and of all.

    Raises UserError for an input that the model cannot read, for an answer that is not one token, and for two models
    that do not fit.
    """
    _check_choices(continuation, answer or rival, corrupt, against, steer, scale)
    direction = None if steer is None else read_vector(Path(steer))
    scored = read_input(model, text, continuation or "", at, trust_code=trust_code)
    scored = scored.with_answer(answer, rival)
    texts = () if means is None else _lines(Path(means))
    batches = [scored.read(line).batch for line in texts] or None
    other = None
    if against is not None:
        other = _second_model(scored, against, trust_code=trust_code)
    _check_parameters(scored.model, scored.name)
    options = {"controls": controls, "seed": seed}
    donor = None if corrupt is None else scored.corrupt(corrupt)
    changes = _changes(scored, donor, other, direction, screen, scale, **options)
    result = causes_of(scored, batches, texts, changes, report=report, **options)
    result.about.update(corrupt=corrupt, against=None if other is None else other.name)
    if batches is not None:
        result.about["means"] = [len(batches), Path(str(means)).name]
    return result


def _check_choices(
    continuation: str | None,
    answer: str | None,
    corrupt: str | None,
    against: object,
    steer: object,
    scale: float,
) -> None:
    """Raise UserError for options that exclude each other."""
    if continuation == "":
        raise UserError(
            "expected a continuation of a token or more, got an empty one; write a text, or leave it out"
        )
    if continuation and answer:
        raise UserError("expected an answer or a continuation, got both; leave out one of them")
    if corrupt is not None and against is not None:
        raise UserError(
            "expected a second input or a second model, got both; patch between one pair at a time"
        )
    if scale != 1 and corrupt is None and steer is None:
        raise UserError(
            f"expected a direction to scale, got a scale of {scale:g} alone; name a second input, or a file with a "
            "vector"
        )


def _second_model(scored: ScoredInput, folder: str | Path, **options: Any) -> ScoredInput:
    """The same input of another model. Raises UserError if that does not fit."""
    try:
        other = read_input(folder, scored.text, scored.continuation, **options)
    except UserError as error:
        raise UserError(f"the second model: {error}") from None
    scored.check_alike(other)
    _check_parameters(other.model, other.name)
    return other


def _changes(
    scored: ScoredInput,
    donor: Batch | None,
    other: ScoredInput | None,
    direction: Tensor | None,
    screen: int | None,
    scale: float,
    **options: Any,
) -> dict[str, MaybeSection]:
    """The sections that change the model. What the table of heads shows, and what was asked for alone, is computed."""

    def screened(count: int | None = None) -> dict[str, Any]:
        return screening(scored, donor, count, options["seed"])

    def steered(vector: Tensor | Batch) -> dict[str, Any]:
        return steering(scored, vector, [scale * each for each in SCALES], **options)

    sections: dict[str, MaybeSection] = {}
    sections["screening"] = screened if screen is None else screened(screen)
    if donor is not None:
        sections["steering"] = lambda: steered(donor)
    if direction is not None:
        sections["steering"] = steered(direction)
    source = donor if other is None else scored.batch
    if source is not None:
        sections["patching"] = patching(scored, source, other, **options)
    return sections


def causes_of(
    scored: ScoredInput,
    means: Sequence[Batch] | None = None,
    texts: Sequence[str] = (),
    changes: Mapping[str, MaybeSection] | None = None,
    **options: Any,
) -> Causes:
    """`causes` of an input that is read, of a model of any library.

    texts, changes: of `Causes`; if heads were screened, only the checked ones are ablated. options: of `HeadCauses`.
    """
    lead = None if scored.continuation else scored.lead
    model, batch, changes = scored.model, scored.batch, changes or {}
    screened, patched = changes.get("screening"), changes.get("patching")
    if isinstance(screened, dict):
        options["only"] = [row["head"] for row in screened["rows"] if row["checked"]]
    tables = HeadCauses(model, batch, scored.score, lead, means=means, **options)
    _add_columns(tables.rows, "head", screened, ("estimate", "checked"))
    _add_columns(tables.rows, "part", patched, ("noised", "restored"))
    with torch.no_grad(), record(model) as tape:
        outputs = batch.forward(model)
    maps = preview_payload(tape, batch.tokens[0], None)
    for each in maps["sites"]:
        site = tape.site(each["site"])
        each["frames"] = [site.queries, site.keys]
    maps["layout"] = [head.columns for head in heads_of(tape)]
    about = _about(scored, outputs)
    found = (tables.rows, tables.pairs, tables.edges, tables.conclusion)
    return Causes(about, *found, maps, scored, texts, **changes)


def _add_columns(
    rows: list[dict[str, Any]], key: str, section: MaybeSection, columns: Sequence[str]
) -> None:
    """Add columns of a section to the rows of heads. key: the column with their names."""
    if isinstance(section, dict):
        by_name = {row[key]: columns_of(row, columns) for row in section["rows"]}
        for row in rows:
            row |= by_name[row["head"]]


def _check_parameters(model: nn.Module, name: str) -> None:
    """Raise UserError for NaN or infinity, which a fused kernel may turn into a head that does nothing."""
    for parameter, value in model.named_parameters():
        if value.element_size() > 1 and not bool(value.isfinite().all()):
            raise UserError(
                f"{name}: expected finite parameters, got NaN or infinity in {parameter}; take weights from before that"
            )


def _lines(path: Path) -> Sequence[str]:
    """The texts of a file. Raises UserError if there are none."""
    texts = [line for line in lines(path) if line.strip()]
    if not texts:
        raise UserError(f"{path}: expected a text a line, got none; add a line")
    return texts[:MAX_EXAMPLES]


def _about(scored: ScoredInput, outputs: Any) -> dict[str, Any]:
    """The input and its score, as plain data."""
    score = float(scored.score(outputs, scored.batch)[0])
    shares_V = scored.scores(outputs)[0, 0].softmax(-1)
    likely = shares_V.topk(min(BEST, len(shares_V)))
    pairs = zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    return {
        "model": scored.name,
        "text": scored.text,
        "continuation": scored.continuation or None,
        "tokens": scored.batch.tokens[0],
        "positions": scored.positions,
        "answer": None if scored.continuation else scored.show(scored.labels[0]),
        "rival": None if scored.rival is None else scored.show(scored.rival),
        "score": score,
        "probability": scored.probability(outputs),
        "best": [{"answer": scored.show(each), "probability": share} for each, share in pairs],
        **dict.fromkeys(("corrupt", "against", "means")),
    }
