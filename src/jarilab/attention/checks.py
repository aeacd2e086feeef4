"""Whether what an attention is given goes together."""

from __future__ import annotations

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.positions.coordinates import Positions


def check_vectors(x: Tensor, weight: Float[Tensor, "N D"]) -> None:
    """Raises UserError where x is no `(B, L, D)` that `weight` can be multiplied with."""
    width = weight.shape[1]
    if x.ndim != 3 or x.shape[2] != width:
        raise UserError(
            f"the input is (B, L, {width}), a vector of width {width} for each token; got {tuple(x.shape)}: build the "
            "module with the width of its input, or map the input with torch.nn.Linear first"
        )
    if x.dtype is not weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise UserError(
            f"the module is in {weight.dtype}, its input in {x.dtype}; convert with .to({weight.dtype})"
        )


def check_positions(positions: Positions, x: Float[Tensor, "B L D"]) -> None:
    """Raises UserError where there is not one position for each token."""
    batch, length = x.shape[:2]
    rows = positions.coordinates.shape[0] if positions.coordinates.ndim == 3 else batch
    if positions.length != length or rows not in (1, batch):
        raise UserError(
            f"each token needs its position: expected positions for {batch} rows of {length} tokens, "
            f"got {rows} of {positions.length}"
        )
