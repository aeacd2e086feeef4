"""Greedy search."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.models.base import Generates, Places, in_order
from jarilab.positions.coordinates import Tokens


@dataclass(frozen=True, eq=False)
class Written:
    """Answers of a greedy search.

    ids: the tokens after the first, with the end and then padding. log_probabilities: 0 on padding.
    """

    ids: Int[Tensor, "B L"]
    log_probabilities: Float[Tensor, "B L"]


@torch.no_grad()
def greedy(
    model: Generates,
    source: Tokens,
    *,
    first: int,
    end: int,
    padding: int,
    longest: int,
    cached: bool = True,
    places: Places = in_order,
) -> Written:
    """Write the most likely token at each step, up to `end` or `longest` tokens.

    source: the model's source; for a language model, the prompt, with places=positions_after(source). first, end,
    padding: ids of these tokens. cached: keep keys and values, which is faster and gives the same answer. places:
    positions of the answers' tokens, which may differ between rows. Finished rows are not read any more. Raises
    UserError if `longest` is below 1.
    """
    check_longest(torch.tensor(longest), 0, 1)
    batch, device = source.ids.shape[0], source.ids.device
    cache = model.new_cache() if cached else None
    if not batch:
        longest = 0
    state = model.start(source)
    written = torch.full((batch, longest), padding, device=device)
    log_probabilities = torch.zeros(batch, longest, device=device)
    rows = torch.arange(batch, device=device)
    # Unfinished rows, allocated for the longest answer.
    ids_RL = torch.full((batch, 1 + longest), first, device=device)
    logs_RL = torch.zeros_like(log_probabilities)
    for length in range(1, longest + 1):
        read_RL, start = ids_RL[:, :length], length - 1 if cached else 0
        positions = places(read_RL, start, rows)
        scores_RLV = model.step(state, read_RL[:, start:], positions, cache)
        best = scores_RLV[:, -1].float().log_softmax(-1).max(-1)
        logs_RL[:, length - 1], ids_RL[:, length] = best.values, best.indices
        over = length == longest
        # The only place where a step waits for the device.
        if not over and end not in best.indices.tolist():
            continue
        # Finished rows are copied to the answers, and the model no longer computes them.
        over_R = (best.indices == end) | over
        ended = rows[over_R]
        written[ended, :length] = ids_RL[over_R, 1 : length + 1]
        log_probabilities[ended, :length] = logs_RL[over_R, :length]
        open_R = (~over_R).nonzero().squeeze(1)
        if not len(open_R):
            return Written(written[:, :length], log_probabilities[:, :length])
        rows, ids_RL, logs_RL = rows[open_R], ids_RL[open_R], logs_RL[open_R]
        state = state.select(open_R)
        if cache is not None:
            cache.select(open_R, open_R)
    return Written(written, log_probabilities)


def check_longest(longest_B: Tensor, shortest: int, batch: int) -> None:
    """Raises UserError for impossible lengths of answers."""
    if longest_B.shape not in ((), (batch,)):
        raise UserError(
            f"longest is one number, or one for each of the {batch} sources; got {tuple(longest_B.shape)}"
        )
    least = int(longest_B.min())
    if least < 1 or not 0 <= shortest <= least:
        raise UserError(
            f"expected 0 <= shortest <= longest and longest 1 or more, got shortest {shortest} and longest {least}; "
            "both count the end token"
        )
