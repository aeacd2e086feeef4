"""Positions with a random start: SHAPE (Kiyono et al. 2021)."""

from __future__ import annotations

from typing import Annotated, final

from annotated_types import Ge, Le

from jarilab.core.shapes import Tensor
from jarilab.tasks.policies.base import PositionPolicy, Sequences, drawn_offsets, registry


@final
@registry.register("offset", "shape")
class Offset(PositionPolicy):
    """Shifts all positions of an example by a random amount in training, and by 0 outside it (SHAPE, Kiyono et al.
    2021).

    largest: the largest shift.
    """

    random_in_training = True

    def __init__(self, *, largest: Annotated[int, Ge(0), Le(2**24)] = 99):
        self.largest = largest

    def places(self, sequences: Sequences, seed: int | None) -> Tensor:
        return sequences.index + drawn_offsets(sequences, self.largest, seed)

    def reach(self, longest: int) -> int:
        return self.largest + longest
