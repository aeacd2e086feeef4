"""Answers to a batch of sources, by greedy or beam search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from jarilab.core.devices import CPU, checked_autocast, to_device
from jarilab.core.shapes import Int, Tensor
from jarilab.models.base import Places, in_order
from jarilab.models.decoding.beam_search import MOST_PENALTY, beam
from jarilab.models.decoding.greedy_search import greedy
from jarilab.models.decoding.hypotheses import Hypothesis
from jarilab.positions.coordinates import Tokens


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Options of a search.

    beam_size: hypotheses of each source; 1 is greedy. length_penalty: the log-probability of a hypothesis is
    divided by its length to this power. no_repeat: forbid repeated n-grams of this many tokens; 0 allows all.
    shortest: minimal tokens of an answer, with its end. longest: maximal tokens of an answer (default: the limit of
    the task, which holds for larger values too). precision: precision of matrix products. bfloat16 is faster on
    processors that support it, and may choose the other of two close answers.
    """

    beam_size: int = 1
    length_penalty: float = 1.0
    no_repeat: int = 0
    shortest: int = 0
    longest: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def plain(self) -> bool:
        """Whether this is greedy search without further rules."""
        free = not self.no_repeat and not self.shortest and 0 <= self.length_penalty <= MOST_PENALTY
        return self.beam_size == 1 and free


GREEDY = Decoding()


def answers(
    model: Any,
    sources: Tokens,
    decoding: Decoding = GREEDY,
    *,
    first: int,
    end: int,
    padding: int,
    limit: int,
    n_best: int = 1,
    places: Places = in_order,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best answers to each source, best first, on the CPU.

    first, end, padding: ids of these tokens. limit: maximal tokens of an answer, with its end. places: positions of the
    answers' tokens.
    """
    longest = limit if decoding.longest is None else min(limit, decoding.longest)
    # Around the whole search, so that autocast converts the weights once.
    precise = checked_autocast(model, decoding.precision, sources.ids.device)
    if not decoding.plain or n_best != 1:
        with precise:
            best = beam(
                model,
                sources,
                beam_size=decoding.beam_size,
                first=first,
                end=end,
                longest=longest,
                length_penalty=decoding.length_penalty,
                best=n_best,
                shortest=decoding.shortest,
                no_repeat=decoding.no_repeat,
                places=places,
            )
        return to_device(best, CPU)
    with precise:
        written = greedy(
            model, sources, first=first, end=end, padding=padding, longest=longest, places=places
        )
    written = to_device(written, CPU)
    length_B = _lengths(written.ids, end)
    # Summed in order, in float64, so that a total does not depend on the length of other rows.
    so_far_BL = written.log_probabilities.double().cumsum(1)
    totals = so_far_BL.gather(1, length_B.unsqueeze(1) - 1).squeeze(1).tolist()
    penalty = decoding.length_penalty
    rows = zip(written.ids, written.log_probabilities, length_B.tolist(), totals, strict=True)
    return [
        [Hypothesis(ids[:length], logs[:length], total, total / _power(length, penalty))]
        for ids, logs, length, total in rows
    ]


def _lengths(ids_BL: Int[Tensor, "B L"], end: int) -> Int[Tensor, " B"]:
    """Return the number of tokens up to the end. Padding before it counts: an untrained model may draw it."""
    is_end_BL = ids_BL == end
    before_end_BL = is_end_BL.cumsum(1) - is_end_BL.long() == 0
    return before_end_BL.sum(1)


def _power(length: int, penalty: float) -> float:
    """`length ** penalty`; infinity where that is too large for a float."""
    try:
        return length**penalty
    except OverflowError:
        return math.inf
