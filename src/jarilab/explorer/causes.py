"""Which head decides the answer to one input: `jarilab.causes`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text
from jarilab.data.text.text_files import lines
from jarilab.explorer.cause_sections import sections_of
from jarilab.explorer.cause_words import Words, said, say
from jarilab.explorer.preview import preview_payload
from jarilab.explorer.scored_input import ScoredInput, read_input
from jarilab.inspect.cause.which_head import CONTROLS, HeadCauses
from jarilab.inspect.record.capture import record
from jarilab.inspect.study.example import Batch
from jarilab.pages.kit.page import assemble, frame

STYLES = ("kit/theme.css", "kit/base.css", "kit/maps.css", "causes.css")
MAX_EXAMPLES = 256
"""Lines of a file over which means are taken."""
CERTAIN = 0.999
"""A probability above this changes little when the scores change much."""
BEST = 5
"""Answers that the page lists."""


@dataclass(frozen=True, eq=False)
class Causes:
    """The heads of a model, each with its effect on one answer and a verdict; `save` writes a page.

    about: the model, the input and its score. rows, pairs, edges, conclusion: see `HeadCauses`. maps: of all heads.
    scored: the input. texts: other inputs, by which methods of relevance are judged.
    """

    about: dict[str, Any]
    rows: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    conclusion: dict[str, Any]
    maps: Mapping[str, Any]
    scored: ScoredInput
    texts: Sequence[str] = ()

    @cached_property
    def sections(self) -> dict[str, dict[str, Any]]:
        """Contributions, logit lens, composition and relevance, computed when first read: see `sections_of`."""
        return sections_of(self.scored, self.texts)

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
        english, korean = map(" ".join, zip(first, *certain, say("passing", *numbers), strict=True))
        return english, korean

    def _heads(self) -> Words:
        names = self.conclusion["heads"]
        rows = {row["head"]: row for row in self.rows}
        if len(names) > 1:
            listed = ", ".join(f"{each} ({rows[each]['total']:.2f})" for each in names)
            return say("heads", len(names), listed)
        row = rows[names[0]]
        return say("head", names[0], self._fall(row["total"]), (row["words"], row["korean"]))

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
    at: int | None = None,
    means: str | Path | None = None,
    controls: Annotated[int, Ge(1), Le(999)] = CONTROLS,
    seed: Annotated[int, Ge(0)] = 0,
    trust_code: bool = False,
) -> Causes:
    """Find out which heads decide the answer to one input.

    model: folder of a run, or one that save_pretrained wrote.
    text: input of the model; of a model for images, the name of a file.
    answer: one token or class, such as " Mary" (default: the most likely one).
    rival: answer to compare with; the score is then the difference of the two.
    continuation: text whose tokens are scored instead of one answer.
    corrupt: second input of the same length; each head is also patched between the two.
    at: position whose prediction is scored (default: the last of a text, the first of an answer).
    means: file with a text a line, over which mean ablation takes its mean (default: the positions of the input), and
        by which methods of relevance are judged.
    controls: random directions that each head is compared with.
    seed: of the random directions.
    trust_code: execute the Python files that the run names.

    Raises UserError for an input that the model cannot read, and for an answer that is not one token.
    """
    if continuation == "":
        raise UserError(
            "expected a continuation of a token or more, got an empty one; write a text, or leave it out"
        )
    if continuation and (answer or rival):
        raise UserError("expected an answer or a continuation, got both; leave out one of them")
    scored = read_input(model, text, continuation or "", at, trust_code=trust_code)
    scored = scored.with_answer(answer, rival)
    texts = () if means is None else _lines(Path(means))
    batches = [scored.read(line).batch for line in texts] or None
    other = None if corrupt is None else scored.corrupt(corrupt)
    result = causes_of(scored, batches, other, texts, controls=controls, seed=seed)
    result.about["corrupt"] = corrupt
    if batches is not None:
        result.about["means"] = [len(batches), Path(str(means)).name]
    return result


def causes_of(
    scored: ScoredInput,
    means: Sequence[Batch] | None = None,
    corrupt: Batch | None = None,
    texts: Sequence[str] = (),
    **options: Any,
) -> Causes:
    """`causes` of an input that is read, of a model of any library. texts: of `Causes`. options: of `HeadCauses`."""
    lead = None if scored.continuation else scored.lead
    model, batch = scored.model, scored.batch
    _check_parameters(model, scored.name)
    tables = HeadCauses(model, batch, scored.score, lead, means=means, corrupt=corrupt, **options)
    with torch.no_grad(), record(model) as tape:
        outputs = batch.forward(model)
    maps = preview_payload(tape, batch.tokens[0], None)
    for each in maps["sites"]:
        site = tape.site(each["site"])
        each["frames"] = [site.queries, site.keys]
    about = _about(scored, outputs)
    found = (tables.rows, tables.pairs, tables.edges, tables.conclusion)
    return Causes(about, *found, maps, scored, texts)


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
    is_probability = not scored.continuation and scored.rival is None
    return {
        "model": scored.name,
        "text": scored.text,
        "continuation": scored.continuation or None,
        "tokens": scored.batch.tokens[0],
        "positions": scored.positions,
        "answer": None if scored.continuation else scored.show(scored.labels[0]),
        "rival": None if scored.rival is None else scored.show(scored.rival),
        "score": score,
        "probability": math.exp(score) if is_probability else None,
        "best": [{"answer": scored.show(each), "probability": share} for each, share in pairs],
        "corrupt": None,
        "means": None,
    }
