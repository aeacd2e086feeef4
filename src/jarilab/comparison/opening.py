"""What a report opens with: the input, the two models, and the head and the cell of their maps that say most."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jarilab.pages.kit.blocks import FIXED

KINDS = {
    "encoder": "encoder self-attention",
    "cross": "decoder cross-attention",
    "decoder": "decoder self-attention",
}
Example = Mapping[str, Any]
Model = Mapping[str, Any]
Site = Mapping[str, Any]


def blind_of(examples: Sequence[Example]) -> str | None:
    """The encoding that tells nothing: with it, equal tokens have equal rows in every head of the encoder."""
    models = (model for example in examples for model in example["models"])
    return next((model["encoding"] for model in models if _is_blind(model)), None)


def _is_blind(model: Model) -> bool:
    differences = [value for site in model["sites"] for value in site["equal_rows"] or []]
    known = [value for value in differences if value is not None]
    return bool(known) and not any(known)


def opening_of(examples: Sequence[Example], ranked: Sequence[str]) -> dict[str, Any] | None:
    """The example, its one or two models (the better one last), site, head, query and key; None without maps.

    ranked: encodings, the best first. An input is chosen that the better model answers and the other does not, if there
    is one; then the head of the better model without which the loss of its answer rises most, or, where that was not
    measured, the one farthest from chance; then the weight that says most.
    """
    blind = blind_of(examples)
    pairs = [_pair(example["models"], blind, ranked) for example in examples]
    shown = [number for number, pair in enumerate(pairs) if pair]
    if not shown:
        return None
    chosen = max(shown, key=lambda number: _contrast(examples[number]["models"], pairs[number]))
    models = pairs[chosen]
    better = examples[chosen]["models"][models[-1]]
    site, head = max(_heads(better), key=lambda one: _says(*one))
    query, key = _cell(site, head)
    measured = site["effects"] is not None
    place = {"site": site["name"], "head": head, "query": query, "key": key, "measured": measured}
    return {"example": chosen, "models": models, **place}


def _pair(models: Sequence[Model], blind: str | None, ranked: Sequence[str]) -> list[int]:
    """The numbers of those that stand side by side: the one that is told nothing, or the second best; then the best."""
    numbers = {model["encoding"]: number for number, model in enumerate(models) if model["sites"]}
    by_rank = [name for name in ranked if name in numbers]
    told = [name for name in by_rank if name != blind]
    best = told[0] if told else blind
    others = [name for name in (blind, *by_rank) if name in numbers and name != best]
    names = [*others[:1], best]
    return [numbers[name] for name in names if name in numbers]


def _contrast(models: Sequence[Model], pair: Sequence[int]) -> tuple[bool, bool]:
    """Whether the better one is right, and the other wrong."""
    return models[pair[-1]]["correct"] is True, models[pair[0]]["correct"] is False


def _heads(model: Model) -> Iterator[tuple[Site, int]]:
    for site in model["sites"]:
        for head in range(site["heads"]):
            yield site, head


def _says(site: Site, head: int) -> tuple[float, float]:
    """How much there is to say of a head: its effect on the answer, and its distance from chance."""
    effect = float("-inf") if site["effects"] is None else site["effects"][head]
    return effect, site["salience"][head]


def _cell(site: Site, head: int) -> tuple[int, int]:
    """Query and key of the weight that is farthest above an equal share of what the query may look at."""
    weights_QK = weights_of(site, head)
    queries, keys = weights_QK.shape
    seen_Q = np.full(queries, keys)
    if site["kind"] == KINDS["decoder"]:
        seen_Q = np.arange(queries) + 1
    above_QK = weights_QK - 1 / seen_Q[:, None]
    query, key = divmod(int(above_QK.argmax()), keys)
    return query, key


def weights_of(site: Site, head: int) -> np.ndarray:
    """The map of a head `(Q, K)`, from 0 to 1."""
    fixed = np.frombuffer(base64.b64decode(site["weights"]), "<u2")
    queries, keys = len(site["query"]), len(site["key"])
    return fixed.reshape(-1, queries, keys)[head] / FIXED
