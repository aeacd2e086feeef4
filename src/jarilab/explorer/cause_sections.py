"""The sections of the page of `jarilab causes`: contributions, logit lens, composition and relevance of one input.

Each is plain data. A section that the model does not allow has the reason under `refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.explorer.cause_words import Words, said, say
from jarilab.explorer.scored_input import ScoredInput
from jarilab.inspect.cause.composition import INPUTS, compositions
from jarilab.inspect.cause.contributions import contribution_rows
from jarilab.inspect.cause.lens import logit_lens
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.cause.relevance import METHODS, InputRelevance
from jarilab.inspect.cause.removal import Removal
from jarilab.inspect.study.tables import plain

MAX_POSITIONS = 64
"""Positions of the lens, up to the answer."""
MIN_TO_CHANCE = 2.0
"""Times the chance level from which two heads are listed as composing."""
MAX_LINKS = 12
"""Links of each input that are listed."""
MAX_JUDGED = 32
"""Texts by which methods of relevance are judged."""

Section = dict[str, Any]


def sections_of(scored: ScoredInput, texts: Sequence[str] = ()) -> dict[str, Section]:
    """The sections by name. texts: other inputs, by which methods of relevance are judged."""
    parts = ModelParts(scored.model, scored.batch)
    return {
        "contributions": or_refused(lambda: _contributions(scored)),
        "lens": or_refused(lambda: _lens(scored, parts)),
        "composition": or_refused(lambda: _composition(scored, parts)),
        "relevance": or_refused(lambda: _relevance(scored))
        | {"judged": or_refused(lambda: _judged(scored, texts))},
    }


def or_refused(compute: Callable[[], Section]) -> Section:
    """What it computes, or the reason why it cannot."""
    try:
        return compute()
    except UserError as error:
        return {"refused": str(error)}


def _contributions(scored: ScoredInput) -> Section:
    """What each part writes to the score itself, with the final norm frozen, in the order of the model."""
    rows = contribution_rows(scored.model, [scored.batch], scored.linear_score)
    columns = ("part", "kind", "site", "index", "contribution", "recomputed")
    shared = {name: rows[0][name] for name in ("score", "residue", "unembedding")}
    what = say("logit_over_mean", scored.continuation or scored.show(scored.labels[0]))
    if scored.rival is not None:
        names = map(scored.show, (scored.labels[0], scored.rival))
        what = say("logit_over_rival", *names)
    largest = ", ".join(f"{row['part']} {row['contribution']:+.2f}" for row in rows[:3])
    words = said(say("contributions", what, shared["score"], largest))
    of_columns = itemgetter(*columns)
    return {
        "rows": [dict(zip(columns, of_columns(row), strict=True)) for row in rows],
        **shared,
        **words,
    }


def _lens(scored: ScoredInput, parts: ModelParts) -> Section:
    """The most likely token after each layer at each position, and the probability of the answer."""
    first = max(0, scored.positions[-1] + 1 - MAX_POSITIONS)
    # A model of classes has one answer, which belongs to no position.
    places: list[int] = []

    def read(logits_BLV: Tensor) -> Tensor:
        shares_LV = logits_BLV.flatten(0, -2)[first:].double().softmax(-1)
        places[:] = [each - first for each in scored.positions] if len(shares_LV) > 1 else [0]
        share_L, id_L = shares_LV.max(-1)
        answer_L = torch.full_like(share_L, torch.nan)
        answer_L[places] = shares_LV[places, scored.labels]
        return torch.stack([id_L.double(), share_L, answer_L])

    lens = logit_lens(parts, scored.batch, read)
    names = [None, *(part.short.removesuffix(" stream") for part in lens.streams[:-1])]
    layers = []
    for name, (ids, shares, answers) in zip(names, lens.logits.tolist(), strict=True):
        layer: Section = {"after": name, "tokens": [scored.show(int(each)) for each in ids]}
        layers.append(layer | {"shares": shares, "answers": list(map(plain, answers))})
    is_first = [int(ids[places[0]]) == scored.labels[0] for ids in lens.logits[:, 0]]
    words = said(_lens_words(scored, names, is_first))
    return {"first": first, "places": places, "layers": layers, "warning": lens.warning, **words}


def _lens_words(scored: ScoredInput, names: Sequence[str | None], is_first: list[bool]) -> Words:
    """From which layer on the answer is the most likely one. names: of the layers before the streams."""
    if scored.continuation:
        return say("lens_continuation")
    answer = scored.show(scored.labels[0])
    if not is_first[-1]:
        return say("lens_never", answer)
    others = [place for place, each in enumerate(is_first) if not each]
    name = names[others[-1] + 1 if others else 0]
    return say("lens_from", answer, say("lens_before") if name is None else say("lens_after", name))


def _composition(scored: ScoredInput, parts: ModelParts) -> Section:
    """The strongest links above chance for each input of the later head."""
    rows = compositions(parts, scored.batch)
    above = [row for row in rows if row["to_chance"] >= MIN_TO_CHANCE]
    links = []
    for name in INPUTS:
        links += [row for row in above if row["input"] == name][:MAX_LINKS]
    numbers = (len(above), len(rows), MIN_TO_CHANCE)
    words = say("composition_none", *numbers)
    if above:
        first = above[0]
        link = (first["head"], first["to"], say(first["input"]), first["to_chance"])
        words = say("composition", *numbers, *link)
    return {"links": links, **said(words)}


def _relevance(scored: ScoredInput) -> Section:
    """The relevance of each token by each method."""
    relevance = InputRelevance(scored.model, scored.batch, scored.score, special=scored.special)
    methods = []
    for method, formula in METHODS.items():
        row: Section = {"method": method, "formula": formula}
        row |= or_refused(lambda method=method: {"tokens": relevance.of(method).rows(0)})
        methods.append(row)
    return {"methods": methods}


def _judged(scored: ScoredInput, texts: Sequence[str]) -> Section:
    """Which method wins by deletion and insertion, over the texts with their most likely answers."""
    if len(texts) < 2:
        raise UserError(
            f"expected other texts to judge the methods by, got {len(texts)}, which gives no interval; name a file of "
            "them with --means"
        )
    judged = [scored.read(text).with_answer(None, None) for text in texts[:MAX_JUDGED]]
    batches, answers = [each.batch for each in judged], [each.score for each in judged]
    removal = Removal(scored.model, batches, answers, special=scored.special)
    return {
        "rows": removal.rows(),
        "left_out": removal.left_out,
        **removal.verdict(),
    }
