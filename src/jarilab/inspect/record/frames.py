"""Which module of a model runs, what it reads, and what its attention is called."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch
from torch import nn

from jarilab.core.shapes import Tensor
from jarilab.inspect.record.heard import Heard
from jarilab.inspect.record.naming import names_of

_OF_VALUES = re.compile(r"(^|_)w?v(alues?)?(_|$)", re.IGNORECASE)


@dataclass(eq=False)
class Frame:
    """A module that is running: its path in the model, and what its parts read and gave."""

    path: str
    module: nn.Module
    batch: int
    read: list[Tensor] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)

    def reads_two(self) -> bool:
        """Whether what it maps to queries and to keys are two sequences. What a part of it gave is none; what
        was computed twice is one."""
        given = {_memory(tensor) for tensor in self.given}
        sources = {_memory(tensor) for tensor in self.read} - given
        if len(sources) < 2:
            return False
        first, *others = [tensor for tensor in self.read if _memory(tensor) in sources]
        return not all(
            first.device == other.device and torch.equal(first, other) for other in others
        )

    def packs(self, q: Tensor, k: Tensor) -> bool:
        """Whether the heads that share keys stand where queries do: transformers asks so for a single query."""
        share = getattr(self.module, "num_key_value_groups", 1)
        heads = getattr(getattr(self.module, "config", None), "num_attention_heads", None)
        return share > 1 and q.shape[2] == share and q.shape[1] * share == heads


class Sites:
    """The names of what is heard in a model, given when a class of modules is first heard."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._names: dict[str, str] = {}

    def of(self, frame: Frame, heard: Heard) -> str:
        if frame.path not in self._names:
            found = names_of(self._model, frame.module, heard.looks_back(), heard.cross)
            taken = set(self._names.values())
            clash = bool(taken & set(found.values()))
            new = {path: path if clash else name for path, name in found.items()}
            self._names = {**new, **self._names}
        return self._names[frame.path]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def is_of_values(path: str) -> bool:
    """Whether a map is called that of values: to them positions are often not added, which makes no second sequence."""
    return _OF_VALUES.search(path.rpartition(".")[2]) is not None


def is_map(module: nn.Module) -> bool:
    """Whether it multiplies by a matrix: a linear map, whatever its class is called."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)
