"""The models of the table of architectures, by family: each a model, a call and its own maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


@dataclasses.dataclass
class Case:
    """A built architecture. call: runs one forward. own_maps: an output and its maps."""

    model: nn.Module
    counts: str
    call: Callable[[nn.Module], Any]
    own_maps: Callable[[], tuple[Any, list[Tensor]]] = lambda: (None, [])
    remark: str = ""


def transformers_rows() -> list[str]:
    import architecture_list

    return [row.name for row in architecture_list.ROWS]


def transformers_case(name: str) -> Case:
    import architecture_list
    import tiny_models

    row = next(row for row in architecture_list.ROWS if row.name == name)
    model: Any = tiny_models.build(row.model_type or row.name, row.overrides, row.cls)
    inputs = row.inputs(model) if row.inputs else tiny_models.inputs_of(model)

    def own_maps() -> tuple[Any, list[Tensor]]:
        model.set_attn_implementation("eager")
        torch.manual_seed(1)
        with torch.no_grad():
            output = model(**inputs, output_attentions=True)
        return output, list(maps_in(output))

    return Case(model, row.counts, lambda model: model(**inputs), own_maps, row.remark)


def maps_in(output: Any) -> Iterator[Tensor]:
    """The attention maps of an output of transformers, by the names of its fields."""
    if not isinstance(output, Mapping):
        return
    for name, value in output.items():
        if "attentions" in name:
            yield from _maps(value)
        elif isinstance(value, Mapping):
            yield from maps_in(value)


def _maps(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _maps(each)


def families() -> dict[str, tuple[list[str], Callable[[str], Case]]]:
    """The names of each family's architectures, and what builds them."""
    import architecture_others as others

    return {
        "transformers": (transformers_rows(), transformers_case),
        "timm": (list(others.TIMM), others.timm_case),
        "diffusers": (list(others.DIFFUSERS), others.diffusers_case),
        "x-transformers": (others.x_rows(), others.x_case),
        "torch": (list(others.TORCH), others.torch_case),
    }


def make(family: str, name: str) -> Case:
    return families()[family][1](name)
