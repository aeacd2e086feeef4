"""Greedy search."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.models.base import Generates, Places, in_order
from jarilab.models.decoding.replay import Steps
from jarilab.positions.coordinates import Tokens


@dataclass(frozen=True, eq=False)
class Written:
    """Answers of a greedy search.

    ids: the tokens after the first, with the end and then padding. log_probabilities: 0 on padding.
    """

    ids: Int[Tensor, "B L"]
    log_probabilities: Float[Tensor, "B L"]

    def copy(self, rows: Tensor, over_R: Tensor, ids_RL: Tensor, logs_RL: Tensor) -> None:
        """Take over the answers that are over. rows: the rows of the batch that the others belong to."""
        ended, length = rows[over_R], ids_RL.shape[1]
        self.ids[ended, :length] = ids_RL[over_R]
        self.log_probabilities[ended, :length] = logs_RL[over_R]

    def until(self, length: int) -> Written:
        """The first tokens alone."""
        return Written(self.ids[:, :length], self.log_probabilities[:, :length])


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
    steps = Steps(model, longest, cached)
    if not batch:
        longest = 0
    state = model.start(source)
    padding_BL = torch.full((batch, longest), padding, device=device)
    answers = Written(padding_BL, torch.zeros(batch, longest, device=device))
    rows = torch.arange(batch, device=device)
    # Unfinished rows, and finished ones that the model still computes, allocated for the longest answer.
    ids_RL = torch.full((batch, 1 + longest), first, device=device)
    logs_RL = torch.zeros_like(answers.log_probabilities)
    ended_R = torch.zeros(batch, dtype=torch.bool, device=device)
    for length in range(1, longest + 1):
        read_RL, start = ids_RL[:, :length], length - 1 if cached else 0
        positions = places(read_RL, start, rows)
        scores_RLV = steps(state, read_RL[:, start:], positions)
        best = scores_RLV[:, -1].float().log_softmax(-1).max(-1)
        logs_RL[:, length - 1], ids_RL[:, length] = best.values, best.indices
        over = length == longest
        # The only place where a step waits for the device.
        if not over and end not in best.indices.tolist():
            continue
        over_R = ((best.indices == end) | over) & ~ended_R
        answers.copy(rows, over_R, ids_RL[:, 1 : length + 1], logs_RL[:, :length])
        ended_R = ended_R | over_R
        open_R = (~ended_R).nonzero().squeeze(1)
        if not len(open_R):
            return answers.until(length)
        if steps.replays and 2 * len(open_R) > len(rows):
            continue  # a selection needs a new graph, which takes longer than a few rows
        rows, ids_RL, logs_RL, ended_R = (
            of_rows[open_R] for of_rows in (rows, ids_RL, logs_RL, ended_R)
        )
        state = state.select(open_R)
        steps.select(open_R, open_R)
    return answers


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
