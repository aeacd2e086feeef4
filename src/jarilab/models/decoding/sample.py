"""Sampling, and filters of the scores.

Filters map scores `(B, V)` to new scores, with minus infinity for excluded tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.models.base import COLDEST, HOTTEST, Generates, Places, in_order
from jarilab.models.decoding.replay import Steps
from jarilab.positions.coordinates import Tokens

NEVER = float("-inf")
LEAST_PENALTY, MOST_PENALTY = 0.01, 100


@dataclass(frozen=True, eq=False)
class Drawn:
    """One more token of each row.

    ids: `(B,)`; a finished row repeats its end token. log_probabilities: `(B,)`, of the model before the filters; 0 in
    finished rows. ended: `(B,)`, the rows finished by now.
    """

    ids: Int[Tensor, " B"]
    log_probabilities: Float[Tensor, " B"]
    ended: Bool[Tensor, " B"]


def penalise_repetition(
    scores: Float[Tensor, "B V"], ids: Int[Tensor, "B L"], penalty: float
) -> Float[Tensor, "B V"]:
    """Lower the scores of earlier tokens: *CTRL* (Keskar et al. 2019), section 4.1.

    Positive scores are divided by `penalty`, negative ones multiplied. 1 changes nothing.
    """
    there_BL = scores.gather(1, ids)
    lowered_BL = torch.where(there_BL < 0, there_BL * penalty, there_BL / penalty)
    return scores.scatter(1, ids, lowered_BL)


def keep_top_k(scores: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """Keep the `k` most likely tokens: *Hierarchical Neural Story Generation* (Fan et al. 2018), section 5.3."""
    least_B1 = scores.topk(min(k, scores.shape[1])).values[:, -1:]
    return scores.masked_fill(scores < least_B1, NEVER)


def keep_top_p(scores: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Keep the nucleus, the fewest tokens with a total probability of `p`.

    *The Curious Case of Neural Text Degeneration* (Holtzman et al. 2020), equations 2 and 3.
    """
    ascending = scores.sort(-1)
    below_BV = ascending.values.softmax(-1).cumsum(-1) <= 1 - p
    below_BV[:, -1] = False  # the likeliest stays, whatever the sum was rounded to
    outside_BV = torch.zeros_like(below_BV).scatter(1, ascending.indices, below_BV)
    return scores.masked_fill(outside_BV, NEVER)


def keep_min_p(scores: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Keep tokens at least `p` times as likely as the most likely one.

    *Turning Up the Heat: Min-p Sampling* (Nguyen et al. 2024), section 3.
    """
    # The ratio of two probabilities is the difference of their scores: no softmax is needed.
    least_B1 = scores.amax(-1, keepdim=True) + math.log(p)
    return scores.masked_fill(scores < least_B1, NEVER)


def check_option(name: str, value: Any, holds: bool, expected: str) -> None:
    """Raises UserError unless an option holds."""
    if not holds:
        optional = "; omit it to keep every token" if name in ("top_k", "top_p", "min_p") else ""
        raise UserError(f"{name}: expected {expected}, got {value}{optional}")


@final
@dataclass(frozen=True)
class Filters:
    """Repetition penalty, temperature, top-k, top-p and min-p, which apply in this order. None turns a filter off.

    Raises UserError for values out of range.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        temperature, top_k, top_p = self.temperature, self.top_k, self.top_p
        min_p, penalty = self.min_p, self.repetition_penalty
        warm = temperature == 0 or COLDEST <= temperature <= HOTTEST
        expected = f"0 (the likeliest always), or {COLDEST} to {HOTTEST}"
        check_option("temperature", temperature, warm, expected)
        check_option("top_k", top_k, top_k is None or top_k >= 1, "1 token or more")
        share = top_p is None or 0 < top_p <= 1
        check_option("top_p", top_p, share, "a probability above 0, 1 at most")
        share = min_p is None or 0 < min_p <= 1
        check_option("min_p", min_p, share, "a share above 0, 1 at most")
        held = LEAST_PENALTY <= penalty <= MOST_PENALTY
        expected = f"{LEAST_PENALTY} to {MOST_PENALTY}; 1 is none, 1.2 is usual"
        check_option("repetition_penalty", penalty, held, expected)

    def apply(self, scores_BV: Tensor) -> Tensor:
        """Return the scores divided by the temperature, without the tokens that top-k, top-p and min-p exclude."""
        scores_BV = scores_BV / self.temperature
        if self.top_k is not None:
            scores_BV = keep_top_k(scores_BV, self.top_k)
        if self.top_p is not None:
            scores_BV = keep_top_p(scores_BV, self.top_p)
        if self.min_p is not None:
            scores_BV = keep_min_p(scores_BV, self.min_p)
        return scores_BV

    def take(
        self, scores_BV: Tensor, ids_BL: Tensor, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """Return a token for each row, `(B,)`. generators: one for all rows, or one for each."""
        if self.repetition_penalty != 1:
            scores_BV = penalise_repetition(scores_BV, ids_BL, self.repetition_penalty)
        if self.temperature == 0:
            return scores_BV.argmax(-1)
        parts = self.apply(scores_BV).softmax(-1).chunk(len(generators))
        pairs = zip(parts, generators, strict=True)
        drawn = [torch.multinomial(part, 1, generator=generator) for part, generator in pairs]
        return torch.cat(drawn).squeeze(1)


def sample(
    model: Generates,
    prompt: Int[Tensor, "B L"],
    *,
    source: Tokens | None = None,
    end: int,
    longest: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | Sequence[int],
    context: int | None = None,
    places: Places = in_order,
) -> Iterator[Drawn]:
    """Draw tokens after a prompt until every row has ended. Yields each token as soon as it is drawn.

        for drawn in jarilab.sample(model, prompt_ids_BL, end=2, longest=100, seed=1):
            print(drawn.ids)

    prompt: at least 1 token in each row, all of one length. source: of an encoder-decoder, whose prompt is each
    answer's first token. end: id of the end token, -1 for none. longest: maximal drawn tokens, with the end.
    temperature: scores are divided by it; 0 takes the most likely token. The other options are the filters above, None
    to turn one off, in this order: repetition_penalty (which includes the prompt), temperature, top_k, top_p, min_p.
    context: tokens that the model can read at once. When they are full, the newest half is read again as if the text
    began there. places: positions of the tokens, which may differ between rows.

    Tokens are drawn on the CPU by a generator with this seed. With one seed for each row, a row is drawn as it would be
    alone. Raises UserError before drawing for impossible options.
    """
    filters = Filters(temperature, top_k, top_p, min_p, repetition_penalty)
    if prompt.ndim != 2 or 0 in prompt.shape:
        raise UserError(
            f"expected a prompt of 1 token or more for each row, (B, L), got {tuple(prompt.shape)}; "
            "begin with the token that texts begin with"
        )
    if longest < 1:
        raise UserError(f"expected 1 token or more to draw, got longest {longest}")
    if context is not None and context < 1:
        raise UserError(
            f"expected a context of 1 token or more, got {context}; omit it where there is no limit"
        )
    seeds = (seed,) if isinstance(seed, int) else seed
    if len(seeds) not in (1, len(prompt)):
        raise UserError(
            f"expected one seed, or one for each of the {len(prompt)} rows, got {len(seeds)}"
        )
    generators = [torch.Generator().manual_seed(one) for one in seeds]
    # Not a generator itself: options are checked at the call, not at the first token.
    return _drawn(model, prompt, source, end, longest, filters, generators, context, places)


def rows_of(drawn: Iterable[Drawn], rows: int) -> list[Iterator[int]]:
    """Return the tokens of each row up to its end. A token is drawn when the first of the rows needs it."""

    def row_of(steps: Iterator[Drawn], row: int) -> Iterator[int]:
        for step in steps:
            yield int(step.ids[row])
            if step.ended[row]:
                return

    return [row_of(steps, row) for row, steps in enumerate(itertools.tee(drawn, rows))]


@torch.no_grad()
def _drawn(
    model: Generates,
    prompt: Tensor,
    source: Tokens | None,
    end: int,
    longest: int,
    filters: Filters,
    generators: Sequence[torch.Generator],
    context: int | None,
    places: Places,
) -> Iterator[Drawn]:
    state, steps = model.start(source), Steps(model, longest)
    rows_B = torch.arange(len(prompt), device=prompt.device)
    ids_BL, ended_B = prompt.cpu(), torch.zeros(len(prompt), dtype=torch.bool)
    some_ended = False
    # The model reads what is in [first, last), and has read up to `read` of it.
    read = first = max(0, ids_BL.shape[1] - context) if context is not None else 0
    for _ in range(longest):
        last = ids_BL.shape[1]
        if context is not None and last - first > context:
            first = read = last - max(1, context // 2)
            steps = Steps(model, longest)
        start = read - first
        window_BL = ids_BL[:, first:last].to(prompt.device)
        positions = places(window_BL, start, rows_B)
        scores_BNV = steps(state, window_BL[:, start:], positions)
        # Drawn on the CPU, so that one seed gives the same numbers on all devices.
        scores_BV = scores_BNV[:, -1].float().cpu()
        read = last
        ids_B = filters.take(scores_BV, ids_BL, generators)
        if some_ended:
            ids_B = ids_B.masked_fill(ended_B, end)
        ids_B1 = ids_B.unsqueeze(1)
        log_B = scores_BV.log_softmax(-1).gather(1, ids_B1).squeeze(1)
        if some_ended:
            log_B = log_B.masked_fill(ended_B, 0.0)
        if end in ids_B.tolist():
            some_ended, ended_B = True, ended_B | (ids_B == end)
        ids_BL = torch.cat((ids_BL, ids_B1), 1)
        yield Drawn(ids_B, log_B, ended_B)
        if some_ended and bool(ended_B.all()):
            return
