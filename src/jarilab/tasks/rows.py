"""Which examples to take, and lines of tokens side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jarilab.core.shapes import Int, Tensor


def evenly(count: int, examples: int | None) -> Int[Tensor, " N"]:
    """The numbers of `examples` of `count` things, evenly spread; all of them by default."""
    if examples is None or examples >= count:
        return torch.arange(count)
    return torch.arange(examples) * count // examples


def right_padded(lines: Sequence[list[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Token numbers `(B, L)` with padding behind, and which of them are real."""
    longest = max((len(line) for line in lines), default=0)
    ids = torch.full((len(lines), longest), padding)
    for row, line in enumerate(lines):
        ids[row, : len(line)] = torch.tensor(line, dtype=torch.long)
    return ids, torch.arange(longest) < torch.tensor([[len(line)] for line in lines])


def without_padding(line: Sequence[int], padding: int) -> list[int]:
    """The tokens of a row that are no padding."""
    return [token for token in line if token != padding]
