"""What the page says of a whole model and of a task: tests of order, what each head matters, digits, alignment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.explorer import payload
from jarilab.explorer.payload import Names
from jarilab.inspect.intervene.effects import ablation, erasure, importance
from jarilab.inspect.intervene.invariance import permutation_error, shift_error
from jarilab.inspect.measure.alignment import Link, alignment, alignment_error_rate
from jarilab.inspect.measure.digit_places import Place, place_share, places_of
from jarilab.inspect.measure.head_matching import divergence, match_heads
from jarilab.inspect.measure.induction import induction_ids, induction_score
from jarilab.inspect.measure.maps import Map, Scored
from jarilab.inspect.measure.maps import rollout as rolled_out
from jarilab.inspect.record.capture import Tape, record
from jarilab.pages.kit.blocks import block
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.predictors.base import Trace

TESTED = 256
"""Tokens up to which order is tested, in float64, and heads are switched off."""
FORWARDS = 128
"""Heads up to which each is switched off."""
PAIRS = 2**20
"""Pairs of tokens up to which copies of an input are read together, each with other keys taken away: the twelve of 295
tokens; of more tokens, fewer at once, since each copy has a map of its own."""
BLOCK = 16
"""Tokens of the random block that is repeated to find induction heads."""


def checks(model: nn.Module, said: Trace) -> list[dict[str, Any]]:
    """Whether attention can tell order at all, and whether it goes by distance alone. model: in float64."""
    if _longest(said) > TESTED:
        return []
    about = "the largest change of a weight when tokens are dealt out anew and places stay; 0: blind to order"
    found = _checked("permutation", permutation_error(model, said.inputs), about)
    about = "the largest change of a weight when every position moves by 1; 0: only distances count"
    try:
        changes: Mapping[str, float | None] = shift_error(model, said.inputs, 1)
    except UserError as error:  # a table of places ends
        changes, about = {"all sites": None}, str(error)
    return found + _checked("shift", changes, about)


def _checked(name: str, changes: Mapping[str, float | None], about: str) -> list[dict[str, Any]]:
    found = []
    for site, value in changes.items():
        label = f"{name}, {site}"
        found.append({"name": name, "label": label, "value": value, "about": about})
    return found


def _longest(said: Trace) -> int:
    """Tokens of its longer side."""
    return max(len(said.source), len(said.target))


def matters(model: nn.Module, said: Trace) -> dict[str, dict[str, Any]]:
    """Measures of each site that take forwards of their own, where these are few."""
    found: dict[str, dict[str, Any]] = {}
    if _longest(said) > TESTED:
        return found
    heads = 0
    for site, value_H in importance(model, said.inputs, said.written).items():
        heads += len(value_H)
        found.setdefault(site, {})["importance"] = _alone(value_H.tolist())
    if heads <= FORWARDS:
        for site, value_H in ablation(model, said.inputs, said.written).items():
            found.setdefault(site, {})["ablation"] = _alone(value_H.tolist())
    return found


def probe(
    model: nn.Module, untrained: nn.Module, vocabulary: Sequence[int], task: Any
) -> dict[str, dict[str, Any]]:
    """How much each head of a language model looks at what followed the last time. task: where tokens are."""
    if len(vocabulary) < 4:
        return {}
    block = min(BLOCK, len(vocabulary))
    ids = induction_ids(vocabulary, block)
    tokens = task.tokens(ids.reshape(1, -1), "target")
    before = _probed(untrained, tokens, block)
    found = {}
    for site, score in _probed(model, tokens, block).items():
        found[site] = {
            "induction_probe": {
                "value": score.value.tolist(),
                "chance": score.chance.tolist(),
                "untrained": before[site].value.tolist(),
            }
        }
    return found


def _probed(model: nn.Module, tokens: Tokens, block: int) -> dict[str, Scored]:
    names = [str(place) for place in range(tokens.positions.length)]
    with torch.no_grad(), record(model) as tape:
        model(tokens)
    scores = {}
    for site in tape.sites:
        shown = Map.of(tape, site, names, names)
        scores[site] = induction_score(shown, block)
    return scores


def _alone(values: list[float]) -> dict[str, Any]:
    """A measure without chance."""
    return {"value": values, "chance": [None] * len(values), "untrained": None}


def digits(
    tape: Tape, said: Trace, written: Sequence[str], *, ones_first: bool
) -> dict[str, Any] | None:
    """Digit places and carries of an expression and its answer, and how much each head looks at its own place."""
    real = [token for token in written if not token.startswith("<")]
    try:
        places = places_of([*said.source, "=", *real], ones_first=ones_first)
    except UserError:  # no expression
        return None
    length = len(said.source)
    source, answer = places[:length], places[length + 1 :]
    # A row of the target stands for what is written there.
    rest = len(said.target) - len(answer)
    target = [*answer, *[Place("other")] * rest]
    of_side = {"source": source, "target": target}
    names = {"source": said.source, "target": said.target}
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


def _roles(places: Sequence[Place]) -> list[dict[str, Any]]:
    return [{"role": place.part, "place": place.place} for place in places]


def _known(values: torch.Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def aligned(tape: Tape, gold: Sequence[Link] | None) -> dict[str, Any] | None:
    """Which source token each target token looks at most, by the last attention to the source, on the mean of its
    heads; with gold links, how wrong that is."""
    sites = tape.sites_of("cross")
    if not sites:
        return None
    weights_QK = tape.weights(sites[-1])[0].mean(0)
    found: dict[str, Any] = {
        "kind": "alignment",
        "site": sites[-1],
        "links": [list(link) for link in alignment(weights_QK)],
        "gold": None,
        "error_rate": None,
    }
    if gold is not None:
        sure = [list(link) for link in gold]
        found["gold"] = {"sure": sure, "possible": []}
        found["error_rate"] = alignment_error_rate(weights_QK, list(gold), list(gold))
    return found


def rollout(tape: Tape, names: Names) -> dict[str, Any] | None:
    """What each place of the encoder's output is made of; None without an encoder, and for inputs that are pooled."""
    sites = tape.sites_of("encoder")
    if not sites or len(names["source"]) > payload.LARGEST:
        return None
    tokens = names["source"]
    maps = [Map.of(tape, site, tokens, tokens) for site in sites]
    return block(rolled_out(maps), "uint16")


def noise(tapes: Sequence[tuple[str, Tape]]) -> dict[str, Any] | None:
    """How far the maps of runs are from each other that differ by their seed alone: heads that match best, in nats.

    tapes: with each, what its run is apart from the seed. Sites too large to be measured are left out.
    """
    found: list[float] = []
    for number, (first, one) in enumerate(tapes):
        for second, other in tapes[number + 1 :]:
            if first == second:
                found += _apart(one, other)
    if not found:
        return None
    about = "mean Jensen-Shannon divergence, in nats, of best matching heads, of runs that differ by their seed alone"
    return {"value": sum(found) / len(found), "about": about}


def _apart(one: Tape, other: Tape) -> list[float]:
    """How far the heads of each site are from those that match them best."""
    found = []
    for site in one.sites:
        if payload.measurable(one, site):
            weights_HQK = one.weights(site)[0].double()
            others_HQK = other.weights(site)[0].double()
            apart_HH = divergence(weights_HQK, others_HQK)
            found.append(match_heads(apart_HH).distance)
    return found


def erased(inside: Tape, said: Trace, site: str, head: int) -> dict[str, Any]:
    """What it does to take each query's most attended key away, beside random ones. inside: in float64, where it does
    not matter how many copies of an input are read together."""
    longest = max(1, _longest(said))
    at_once = max(1, PAIRS // longest**2)
    model, inputs = inside.inside.model, inside.inside.arguments
    found = erasure(model, inputs, said.written, site, head, 1, at_once=at_once)
    return {"keys": 1, **asdict(found)}
