"""Models of transformers that compute what a model of jari does, weight for weight.

Embeddings are multiplied by their scale beforehand, and queries by what the other model divides scores by and this one
does not. Positions are read from what an encoding does (`positions.py`), not from its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.data.text import END, FIRST, PADDING
from jarilab.export.description import beyond
from jarilab.export.positions import Places, places_of
from jarilab.nn.layers import ACTIVATIONS

LEAST = 1024
"""Positions that are written where an encoding has no end."""
HIDDEN = -1e9
"""What is added to the score of a token that there is not."""
ROWS, LENGTH = 3, 7

Weights = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Equal:
    """kind, config: names of classes of transformers. settings: of the latter. compared: given the other model, what it
    says and what this one does."""

    kind: str
    config: str
    settings: Mapping[str, Any]
    weights: Weights
    compared: Callable[[Any], Iterator[tuple[Tensor, Tensor]]]


def refuse(why: str, instead: str) -> NoReturn:
    """Raises UserError. why: the settings that stand in the way. instead: those that would do."""
    raise UserError(
        f"this model has no equal in transformers: {why}; train with {instead}, or write graphs by --to onnx"
    )


def check_stack(layers: list[Any], norm: str) -> None:
    """Raises UserError for norms that stand elsewhere."""
    place = layers[0].feed_forward_residual.place
    if place != norm:
        refuse(f"norm={place}", f"--norm {norm}")


def check_options(model: nn.Module) -> None:
    """Raises UserError for options of layers that are not there."""
    for setting, instead in beyond(model):
        refuse(setting, instead)


def added_or_turned(encoding: Any) -> Places:
    """A table or a rotation. Raises UserError where the encoding is neither."""
    hooks = encoding.by_layer[0].hooks
    if not (hooks <= {"embed"} or hooks == {"rotate"}):
        used = " and ".join(sorted(hooks))
        refuse(f"{encoding.spec} uses {used}", "--encoding sinusoidal, learned or rotary")
    return places_of(encoding, LEAST)


def special_tokens(first: str) -> dict[str, int]:
    """Their numbers, as a configuration calls them."""
    return {first: FIRST, "eos_token_id": END, "pad_token_id": PADDING}


def drawn_ids(vocab_size: int, most: int | None) -> Tensor:
    """Sequences to compare on, of as many tokens as a model has positions for."""
    length = LENGTH if most is None else min(LENGTH, most)
    generator = torch.Generator().manual_seed(1)
    # No padding, which other models hide by its number.
    return torch.randint(PADDING + 1, vocab_size, (ROWS, length), generator=generator)


def activation_of(layer: Any) -> str:
    """Its name in transformers."""
    names = {function: name for name, function in ACTIVATIONS.items()}
    name = names[layer.feed_forward.activation]
    return {"gelu_tanh": "gelu_new"}.get(name, name)


def scaled_rows(embedding: Any) -> Tensor:
    """The vectors of tokens, as loud as they are used."""
    return embedding.weight * embedding.scale


def with_rows(rows: Tensor, count: int) -> Tensor:
    """So many rows, zeros behind those that there are."""
    return nn.functional.pad(rows, (0, 0, 0, count - len(rows)))


def norm_weights(at: str, norm: Any) -> Weights:
    """Of a layer norm, under this name."""
    return {f"{at}.weight": norm.weight, f"{at}.bias": norm.bias}


def map_weights(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias."""
    return linear.weight, linear.bias


def query_weights(attention: Any) -> tuple[Tensor, Tensor]:
    """As large as it has to be where all scores are divided by the square root of the head width."""
    factor = attention.scale * attention.site.d_head**0.5
    return attention.query.weight * factor, attention.query.bias * factor


def joined_weights(attention: Any) -> tuple[Tensor, Tensor]:
    """Queries, keys and values by one map."""
    maps = [query_weights(attention), map_weights(attention.key), map_weights(attention.value)]
    weights, biases = zip(*maps, strict=True)
    return torch.cat(weights), torch.cat(biases)
