"""The example, the models, the head and the cell that a report opens with."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jarilab.pages.kit.data_blocks import FIXED

KINDS = {
    "encoder": "encoder self-attention",
    "cross": "decoder cross-attention",
    "decoder": "decoder self-attention",
}
Example = Mapping[str, Any]
Model = Mapping[str, Any]
Site = Mapping[str, Any]


def blind_of(examples: Sequence[Example]) -> str | None:
    """The encoding without positions: with it, equal tokens have equal rows in every encoder head.

    None if there is no such encoding.
    """
    models = (model for example in examples for model in example["models"])
    return next((model["encoding"] for model in models if _is_blind(model)), None)


def _is_blind(model: Model) -> bool:
    differences = [value for site in model["sites"] for value in site["equal_rows"] or []]
    known = [value for value in differences if value is not None]
    return bool(known) and not any(known)


def lead_example(examples: Sequence[Example], ranked: Sequence[str]) -> dict[str, Any] | None:
    """The example, models, site, head, query and key that a report opens with; None without maps.

    Of the one or two models the better one is last. ranked: encodings, the best first. The example is one that the
    better model answers and the other does not, if there is one. The head is the one of the better model whose removal
    raises the loss of the answer most. If that was not measured, it is the head farthest above chance. The cell is the
    weight farthest above an equal share.
    """
    blind = blind_of(examples)
    pair_indices = [_pair(example["models"], blind, ranked) for example in examples]
    candidates = [number for number, pair in enumerate(pair_indices) if pair]
    if not candidates:
        return None
    best = max(
        candidates, key=lambda number: _contrast(examples[number]["models"], pair_indices[number])
    )
    indices = pair_indices[best]
    better = examples[best]["models"][indices[-1]]
    site, head = max(_heads(better), key=lambda entry: _salience(*entry))
    query, key = _cell(site, head)
    has_effects = site["effects"] is not None
    cell = {"site": site["name"], "head": head, "query": query, "key": key, "measured": has_effects}
    return {"example": best, "models": indices, **cell}


def _pair(models: Sequence[Model], blind: str | None, ranked: Sequence[str]) -> list[int]:
    """Indices of the models to compare: the one without positions or the second best, then the best."""
    numbers = {model["encoding"]: number for number, model in enumerate(models) if model["sites"]}
    by_rank = [name for name in ranked if name in numbers]
    informed = [name for name in by_rank if name != blind]
    best = informed[0] if informed else blind
    others = [name for name in (blind, *by_rank) if name in numbers and name != best]
    names = [*others[:1], best]
    return [numbers[name] for name in names if name in numbers]


def _contrast(models: Sequence[Model], pair: Sequence[int]) -> tuple[bool, bool]:
    """Whether the better model is right, and whether the other one is wrong."""
    return models[pair[-1]]["correct"] is True, models[pair[0]]["correct"] is False


def _heads(model: Model) -> Iterator[tuple[Site, int]]:
    for site in model["sites"]:
        for head in range(site["heads"]):
            yield site, head


def _salience(site: Site, head: int) -> tuple[float, float]:
    """The effect of a head on the answer, then its distance from chance."""
    effect = float("-inf") if site["effects"] is None else site["effects"][head]
    return effect, site["salience"][head]


def _cell(site: Site, head: int) -> tuple[int, int]:
    """Query and key of the weight that is farthest above an equal share of the visible keys."""
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
