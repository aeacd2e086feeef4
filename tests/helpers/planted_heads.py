"""A model of one layer whose heads have the roles that their weights are written for.

The residual stream is the token (V), the position (L), a constant, a flag of the start token and the token before (V).
A head scores queries against keys by a matrix over these spaces, so its role is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, LENGTH, START = 64, 64, 0
BETA = 40.0
SIZE = 2 * TOKENS + LENGTH + 2
TOKEN, POSITION = slice(0, TOKENS), slice(TOKENS, TOKENS + LENGTH)
CONSTANT, FLAG = TOKENS + LENGTH, TOKENS + LENGTH + 1
BEFORE = slice(TOKENS + LENGTH + 2, SIZE)


def resting() -> Tensor:
    """Scores towards the start token, half of those of a match: a query rests there if nothing matches."""
    scores = torch.zeros(SIZE, SIZE)
    scores[CONSTANT, FLAG] = BETA / 2
    return scores


def offset(distance: int) -> Tensor:
    """Attends to the key at this offset, key minus query."""
    scores = resting()
    scores[POSITION, POSITION] = BETA * torch.diag(torch.ones(LENGTH - abs(distance)), distance)
    return scores


def same_token() -> Tensor:
    scores = resting()
    scores[TOKEN, TOKEN] = BETA * torch.eye(TOKENS)
    scores[POSITION, POSITION] = -2 * BETA * torch.eye(LENGTH)
    return scores


def induction() -> Tensor:
    """Attends to keys whose token before is the query's token."""
    scores = resting()
    scores[TOKEN, BEFORE] = BETA * torch.eye(TOKENS)
    return scores


def first_token() -> Tensor:
    return 3 * resting()


def uniform() -> Tensor:
    return torch.zeros(SIZE, SIZE)


def random_between(space: slice) -> Callable[[], Tensor]:
    """Random scores between tokens, or between positions, alone."""

    def scores() -> Tensor:
        values = torch.zeros(SIZE, SIZE)
        size = space.stop - space.start
        values[space, space] = 6 * torch.randn(size, size)
        return values

    return scores


def noise() -> Tensor:
    return 3 * torch.randn(SIZE, SIZE)


class Embed(nn.Module):
    """The residual stream of a sequence of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding.from_pretrained(torch.eye(TOKENS))
        self.flags = nn.Embedding.from_pretrained((torch.arange(TOKENS) == START).float()[:, None])

    def forward(self, ids_BL: Tensor) -> Tensor:
        is_start = self.flags(ids_BL)
        token = self.tokens(ids_BL) * (1 - is_start)
        before = functional.pad(token[:, :-1], (0, 0, 1, 0))
        position = torch.eye(LENGTH)[: ids_BL.shape[1]].expand(len(ids_BL), -1, -1)
        return torch.cat((token, position, torch.ones_like(is_start), is_start, before), -1)


class Attend(nn.Module):
    def __init__(self, scores: Tensor, *, causal: bool):
        super().__init__()
        self.causal = causal
        self.register_buffer("scores", scores)

    def forward(self, x_BLD: Tensor, mask_BL: Tensor | None) -> Tensor:
        x_B1LD = x_BLD.unsqueeze(1)
        q_BHLD = x_B1LD @ self.scores
        k_BHLD = x_B1LD.expand(-1, len(self.scores), -1, -1)
        length = x_BLD.shape[1]
        allowed = torch.ones(length, length, dtype=torch.bool)
        allowed = allowed.tril() if self.causal else allowed
        if mask_BL is not None:
            allowed = allowed & mask_BL.bool()[:, None, None]
        return functional.scaled_dot_product_attention(q_BHLD, k_BHLD, k_BHLD, allowed, scale=1.0)


class PlantedHeads(nn.Module):
    """One attention layer. heads: a function for each head that makes its scores. causal: hides later keys."""

    def __init__(self, heads: Mapping[str, Callable[[], Tensor]], *, causal: bool = False):
        super().__init__()
        self.embed = Embed()
        self.attend = Attend(torch.stack([make() for make in heads.values()]), causal=causal)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.attend(self.embed(input_ids), attention_mask)
