"""Writing an answer token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jari.models.base import Generates
from jari.positions import Positions, Tokens
from jari.shapes import Float, Int, Tensor


@dataclass(frozen=True, eq=False)
class Written:
    """ids: `(B, L)`, what was written after the first token, the end included and padding behind it.
    log_probabilities: `(B, L)`, of each token written, 0 on padding."""

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
) -> Written:
    """Take the likeliest token each time, up to `end` or `longest` tokens.

    first, end, padding: the numbers of these tokens. cached: keep keys and values (the same answer, faster).
    """
    state = model.start(source)
    batch, device = source.ids.shape[0], source.ids.device
    cache = model.new_cache() if cached else None
    written = torch.full((batch, 1), first, device=device)
    log_probabilities: list[Tensor] = []
    done = torch.zeros(batch, dtype=torch.bool, device=device)
    for length in range(1, longest + 1):
        start = length - 1 if cached else 0
        positions = Positions.sequence(length - start, start, frame="target", device=device)
        scores_BV = model.step(state, written[:, start:], positions, cache)[:, -1].float()
        best = scores_BV.log_softmax(-1).max(-1)
        written = torch.cat((written, best.indices.masked_fill(done, padding).unsqueeze(1)), 1)
        log_probabilities.append(best.values.masked_fill(done, 0.0))
        done = done | (best.indices == end)
        if bool(done.all()):
            break
    return Written(written[:, 1:], torch.stack(log_probabilities, 1))
