"""Positions of digits in numbers.

*Position Coupling* (Cho et al. 2024); *Transformers Can Do Arithmetic with the Right Embeddings* (McLeish et al. 2024).
"""

from __future__ import annotations

from typing import Annotated, final

from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.tasks.policies.base import PositionPolicy, Sequences, drawn_offsets, registry


@final
@registry.register("coupling")
class Coupling(PositionPolicy):
    """Gives digits of equal significance one position, in operands and answer: 1 for ones, 2 for tens, ... (Cho et al.
    2024).

    Other tokens are at 0. In training, all positions of an example are shifted by a random offset. A digit's
    significance must be known when it is written, so answers are written from the ones up, or padded to one width. Two
    numbers of one text look alike, so an encoder cannot tell i - j from j - i.

    largest: the largest offset.
    """

    random_in_training = True

    def __init__(self, *, largest: Annotated[int, Ge(0), Le(2**24)] = 99):
        self.largest = largest

    def places(self, sequences: Sequences, seed: int | None) -> Tensor:
        significance_BL = _significance(sequences)
        place_BL = (significance_BL + 1).masked_fill(~sequences.digits, 0)
        return place_BL + drawn_offsets(sequences, self.largest, seed)

    def reach(self, longest: int) -> int:
        return self.largest + longest + 1


def _significance(sequences: Sequences) -> Int[Tensor, "B L"]:
    """Return 0 for ones, 1 for tens, ... Raises UserError if it is not known yet."""
    numbers, index_BL = sequences.known_numbers, sequences.digit_index
    if numbers.ones_first:
        return index_BL
    if numbers.width is not None:
        # A model may write more digits than the width.
        return (numbers.width - 1 - index_BL).clamp_min(0)
    if sequences.max_new_tokens is None:
        return _digits_behind(sequences)
    raise UserError(
        "coupling: expected answers written from the ones up, or of one width; got plain ones, whose length is unknown "
        "while they are written; use --answers reversed or padded"
    )


def _digits_behind(sequences: Sequences) -> Int[Tensor, "B L"]:
    """Return the number of digits of the same number after each token."""
    turned = Sequences(sequences.ids.flip(1), numbers=sequences.numbers)
    return turned.digit_index.flip(1)


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
