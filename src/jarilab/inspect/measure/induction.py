"""Induction heads: repeated random tokens, and the prefix-matching score on them (Olsson et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.inspect.measure.maps import Map, Scored
from jarilab.inspect.measure.measures import scored_mass


def induction_ids(
    tokens: Sequence[int], block: int, *, copies: int = 2, first: int | None = None, seed: int = 0
) -> Int[Tensor, "1 L"]:
    """The IDs of a random block of different tokens, repeated.

    tokens: the IDs to draw from. first: an ID before the first block, for models that expect one.
    Raises UserError if the block is longer than `tokens`, or if nothing is repeated.
    """
    if not 2 <= block <= len(tokens):
        raise UserError(
            f"a block holds 2 to {len(tokens)} different tokens, as many as there are to draw from, got block={block}"
        )
    if copies < 2:
        raise UserError(
            f"expected a block and at least one copy of it, copies=2 or more, got copies={copies}"
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(tokens), generator=generator)[:block]
    repeated_L = torch.tensor(tokens, dtype=torch.int64)[drawn].repeat(copies)
    if first is not None:
        repeated_L = torch.cat((torch.tensor([first]), repeated_L))
    return repeated_L.unsqueeze(0)


def induction_score(map: Map, block: int, *, first: bool = False) -> Scored:
    """The prefix-matching score on `induction_ids`: the weight on the token that followed in the previous copy.

    This is key `i - block + 1`; mean over the queries i of all copies but the first. first: whether a token precedes
    the first block. Raises UserError if the map does not match.
    """
    length = len(map.queries) - first
    is_square = map.same and len(map.keys) == len(map.queries)
    if not is_square or block < 1 or length < 2 * block or length % block:
        raise UserError(
            f"expected a map of a sequence with itself, copies of a block of {block} tokens, "
            f"got {len(map.queries)} queries and {len(map.keys)} keys; make the tokens with induction_ids"
        )
    query_Q1 = torch.arange(len(map.queries)).unsqueeze(-1)
    key_K = torch.arange(len(map.keys))
    follows_QK = key_K == query_Q1 - block + 1
    target_QK = follows_QK & (query_Q1 >= block + first)
    return scored_mass(map, target_QK)
