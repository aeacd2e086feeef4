"""Which head decides the answer to one input: `jarilab.causes`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text
from jarilab.data.text.text_files import lines
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
    """

    about: dict[str, Any]
    rows: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    conclusion: dict[str, Any]
    maps: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        conclusion = self.conclusion
        words = {"heads": self._heads, "pair": self._pair, "no_single": self._no_single}
        first = words.get(conclusion["verdict"], _none)
        sentences = [first()]
        if first in (_none, self._no_single) and (self.about["probability"] or 0.0) > CERTAIN:
            sentences.append(
                "Its probability is so high that it hides effects: name a rival answer."
            )
        return " ".join(sentences) + (
            f" {conclusion['passing']} of {conclusion['all']} heads are larger than each of {conclusion['controls']} "
            f"random directions; about {conclusion['by_chance']:.1f} would be by chance."
        )

    def _heads(self) -> str:
        name, *others = self.conclusion["heads"]
        rows = {row["head"]: row for row in self.rows}
        if not others:
            row = rows[name]
            fall = self.fall(row["total"])
            return f"{name} decides this answer: without it {fall}. Verdict: {row['words']}."
        listed = ", ".join(f"{each} ({rows[each]['total']:.2f})" for each in (name, *others))
        count = len(others) + 1
        return (
            f"{count} heads are each needed for this answer, by nats lost without them: {listed}."
        )

    def _pair(self) -> str:
        one, other = self.conclusion["together"][0]
        total = next(
            row["total"] for row in self.pairs if (row["head"], row["other"]) == (one, other)
        )
        return (
            f"No single head decides this answer: {one} and {other} stand in for each other, and without both "
            f"{self.fall(total)}."
        )

    def _no_single(self) -> str:
        name, effect = self.conclusion["strongest"], self.conclusion["effect"]
        return f"No single head decides this answer: without the strongest, {name}, {self.fall(effect)}."

    def fall(self, effect: float) -> str:
        """The score before and after an effect, in words."""
        about, score = self.about, self.about["score"]
        if about["probability"] is not None:
            before, after = (100 * math.exp(each) for each in (score, score - effect))
            return (
                f"the probability of {about['answer']!r} goes from {before:.3g} % to {after:.3g} %"
            )
        what = "the mean log-probability of the continuation"
        if about["rival"] is not None:
            what = f"the lead of {about['answer']!r} over {about['rival']!r}"
        return f"{what} goes from {score:.2f} to {score - effect:.2f} nats"

    @property
    def means(self) -> str:
        """Over what mean ablation takes its mean."""
        means = self.about["means"]
        return "the positions of this input" if means is None else f"{means[0]} texts of {means[1]}"

    def as_dict(self) -> dict[str, Any]:
        """All numbers, as plain data for JSON."""
        tables = {"heads": self.rows, "pairs": self.pairs, "edges": self.edges}
        return {**self.about, "sentence": self.sentence, "conclusion": self.conclusion, **tables}

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


def _none() -> str:
    return "No head changes this answer more than a random direction does."


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
    means: file with a text a line, over which mean ablation takes its mean (default: the positions of the input).
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
    batches = None if means is None else [scored.read(line).batch for line in _lines(Path(means))]
    other = None if corrupt is None else scored.corrupt(corrupt)
    result = causes_of(scored, batches, other, controls=controls, seed=seed)
    result.about["corrupt"] = corrupt
    if batches is not None:
        result.about["means"] = [len(batches), Path(str(means)).name]
    return result


def causes_of(
    scored: ScoredInput,
    means: Sequence[Batch] | None = None,
    corrupt: Batch | None = None,
    **options: Any,
) -> Causes:
    """`causes` of an input that is read, of a model of any library. options: of `HeadCauses`."""
    lead = None if scored.continuation else scored.lead
    model, batch = scored.model, scored.batch
    tables = HeadCauses(model, batch, scored.score, lead, means=means, corrupt=corrupt, **options)
    with torch.no_grad(), record(model) as tape:
        outputs = batch.forward(model)
    maps = preview_payload(tape, batch.tokens[0], None)
    for each in maps["sites"]:
        site = tape.site(each["site"])
        each["frames"] = [site.queries, site.keys]
    about = _about(scored, outputs)
    return Causes(about, tables.rows, tables.pairs, tables.edges, tables.conclusion, maps)


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
