"""Positions of digits in their number: *Transformers Can Do Arithmetic with the Right Embeddings* (McLeish et al.
2024)."""

from __future__ import annotations

from typing import Annotated, final

from annotated_types import Ge, Le

from jarilab.core.shapes import Tensor
from jarilab.tasks.policies.base import Policy, Sequences, drawn_offsets, registry


@final
@registry.register("abacus")
class Abacus(Policy):
    """Counts the digits of each number from 1 on, in the order they are written; what is no digit is at 0 (McLeish et
    al. 2024). In training all numbers of an example start at 1 plus an offset drawn anew; outside training at 1.

    Digits of equal place agree where all numbers are written from the ones up, as in the paper. Two numbers of one text
    look alike: where it matters which comes first, as in i - j, an encoder cannot tell.

    largest: the largest offset; the paper takes 99.
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
