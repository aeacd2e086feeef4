"""Positions that are random in training.

*Randomized Positional Encodings Boost Length Generalization of Transformers* (Ruoss et al. 2023); SHAPE (Kiyono et al.
2021).
"""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.nn.init import generator_for
from jarilab.tasks.policies.base import PositionPolicy, Sequences, drawn_offsets, registry


@final
@registry.register("randomized")
class Randomized(PositionPolicy):
    """Draws sorted positions from 0 ... `longest` - 1 in training, so longer texts bring no new position (Ruoss et al.
    2023).

    Outside training they are evenly spread: the paper draws there too, and these are the means of its draws. A text
    that is read as a whole spreads over its tokens, one that is written over its maximal length.

    longest: number of positions to draw from; 2048 in the paper.
    """

    random_in_training = True

    def __init__(self, *, longest: Annotated[int, Ge(1), Le(2**24)] = 2048):
        self.longest = longest

    def places(self, sequences: Sequences, seed: int | None) -> Tensor:
        counts_P = sequences.counts
        if seed is None:
            return self._spread(sequences, counts_P)
        self.reach(max(counts_P.tolist(), default=0))
        drawn_PL = self._drawn(counts_P, sequences.ids.shape[1], sequences.frame, seed)
        index_BL = sequences.index.expand_as(sequences.ids)
        return drawn_PL[sequences.document, index_BL]

    def _spread(self, sequences: Sequences, counts_P: Int[Tensor, " P"]) -> Tensor:
        """Return the middles of equal parts of the range, one for each token."""
        if sequences.max_new_tokens is None:
            count_BL = counts_P[sequences.document]
        else:
            count_BL = torch.full_like(sequences.ids, sequences.max_new_tokens)
        middle_BL = (2 * sequences.index + 1) * self.longest // (2 * count_BL.clamp_min(1))
        # `count` omits padding, so its index may lie beyond.
        return middle_BL.clamp_max(self.longest - 1)

    def _drawn(
        self, counts_P: Int[Tensor, " P"], length: int, frame: str, seed: int
    ) -> Int[Tensor, "P L"]:
        """Draw sorted positions for each document's tokens. Further tokens get the last position."""
        generator = generator_for(seed, frame)
        chance_PN = torch.rand(len(counts_P), self.longest, generator=generator)
        count = min(length, self.longest)
        # The indices of the largest of independent, equally distributed numbers are a random subset.
        chosen_PL = chance_PN.topk(count).indices
        behind_PL = torch.arange(count) >= counts_P.cpu().unsqueeze(1)
        sorted_PL = chosen_PL.masked_fill(behind_PL, self.longest - 1).sort(1).values
        return sorted_PL.to(counts_P.device)

    def reach(self, longest: int) -> int:
        if longest > self.longest:
            raise UserError(
                f"randomized: expected longest={longest} or more, a position for each token; got longest="
                f"{self.longest}; give a few times as many, to draw from"
            )
        return self.longest


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
