"""What each place of an encoder's output is made of (Abnar & Zuidema 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.measure.maps import Map


def rollout(maps: Sequence[Map]) -> Float[Tensor, "Q K"]:
    """`R_l = A_l R_(l-1)`, with A_l the mean over heads and the residual connection, `(A + I) / 2`, each row over its
    sum. maps: of the layers of an encoder, the first layer first.

    Raises UserError for cross-attention and for causal attention, where the first tokens win by being in all rows.
    """
    if not maps:
        raise UserError("expected the maps of an encoder's layers, the first layer first, got none")
    itself_KK = torch.eye(len(maps[0].keys), dtype=maps[0].weights.dtype)
    rolled_QK = itself_KK
    for layer, map in enumerate(maps):
        _check(map, layer, tuple(rolled_QK.shape))
        mixed_QK = (map.weights.mean(0) + itself_KK) / 2
        rolled_QK = (mixed_QK / mixed_QK.sum(-1, keepdim=True)) @ rolled_QK
    return rolled_QK


def _check(map: Map, layer: int, shape: tuple[int, ...]) -> None:
    if not map.same:
        raise UserError(f"rollout is for encoders only, layer {layer} is cross-attention; omit it")
    sees_ahead = bool((map.allowed & (map.ahead > 0)).any())
    if len(map.keys) > 1 and not sees_ahead:
        raise UserError(
            f"rollout is for encoders only, layer {layer} is causal: the first tokens would win whatever it learned"
        )
    own = tuple(map.weights.shape[1:])
    if own != shape:
        raise UserError(f"expected maps of one encoder, {shape} each, got {own} in layer {layer}")
