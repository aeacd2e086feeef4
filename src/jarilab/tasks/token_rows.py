"""Evenly spread indices, and rows of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jarilab.core.shapes import Int, Tensor


def evenly(count: int, examples: int | None) -> Int[Tensor, " N"]:
    """Return `examples` of `count` indices, evenly spread; all by default."""
    if examples is None or examples >= count:
        return torch.arange(count)
    return torch.arange(examples) * count // examples


def right_padded(lines: Sequence[list[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Return token ids `(B, L)`, padded at the end, and which are real."""
    longest = max((len(line) for line in lines), default=0)
    ids = torch.full((len(lines), longest), padding)
    for row, line in enumerate(lines):
        ids[row, : len(line)] = torch.tensor(line, dtype=torch.long)
    return ids, torch.arange(longest) < torch.tensor([[len(line)] for line in lines])


def without_padding(line: Sequence[int], padding: int) -> list[int]:
    """Return the tokens of a row without padding."""
    return [token for token in line if token != padding]
