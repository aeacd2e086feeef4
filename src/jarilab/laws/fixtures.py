"""Test inputs of the laws: random numbers, tokens, parameters and variants of a spec."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from jarilab.core.options import options_of
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, registry
from jarilab.encodings.compose import split_sum
from jarilab.nn.init import generator_for

# Lengths that are all different, so that no axis passes for another: B 2, K and L 7, H 6, E 8, E' 5, D 48.
BATCH, LENGTH, HEAD_WIDTH, VALUE_WIDTH = 2, 7, 8, 5
VOCABULARY = 11

M = TypeVar("M", bound=nn.Module)


def encoding_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the encodings in a model, by path."""
    parameters = {}
    for path, module in model.named_modules():
        if isinstance(module, Encoding):
            parameters |= {f"{path}.{name}": value for name, value in module.named_parameters()}
    return parameters


def trainable_parameters(encoding: Encoding) -> dict[str, Tensor]:
    """The parameters that training changes, by names that no q, k or v has."""
    named = encoding.named_parameters()
    return {f"parameter {name}": value for name, value in named if value.requires_grad}


def randomise(model: M) -> M:
    """Draw the encodings' parameters from a standard normal, so that none is too small or symmetric to matter.

    Matrices of modules inside an encoding are scaled to keep the size of vectors.
    """
    own_ids = {id(parameter) for module in model.modules() for parameter in _own(module)}
    with torch.no_grad():
        for name, parameter in encoding_parameters(model).items():
            if not parameter.requires_grad:  # a constant
                continue
            is_map = parameter.ndim > 1 and id(parameter) not in own_ids
            size = parameter[0].numel() ** -0.5 if is_map else 1.0
            parameter.copy_(size * noise(name, *parameter.shape))
    return model


def _own(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that an encoding has itself."""
    return list(module.parameters(recurse=False)) if isinstance(module, Encoding) else []


def noise(name: str, *shape: int) -> Tensor:
    """Standard normal numbers in float64, fixed by name and shape."""
    return torch.randn(shape, generator=generator_for(0, name), dtype=torch.float64)


def tokens(name: str) -> Tensor:
    """Token ids, `(B, L)`."""
    return torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator_for(0, name))


def variants(spec: str) -> Iterator[str]:
    """The same spec with one option changed at a time; its constructor may refuse it."""
    parts = [registry.spec(part) for part in split_sum(spec)]
    for i, part in enumerate(parts):
        for name, option in options_of(part.target).items():
            value = part.options.get(name, option.default)
            for other in _other_values(option.annotation, value):
                changed = replace(part, options={**part.options, name: other})
                every = (*parts[:i], changed, *parts[i + 1 :])
                yield "+".join(map(str, every))


def _other_values(annotation: Any, value: Any) -> list[Any]:
    """All other choices of a fixed set, or other numbers; otherwise nothing."""
    if typing.get_origin(annotation) is Literal:
        return [choice for choice in typing.get_args(annotation) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if value is None:  # off by default
        kinds = typing.get_args(annotation)
        return [4] if int in kinds else [0.5, 4.0] if float in kinds else []
    if isinstance(value, int):
        return [value + 2, value // 2]
    return [value / 2, value / 64, 2 * value] if isinstance(value, float) else []
