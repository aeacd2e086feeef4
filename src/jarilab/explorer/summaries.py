"""What the page says of a whole model and of a task: tests of order, what each head matters, digits, alignment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from jarilab.errors import UserError
from jarilab.explorer import payload
from jarilab.explorer.payload import Names
from jarilab.inspect import effects, invariance, lenses
from jarilab.inspect.capture import Tape, record
from jarilab.inspect.lenses import Link, Place
from jarilab.inspect.maps import Map
from jarilab.positions import Positions, Tokens
from jarilab.predictors.base import Trace

TESTED = 256
"""Tokens up to which order is tested, in float64, and heads are switched off."""
FORWARDS = 128
"""Heads up to which each is switched off."""
BLOCK = 16
"""Tokens of the random block that is repeated to find induction heads."""


def checks(model: nn.Module, said: Trace) -> list[dict[str, Any]]:
    """Whether attention can tell order at all, and whether it goes by distance alone. model: in float64."""
    if max(len(said.source), len(said.target)) > TESTED:
        return []
    found = []
    about = "the largest change of a weight when tokens are dealt out anew and places stay; 0: blind to order"
    for site, value in invariance.permuted(model, said.inputs).items():
        found.append(
            {"name": "permutation", "label": f"permutation, {site}", "value": value, "about": about}
        )
    about = "the largest change of a weight when every position moves by 1; 0: only distances count"
    try:
        moves: Mapping[str, float | None] = invariance.shifted(model, said.inputs, 1)
    except UserError as error:  # a table of places ends
        moves, about = {"all sites": None}, str(error)
    found += [
        {"name": "shift", "label": f"shift, {site}", "value": v, "about": about}
        for site, v in moves.items()
    ]
    return found


def matters(model: nn.Module, said: Trace) -> dict[str, dict[str, Any]]:
    """Measures of each site that take forwards of their own, where these are few."""
    found: dict[str, dict[str, Any]] = {}
    if max(len(said.source), len(said.target)) > TESTED:
        return found
    for site, value_H in effects.importance(model, said.inputs, said.written).items():
        found.setdefault(site, {})["importance"] = _alone(value_H.tolist())
    if sum(len(next(iter(of_site.values()))["value"]) for of_site in found.values()) <= FORWARDS:
        for site, value_H in effects.ablation(model, said.inputs, said.written).items():
            found.setdefault(site, {})["ablation"] = _alone(value_H.tolist())
    return found


def probe(
    model: nn.Module, untrained: nn.Module, vocabulary: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """How much each head of a language model looks at what followed the last time."""
    if len(vocabulary) < 4:
        return {}
    block = min(BLOCK, len(vocabulary))
    ids = lenses.induction_ids(vocabulary, block)
    names = [str(place) for place in range(ids.shape[-1])]
    scored = []
    for one in (model, untrained):
        with torch.no_grad(), record(one) as tape:
            one(Tokens(ids.reshape(1, -1), Positions.sequence(len(names), frame="target")))
        scored.append(
            {
                site: lenses.induction_score(Map.of(tape, site, names, names), block)
                for site in tape.sites
            }
        )
    return {
        site: {
            "induction_probe": {
                "value": score.value.tolist(),
                "chance": score.chance.tolist(),
                "untrained": scored[1][site].value.tolist(),
            }
        }
        for site, score in scored[0].items()
    }


def _alone(values: list[float]) -> dict[str, Any]:
    """A measure without chance."""
    return {"value": values, "chance": [None] * len(values), "untrained": None}


def digits(
    tape: Tape, said: Trace, written: Sequence[str], *, ones_first: bool
) -> dict[str, Any] | None:
    """Digit places and carries of an expression and its answer, and how much each head looks at its own place."""
    real = [token for token in written if not token.startswith("<")]
    try:
        places = lenses.places_of([*said.source, "=", *real], ones_first=ones_first)
    except UserError:  # no expression
        return None
    source, answer = places[: len(said.source)], places[len(said.source) + 1 :]
    # A row of the target stands for what is written there.
    target = [*answer, *[Place("other")] * (len(said.target) - len(answer))]
    of_side = {"source": source, "target": target}
    names = {"source": said.source, "target": said.target}
    share = {}
    for site in tape.sites:
        queries, keys = payload.sides_of(site)
        if keys == "source":
            scored = lenses.place_share(
                Map.of(tape, site, names[queries], names[keys]), of_side[queries], source
            )
            share[site] = {"value": _known(scored.value), "chance": _known(scored.chance)}
    return {
        "kind": "arithmetic",
        "places": {
            side: [{"role": p.part, "place": p.place} for p in of] for side, of in of_side.items()
        },
        "carries": [place.carry for place in target],
        "share": share,
    }


def _known(values: torch.Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def aligned(tape: Tape, gold: Sequence[Link] | None) -> dict[str, Any] | None:
    """Which source token each target token looks at most, by the last attention to the source, on the mean of its
    heads; with gold links, how wrong that is."""
    sites = [site for site in tape.sites if payload.kind_of(site) == "cross"]
    if not sites:
        return None
    weights_QK = tape.weights(sites[-1])[0].mean(0)
    links = [list(link) for link in lenses.alignment(weights_QK)]
    found: dict[str, Any] = {
        "kind": "alignment",
        "site": sites[-1],
        "links": links,
        "gold": None,
        "error_rate": None,
    }
    if gold is not None:
        sure = [list(link) for link in gold]
        rate = lenses.alignment_error_rate(weights_QK, list(gold), list(gold))
        found |= {"gold": {"sure": sure, "possible": []}, "error_rate": rate}
    return found


def rollout(tape: Tape, names: Names) -> dict[str, Any] | None:
    """What each place of the encoder's output is made of; None without an encoder, and for inputs that are pooled."""
    sites = [site for site in tape.sites if payload.kind_of(site) == "encoder"]
    if not sites or len(names["source"]) > payload.LARGEST:
        return None
    return payload.block(
        lenses.rollout([Map.of(tape, site, names["source"], names["source"]) for site in sites]),
        "uint16",
    )


def noise(tapes: Sequence[tuple[str, Tape]]) -> dict[str, Any] | None:
    """How far the maps of runs are from each other that differ by their seed alone: heads that match best, in nats.

    tapes: with each, what its run is apart from the seed. Sites too large to be measured are left out.
    """
    found: list[float] = []
    for number, (first, one) in enumerate(tapes):
        for second, other in tapes[number + 1 :]:
            if first == second:
                found += [
                    _apart(one, other, site) for site in one.sites if payload.measurable(one, site)
                ]
    if not found:
        return None
    about = "mean Jensen-Shannon divergence, in nats, of best matching heads, of runs that differ by their seed alone"
    return {"value": sum(found) / len(found), "about": about}


def _apart(one: Tape, other: Tape, site: str) -> float:
    p, q = (tape.weights(site)[0].double() for tape in (one, other))
    return lenses.match_heads(lenses.divergence(p, q)).distance


def erased(model: nn.Module, said: Trace, site: str, head: int) -> dict[str, Any]:
    """What it does to take each query's most attended key away, beside random ones."""
    return {"keys": 1, **asdict(effects.erasure(model, said.inputs, said.written, site, head, 1))}
