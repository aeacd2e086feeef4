"""What encodings that are made up for the tests of laws are made of."""

import torch

from jarilab.core.shapes import Tensor
from jarilab.positions.coordinates import Positions


def waves(index: Tensor, width: int, base: float = 100.0) -> Tensor:
    """Something to add to an input: it tells positions apart, also far from 0."""
    frequency = base ** -(torch.arange(width, dtype=torch.float64) / width)
    return (index.double().unsqueeze(-1) * frequency).sin()


def placed(x: Tensor, added: Tensor, pos: Positions) -> Tensor:
    """`x` with something added to the tokens that have a place."""
    if pos.unplaced is not None:
        added = added.masked_fill(pos.unplaced.unsqueeze(-1), 0.0)
    return x + added.to(x.dtype)


def of_heads(angle: Tensor) -> Tensor:
    """`(L,)` or `(B, L)` beside vectors of heads."""
    return angle[None, None, :, None] if angle.ndim == 1 else angle[:, None, :, None]


def turn(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the first half of `x` against the second, all pairs by the same angle `(L,)` or `(B, L)`."""
    first, second = x.chunk(2, -1)
    cosine, sine = of_heads(angle).cos().to(x.dtype), of_heads(angle).sin().to(x.dtype)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
