"""Measures that need more than one map: order tests, head importance, digit places, alignment, rollout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.explorer import payload
from jarilab.explorer.payload import Names
from jarilab.inspect.cause.head_effects import HeadEffects
from jarilab.inspect.intervene.effects import erasure, importance
from jarilab.inspect.intervene.invariance import permutation_error, shift_error
from jarilab.inspect.intervene.likelihood import labels_of, log_softmax
from jarilab.inspect.measure.alignment import Link, alignment, alignment_error_rate
from jarilab.inspect.measure.digit_places import DigitPlace, place_share, places_of
from jarilab.inspect.measure.head_matching import divergence, match_heads
from jarilab.inspect.measure.induction import induction_ids, induction_score
from jarilab.inspect.measure.maps import Map, Scored
from jarilab.inspect.measure.maps import rollout as rolled_out
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.study.example import Batch
from jarilab.pages.kit.data_blocks import block
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.predictors.base import Trace

MAX_TESTED = 256
"""Tokens up to which order is tested in float64, and heads are switched off."""
MAX_PAIRS = 2**20
"""Pairs of tokens of a batch of copies with different keys erased: twelve copies of 295 tokens, fewer of more."""
BLOCK = 16
"""Tokens of the random block that is repeated to find induction heads."""


def checks(model: nn.Module, trace: Trace) -> list[dict[str, Any]]:
    """Rows that say, for each site, whether attention depends on token order, and on distance alone.

    model: in float64. Empty for inputs of more than MAX_TESTED tokens.
    """
    if _longest(trace) > MAX_TESTED:
        return []
    about = "the largest change of a weight when tokens are dealt out anew and places stay; 0: blind to order"
    rows = _checked("permutation", permutation_error(model, trace.inputs), about)
    about = "the largest change of a weight when every position moves by 1; 0: only distances count"
    try:
        changes: Mapping[str, float | None] = shift_error(model, trace.inputs, 1)
    except UserError as error:  # beyond the last row of a position table
        changes, about = {"all sites": None}, str(error)
    return rows + _checked("shift", changes, about)


def _checked(name: str, changes: Mapping[str, float | None], about: str) -> list[dict[str, Any]]:
    rows = []
    for site, value in changes.items():
        label = f"{name}, {site}"
        rows.append({"name": name, "label": label, "value": value, "about": about})
    return rows


def _longest(trace: Trace) -> int:
    """Tokens of the longer side."""
    return max(len(trace.source), len(trace.target))


def matters(model: nn.Module, trace: Trace) -> dict[str, dict[str, Any]]:
    """The importance of each site's heads; empty for a long input."""
    if _longest(trace) > MAX_TESTED:
        return {}
    found = importance(model, trace.inputs, trace.written)
    return {site: {"importance": alone(value_H.tolist())} for site, value_H in found.items()}


def effects(model: nn.Module, trace: Trace) -> HeadEffects:
    """The effects of all heads on the answer of a trace."""
    labels_1L = labels_of(trace.inputs, trace.written)
    has_label_L = labels_1L[0] >= 0
    labels_1A1 = labels_1L[:, has_label_L].unsqueeze(-1)

    def read(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        logs_RAV = log_softmax(outputs)[:, has_label_L]
        picked_RA1 = logs_RAV.gather(-1, labels_1A1.expand(len(logs_RAV), -1, 1))
        return picked_RA1.squeeze(-1), logs_RAV.argmax(-1)

    return HeadEffects(model, Batch(args=trace.inputs, tokens=[{}]), read)


def probe(
    model: nn.Module, untrained: nn.Module, vocabulary: Sequence[int], task: Any
) -> dict[str, dict[str, Any]]:
    """The induction score of each head of a language model, on a repeated random block."""
    if len(vocabulary) < 4:
        return {}
    block = min(BLOCK, len(vocabulary))
    ids = induction_ids(vocabulary, block)
    tokens = task.tokens(ids.reshape(1, -1), "target")
    before = _probed(untrained, tokens, block)
    measures = {}
    for site, score in _probed(model, tokens, block).items():
        measures[site] = {
            "induction_probe": {
                "value": score.value.tolist(),
                "chance": score.chance.tolist(),
                "untrained": before[site].value.tolist(),
            }
        }
    return measures


def _probed(model: nn.Module, tokens: Tokens, block: int) -> dict[str, Scored]:
    names = [str(place) for place in range(tokens.positions.length)]
    with torch.no_grad(), record(model) as tape:
        model(tokens)
    scores = {}
    for site in tape.sites:
        shown = Map.of(tape, site, names, names)
        scores[site] = induction_score(shown, block)
    return scores


def alone(values: list[float]) -> dict[str, Any]:
    """The payload of a measure that has no chance level."""
    return {"value": values, "chance": [None] * len(values), "untrained": None}


def digits(
    tape: Tape, trace: Trace, written: Sequence[str], *, ones_first: bool
) -> dict[str, Any] | None:
    """Digit places and carries of an expression and its answer, and each head's weight on the same digit place."""
    real = [token for token in written if not token.startswith("<")]
    try:
        places = places_of([*trace.source, "=", *real], ones_first=ones_first)
    except UserError:  # not an expression
        return None
    length = len(trace.source)
    source, answer = places[:length], places[length + 1 :]
    # A row of the target stands for the token that it predicts.
    rest = len(trace.target) - len(answer)
    target = [*answer, *[DigitPlace("other")] * rest]
    of_side = {"source": source, "target": target}
    names = {"source": trace.source, "target": trace.target}
    share = {}
    for name in tape.sites:
        site = tape.site(name)
        if site.keys == "source":
            shown = Map.of(tape, name, names[site.queries], names[site.keys])
            scored = place_share(shown, of_side[site.queries], source)
            value, chance = _known(scored.value), _known(scored.chance)
            share[name] = {"value": value, "chance": chance}
    return {
        "kind": "arithmetic",
        "onesFirst": ones_first,
        "places": {side: _roles(of) for side, of in of_side.items()},
        "carries": [place.carry for place in target],
        "share": share,
    }


def _roles(places: Sequence[DigitPlace]) -> list[dict[str, Any]]:
    return [{"role": place.part, "place": place.place} for place in places]


def _known(values: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def aligned(tape: Tape, gold: Sequence[Link] | None) -> dict[str, Any] | None:
    """The alignment of the last cross-attention, by the mean of its heads; with gold links, its error rate."""
    sites = tape.sites_of("cross")
    if not sites:
        return None
    weights_QK = tape.weights(sites[-1])[0].mean(0)
    lens: dict[str, Any] = {
        "kind": "alignment",
        "site": sites[-1],
        "links": [list(link) for link in alignment(weights_QK)],
        "gold": None,
        "error_rate": None,
    }
    if gold is not None:
        sure = [list(link) for link in gold]
        lens["gold"] = {"sure": sure, "possible": []}
        lens["error_rate"] = alignment_error_rate(weights_QK, list(gold), list(gold))
    return lens


def rollout(tape: Tape, names: Names) -> dict[str, Any] | None:
    """Attention rollout of the encoder; None without an encoder and for pooled maps."""
    sites = tape.sites_of("encoder")
    if not sites or len(names["source"]) > payload.MAX_CELLS:
        return None
    tokens = names["source"]
    maps = [Map.of(tape, site, tokens, tokens) for site in sites]
    return block(rolled_out(maps), "uint16")


def noise(tapes: Sequence[tuple[str, Tape]]) -> dict[str, Any] | None:
    """The mean divergence, in nats, between best matching heads of runs that differ only in their seed.

    tapes: each with the recipe of its run, which leaves out the seed. Sites too large to be measured are left
    out, and those of answers of different lengths.
    """
    distances: list[float] = []
    for number, (recipe, tape) in enumerate(tapes):
        for other_recipe, other in tapes[number + 1 :]:
            if recipe == other_recipe:
                distances += _head_distances(tape, other)
    if not distances:
        return None
    about = "mean Jensen-Shannon divergence, in nats, of best matching heads, of runs that differ by their seed alone"
    return {"value": sum(distances) / len(distances), "about": about}


def _head_distances(tape: Tape, other: Tape) -> list[float]:
    """The mean divergence of each site's heads from the best matching ones of another tape, in nats."""
    distances = []
    for site in tape.sites:
        if payload.measurable(tape, site):
            weights_HQK = tape.weights(site)[0].double()
            others_HQK = other.weights(site)[0].double()
            if weights_HQK.shape[1:] != others_HQK.shape[1:]:
                continue  # answers of different lengths
            divergence_HH = divergence(weights_HQK, others_HQK)
            distances.append(match_heads(divergence_HH).distance)
    return distances


def erased(inside: Tape, trace: Trace, site: str, head: int) -> dict[str, Any]:
    """The effect of erasing each query's most attended key, compared with random keys."""
    longest = max(1, _longest(trace))
    # In float64 the size of a batch does not change the result.
    at_once = max(1, MAX_PAIRS // longest**2)
    model, inputs = inside.inside.model, inside.inside.arguments
    effect = erasure(model, inputs, trace.written, site, head, 1, at_once=at_once)
    return {"keys": 1, **asdict(effect)}
