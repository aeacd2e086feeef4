"""Choice of the next image code from its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.models.base import COLDEST, HOTTEST

NEVER = float("-inf")
MOST_GUIDANCE = 1000


@dataclass(frozen=True)
class CodeChoice:
    """Options for drawing the next image code, in the order in which they apply.

    temperature: 0 takes the most likely code. top_k, top_p: None turns a filter off. Raises UserError for values out of
    range.
    """

    guidance: float
    temperature: float
    top_k: int | None
    top_p: float | None

    def __post_init__(self) -> None:
        top_k, top_p = self.top_k, self.top_p
        guided = 0 <= self.guidance <= MOST_GUIDANCE
        self._check("guidance", guided, f"0 (no caption) to {MOST_GUIDANCE}; 1 is none, 2 is usual")
        warm = self.temperature == 0 or COLDEST <= self.temperature <= HOTTEST
        self._check("temperature", warm, f"0 (the likeliest always), or {COLDEST} to {HOTTEST}")
        self._check("top_k", top_k is None or top_k >= 1, "a count, 1 code or more")
        share = top_p is None or 0 < top_p <= 1
        self._check("top_p", share, "a probability above 0, 1 at most")

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise UserError(f"{name}: expected {expected}; got {getattr(self, name)}")

    def guided(self, each: Sequence[Float[Tensor, "B C"]]) -> Float[Tensor, "B C"]:
        """Return the scores with the caption, moved away from those without it, if there are any."""
        if len(each) == 1:
            return each[0]
        with_caption_BC, without_BC = each
        return torch.lerp(without_BC, with_caption_BC, self.guidance)

    def take(self, scores: Float[Tensor, "B C"], chance: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return one code for each row, by inverting the cumulative distribution at a number from 0 to 1."""
        if self.temperature == 0:
            return scores.argmax(-1)
        scores_BC = scores / self.temperature
        if self.top_k is not None:
            least_B1 = scores_BC.topk(min(self.top_k, scores_BC.shape[1])).values[:, -1:]
            scores_BC = scores_BC.masked_fill(scores_BC < least_B1, NEVER)
        if self.top_p is not None:
            scores_BC = scores_BC.masked_fill(_outside_nucleus(scores_BC, self.top_p), NEVER)
        # In float64, since the sum of many small probabilities loses digits.
        below_BC = scores_BC.double().softmax(-1).cumsum(-1)
        # The total may be rounded below 1, and no chance may lie above it.
        chance_B1 = chance.unsqueeze(1) * below_BC[:, -1:]
        # `right` skips codes without probability, also for a chance of 0.
        return torch.searchsorted(below_BC, chance_B1, right=True).squeeze(1)


def _outside_nucleus(scores_BC: Tensor, p: float) -> Bool[Tensor, "B C"]:
    """Return True for codes outside the nucleus, the fewest codes with a total probability of `p`."""
    ascending = scores_BC.sort(-1)
    below_BC = ascending.values.softmax(-1).cumsum(-1)
    outside_BC = below_BC <= 1 - p
    outside_BC[:, -1] = False  # the likeliest stays, whatever the sum was rounded to
    return torch.zeros_like(outside_BC).scatter(1, ascending.indices, outside_BC)
