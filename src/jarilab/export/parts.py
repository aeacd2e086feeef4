"""A model as functions of tensors, which other programs run: its forward, or one decoding step.

A part is one function. An encoder-decoder has two. `encoder` reads the source and returns its keys and values.
`decoder` reads the tokens of one step with the cached keys and values, and returns scores and the new cache. A language
model is a `decoder` without source. A model of images is a `model`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from jarilab.attention.module import AttentionKernel
from jarilab.core.shapes import Tensor

Run = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]
"""Another program: a function from the name and the inputs of a part to its outputs."""
Pairs = Iterator[tuple[Tensor, Tensor]]
"""Outputs of another program, each with that of the model."""
LONG: Mapping[str, int] = {"source": 64, "target": 64}
"""The longest comparison of a model without a run."""


@dataclass(frozen=True, eq=False)
class Input:
    """An input of a part. axes: the name of each dynamic axis, the size of the others. example: a tensor of it."""

    name: str
    axes: tuple[str | int, ...]
    # Its dynamic sizes are at least 2, since `torch.export` specializes on 0 and 1.
    example: Tensor

    @property
    def free(self) -> list[int]:
        """The dynamic axes."""
        return [axis for axis, size in enumerate(self.axes) if isinstance(size, str)]

    @property
    def nothing(self) -> Tensor:
        """An empty cache of one row. Only for an input with the axis `before`."""
        axis = self.axes.index("before")
        return self.example[:1].narrow(axis, 0, 0)

    @property
    def described(self) -> dict[str, Any]:
        dtype = str(self.example.dtype).removeprefix("torch.")
        return {"name": self.name, "dtype": dtype, "shape": list(self.axes)}


@dataclass(frozen=True, eq=False)
class Part:
    """A function of tensors. outputs: their names."""

    name: str
    module: nn.Module
    inputs: Sequence[Input]
    outputs: Sequence[str]


class Exportable(ABC):
    """A model as parts. Raises UserError for a model that has none."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """The parts, in float32 and evaluation mode."""

    @abstractmethod
    def compared(self, run: Run, longest: Mapping[str, int] = LONG) -> Pairs:
        """Outputs of another program and of the model on random inputs of several sizes.

        longest: the tokens of the longest input, by `source` and `target`. The model uses its own kernels and cache.
        Call both methods without gradients.
        """


def by_definition(model: nn.Module) -> Any:
    """A float32 copy in evaluation mode whose attention is computed by the definition."""
    plain = copy.deepcopy(model).float().eval()
    for part in plain.modules():
        if isinstance(part, AttentionKernel):
            part.kernel = "definition"
    return plain
