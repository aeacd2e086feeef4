"""Conversion of a model's inputs to plain tensors and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.patches import Images


@dataclass(frozen=True)
class PaddedIds:
    """Ids `(1, L)` that are an input of a fixed program. What stands behind them must not matter.

    name: of the argument of the model. length: of the program's input.
    """

    name: str
    length: int


@dataclass(frozen=True, eq=False)
class FixedInput:
    """The only input that the program of another library's model reads. It is a constant of the program.

    arguments: of the model. scores: reads scores or vectors `(P, V)` from its outputs. paths: of the module that
    attends, by site. padded: ids that may change; the others are constant.
    """

    arguments: Mapping[str, Any]
    scores: Callable[[Any], Tensor]
    paths: Mapping[str, str]
    padded: PaddedIds | None = None

    @property
    def ids(self) -> list[Tensor]:
        """The ids that may change, if there are any."""
        return [] if self.padded is None else [self.arguments[self.padded.name]]

    def longest(self) -> FixedInput:
        """The same with ids of the program's length."""
        if self.padded is None:
            return self
        missing = self.padded.length - self.ids[0].shape[1]
        ids_1L = functional.pad(self.ids[0], (0, missing))
        return self.with_ids([ids_1L])

    def with_ids(self, ids: Sequence[Tensor]) -> FixedInput:
        """The same with other ids."""
        if self.padded is None:
            return self
        return replace(self, arguments={**self.arguments, self.padded.name: ids[0]})


Inputs: TypeAlias = Sequence[Tokens | Images] | FixedInput
"""The arguments of a model."""


@dataclass(frozen=True, eq=False)
class Read:
    """An input of a model, which `tensors` gives to the graph and `again` makes from them.

    name: `source`, `target` or `image`.
    """

    name: str
    value: Tokens | Images

    @cached_property
    def counted(self) -> bool:
        """Whether these are tokens at positions 0, 1, 2, ..., of any number."""
        if isinstance(self.value, Images):
            return False
        positions = self.value.positions
        plain = Positions.sequence(positions.length, frame=positions.frame)
        checks = [
            positions.axes == plain.axes,
            positions.unplaced is None and positions.relations is None and positions.extent is None,
            torch.equal(positions.coordinates, plain.coordinates),
            torch.equal(positions.order, plain.order),
        ]
        return all(checks)

    def tensors(self) -> list[Tensor]:
        """IDs `(1, L)`, and positions `(L,)` if they are counted; or pixels `(1, C, H, W)`."""
        if isinstance(self.value, Images):
            return [self.value.pixels]
        if self.counted:
            return [self.value.ids, self.value.positions.index()]
        return [self.value.ids]

    def again(self, tensors: Iterator[Tensor]) -> Tokens | Images:
        """The input with the next of these tensors in place of its own; the inverse of `tensors`."""
        if isinstance(self.value, Images):
            return Images(next(tensors))
        ids_1L, positions = next(tensors), self.value.positions
        if self.counted:
            index_L = next(tensors)
            order_L = torch.arange(ids_1L.shape[1])
            positions = replace(
                positions,
                coordinates=index_L.unsqueeze(-1),
                order=order_L,
                rising_order=order_L,
            )
        return Tokens(ids_1L, positions)

    def longer(self, least: int) -> Read:
        """The input with its last token repeated, up to at least `2 + least` tokens, if positions are counted."""
        if not self.counted or not isinstance(self.value, Tokens):
            return self
        ids_1L = self.value.ids
        # torch.export specializes on sizes 0 and 1, and on equal sizes.
        missing = max(0, 2 + least - ids_1L.shape[1])
        more_1L = ids_1L[:, -1:].expand(1, missing)
        ids_1L = torch.cat((ids_1L, more_1L), 1)
        places = Positions.sequence(ids_1L.shape[1], frame=self.value.positions.frame)
        return Read(self.name, Tokens(ids_1L, places))


def read_of(inputs: Sequence[Tokens | Images]) -> list[Read]:
    """The inputs, named: the last tokens are the target. Raises UserError for several rows and for padding."""
    read = []
    for number, value in enumerate(inputs):
        is_last = number == len(inputs) - 1
        if isinstance(value, Images):
            _check_one(len(value.pixels), value.keep)
            read.append(Read("image", Images(value.pixels)))
            continue
        _check_one(len(value.ids), value.keep)
        read.append(Read("target" if is_last else "source", Tokens(value.ids, value.positions)))
    return read


def _check_one(rows: int, keep: Tensor | None) -> None:
    if rows != 1 or (keep is not None and not bool(keep.all())):
        raise UserError(
            "a page runs one input at a time, without padding: expected a batch of one whole input"
        )
