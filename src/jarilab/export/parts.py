"""A model as functions of tensors alone, which other programs run: its forward, or one step of its writing.

A part is one such function. An encoder-decoder has two: `encoder` reads sources once and gives the keys and values that
the decoder looks at; `decoder` reads the tokens of one step with the keys and values of those before, and gives scores
and the keys and values of all. A language model is a `decoder` without a source; a model of images is a `model`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from jarilab.attention.module import AttentionKernel
from jarilab.core.shapes import Tensor

Run = Callable[[str, Sequence[Tensor]], Sequence[Tensor]]
"""Another program: the outputs of a part, which is called by its name, on these inputs."""


@dataclass(frozen=True, eq=False)
class Input:
    """axes: the name of each axis whose size is free, the size of each other. example: one whose free sizes are 2 or
    more, since `torch.export` takes 0 and 1 for granted."""

    name: str
    axes: tuple[str | int, ...]
    example: Tensor

    @property
    def free(self) -> list[int]:
        """The axes whose size is free."""
        return [axis for axis, size in enumerate(self.axes) if isinstance(size, str)]

    @property
    def nothing(self) -> Tensor:
        """Of one row, before anything was read."""
        axis = self.axes.index("before")
        return self.example[:1].narrow(axis, 0, 0)

    @property
    def described(self) -> dict[str, Any]:
        dtype = str(self.example.dtype).removeprefix("torch.")
        return {"name": self.name, "dtype": dtype, "shape": list(self.axes)}


@dataclass(frozen=True, eq=False)
class Part:
    """One function. outputs: their names."""

    name: str
    module: nn.Module
    inputs: Sequence[Input]
    outputs: Sequence[str]


class Exportable(ABC):
    """A model as parts. Raises UserError for a model that has none."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """They compute in float32, in evaluation."""

    @abstractmethod
    def compared(self, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
        """What another program says of drawn inputs of several sizes, and what the model itself says of them, by the
        kernels and the cache that it answers with. Both methods are called where no gradients are asked for."""


def by_definition(model: nn.Module) -> Any:
    """A copy in float32 and evaluation whose attention is computed by the definition: other kernels are chosen by the
    length of what is read, which a graph must not be."""
    plain = copy.deepcopy(model).float().eval()
    for part in plain.modules():
        if isinstance(part, AttentionKernel):
            part.kernel = "definition"
    return plain
