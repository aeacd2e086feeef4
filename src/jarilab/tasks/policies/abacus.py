"""Positions of digits within their number.

*Transformers Can Do Arithmetic with the Right Embeddings* (McLeish et al. 2024).
"""

from __future__ import annotations

from typing import Annotated, final

from annotated_types import Ge, Le

from jarilab.core.shapes import Tensor
from jarilab.tasks.policies.base import PositionPolicy, Sequences, drawn_offsets, registry


@final
@registry.register("abacus")
class Abacus(PositionPolicy):
    """Numbers the digits of each number from 1 in the order they are written. Other tokens are at 0 (McLeish et al.
    2024).

    In training, the numbers of an example start at 1 plus a random offset; outside training at 1. Digits of equal place
    value agree if all numbers are written from the ones up, as in the paper. Two numbers of one text look alike, so an
    encoder cannot tell i - j from j - i.

    largest: the largest offset; 99 in the paper.
    """

    random_in_training = True

    def __init__(self, *, largest: Annotated[int, Ge(0), Le(2**24)] = 99):
        self.largest = largest

    def places(self, sequences: Sequences, seed: int | None) -> Tensor:
        digits_BL = sequences.digits
        offset_B1 = drawn_offsets(sequences, self.largest, seed)
        place_BL = sequences.digit_index + 1 + offset_B1
        return place_BL.masked_fill(~digits_BL, 0)

    def reach(self, longest: int) -> int:
        return self.largest + longest + 1
