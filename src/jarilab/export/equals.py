"""Models of transformers that are equivalent to a model of jari, weight for weight.

Embeddings are multiplied by their scale. Queries are multiplied to undo a division of the other model. `positions.py`
computes the positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.data.text import END, FIRST, PADDING
from jarilab.export.description import unsupported_options
from jarilab.export.positions import Places, places_of
from jarilab.huggingface.copying import Names, source_of
from jarilab.nn.sublayers import ACTIVATIONS

LEAST = 1024
"""Positions that are written for an encoding without limit."""
HIDDEN = -1e9
"""Added to the score of a token that does not exist."""
ROWS, LENGTH = 3, 7

Weights = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Equivalent:
    """An equivalent model.

    kind, config: class names of transformers. settings: arguments of the config. weights: its state by name. compared:
    a function from the other model to pairs of its outputs and those of the run.
    """

    kind: str
    config: str
    settings: Mapping[str, Any]
    weights: Weights
    compared: Callable[[Any], Iterator[tuple[Tensor, Tensor]]]


def refuse(why: str, instead: str) -> NoReturn:
    """Raises UserError. why: the options that have no equivalent. instead: options that have one."""
    raise UserError(
        f"this model has no equivalent in transformers: {why}; train with {instead}, or write graphs by --to onnx"
    )


def check_stack(layers: list[Any], norm: str) -> None:
    """Raises UserError unless the norms of the layers are at `norm`, which is `pre` or `post`."""
    place = layers[0].feed_forward_residual.place
    if place != norm:
        refuse(f"norm={place}", f"--norm {norm}")


def check_options(model: nn.Module) -> None:
    """Raises UserError for layer options that transformers lacks."""
    for setting, instead in unsupported_options(model):
        refuse(setting, instead)


def table_or_rotation(encoding: Any) -> Places:
    """The positions of an encoding, as a table or a rotation. Raises UserError for other encodings."""
    hooks = encoding.by_layer[0].hooks
    if not (hooks <= {"embed"} or hooks == {"rotate"}):
        used = " and ".join(sorted(hooks))
        refuse(f"{encoding.spec} uses {used}", "--encoding sinusoidal, learned or rotary")
    return places_of(encoding, LEAST)


def special_tokens(first: str) -> dict[str, int]:
    """The IDs of special tokens by the names of a config."""
    return {first: FIRST, "eos_token_id": END, "pad_token_id": PADDING}


def drawn_ids(vocab_size: int, most: int | None) -> Tensor:
    """Random sequences to compare on `(ROWS, L)`, of LENGTH tokens, or of `most` positions if they are fewer."""
    length = LENGTH if most is None else min(LENGTH, most)
    generator = torch.Generator().manual_seed(1)
    # Without padding, which other models mask by its ID.
    return torch.randint(PADDING + 1, vocab_size, (ROWS, length), generator=generator)


def activation_of(layer: Any) -> str:
    """The name of a layer's activation in transformers."""
    names = {function: name for name, function in ACTIVATIONS.items()}
    name = names[layer.feed_forward.activation]
    return {"gelu_tanh": "gelu_new"}.get(name, name)


def scaled_rows(embedding: Any) -> Tensor:
    """The embedding vectors times their scale."""
    return embedding.weight * embedding.scale


def with_rows(rows: Tensor, count: int) -> Tensor:
    """The rows, padded with zeros to `count`."""
    return nn.functional.pad(rows, (0, 0, 0, count - len(rows)))


def named_weights(model: nn.Module, names: Names) -> Weights:
    """The weights that the other model has too, by the table that copies them from it.

    Queries are for scores divided by the square root of d_head. What the other model stores in another shape is left
    out.
    """
    factors = {
        f"{at}.query": module.scale * module.site.d_head**0.5
        for at, module in model.named_modules()
        if isinstance(module, Attention)
    }
    weights: Weights = {}
    for path, weight in model.state_dict().items():
        with contextlib.suppress(KeyError):
            name, change = source_of(path, names)
            if change is None:
                weights[str(name)] = weight * factors.get(path.rpartition(".")[0], 1.0)
    return weights


def map_weights(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of a linear map."""
    return linear.weight, linear.bias


def joined_weights(attention: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of queries, keys and values as one linear map."""
    factor = attention.scale * attention.site.d_head**0.5
    query, maps = attention.query, (attention.key, attention.value)
    weights = [query.weight * factor, *(linear.weight for linear in maps)]
    biases = [query.bias * factor, *(linear.bias for linear in maps)]
    return torch.cat(weights), torch.cat(biases)
