"""What a program reads: the inputs of a model as tensors alone, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.patches import Images

Inputs = Sequence[Tokens | Images]
"""What a model is called with."""


@dataclass(frozen=True, eq=False)
class Read:
    """One of the inputs, and the tensors that stand for it in the graph: ids and places, ids alone, or pixels."""

    name: str
    given: Tokens | Images

    @cached_property
    def counted(self) -> bool:
        """Whether these are tokens at 0, 1, 2, ..., of which there may be any number."""
        if isinstance(self.given, Images):
            return False
        there = self.given.positions
        plain = Positions.sequence(there.length, frame=there.frame)
        alike = [
            there.axes == plain.axes,
            there.unplaced is None and there.relations is None and there.extent is None,
            torch.equal(there.coordinates, plain.coordinates),
            torch.equal(there.order, plain.order),
        ]
        return all(alike)

    def tensors(self) -> list[Tensor]:
        if isinstance(self.given, Images):
            return [self.given.pixels]
        if self.counted:
            return [self.given.ids, self.given.positions.index()]
        return [self.given.ids]

    def again(self, tensors: Iterator[Tensor]) -> Tokens | Images:
        """The input that the next of these tensors stand for."""
        if isinstance(self.given, Images):
            return Images(next(tensors))
        ids_1L, positions = next(tensors), self.given.positions
        if self.counted:
            index_L = next(tensors)
            order_L = torch.arange(ids_1L.shape[1])
            positions = replace(positions, coordinates=index_L.unsqueeze(-1), order=order_L)
        return Tokens(ids_1L, positions)

    def longer(self, least: int) -> Read:
        """With two tokens at least, and more: `torch.export` takes sizes of 0 and 1, and sizes that are alike, for
        granted."""
        if not self.counted or not isinstance(self.given, Tokens):
            return self
        ids_1L = self.given.ids
        missing = max(0, 2 + least - ids_1L.shape[1])
        more_1L = ids_1L[:, -1:].expand(1, missing)
        ids_1L = torch.cat((ids_1L, more_1L), 1)
        places = Positions.sequence(ids_1L.shape[1], frame=self.given.positions.frame)
        return Read(self.name, Tokens(ids_1L, places))


def read_of(inputs: Inputs) -> list[Read]:
    """The inputs by name. Raises UserError for more than one row, and for padding."""
    read = []
    for place, given in enumerate(inputs):
        last = place == len(inputs) - 1
        if isinstance(given, Images):
            _check_one(len(given.pixels), given.keep)
            read.append(Read("image", Images(given.pixels)))
            continue
        _check_one(len(given.ids), given.keep)
        read.append(Read("target" if last else "source", Tokens(given.ids, given.positions)))
    return read


def _check_one(rows: int, keep: Tensor | None) -> None:
    if rows != 1 or (keep is not None and not bool(keep.all())):
        raise UserError(
            "a page runs one input at a time, without padding: expected a batch of one whole input"
        )
