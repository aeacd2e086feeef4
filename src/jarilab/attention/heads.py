"""How d_model is split into heads, and the scale of scores."""

from __future__ import annotations

from typing import get_args

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Site
from jarilab.nn.sublayers import Scale


def scale_of(scale: Scale, d_head: int) -> float:
    """The factor of q.k: 1 / sqrt(d_head) or 1. Raises UserError for an unknown scale."""
    if scale not in get_args(Scale):
        raise unknown("scale", scale, get_args(Scale))
    return d_head**-0.5 if scale == "sqrt" else 1.0


def split_heads(x: Float[Tensor, "B L N"], n_heads: int, d_head: int) -> Float[Tensor, "B H L E"]:
    """Split the last axis into heads, and repeat each if there are fewer than `n_heads`."""
    # Repeated here, so that rotations, caches and kernels need not know about groups.
    x_BHLE = x.unflatten(-1, (-1, d_head)).transpose(1, 2)
    copies = n_heads // x_BHLE.shape[1]
    return x_BHLE if copies == 1 else x_BHLE.repeat_interleave(copies, 1)


def groups_of(n_heads: int, n_kv_heads: int | None) -> int:
    """The number of heads of keys and values. Raises UserError if it does not divide `n_heads`."""
    if n_kv_heads is None:
        return n_heads
    if not 1 <= n_kv_heads <= n_heads or n_heads % n_kv_heads:
        works = [str(each) for each in range(1, n_heads + 1) if n_heads % each == 0]
        raise UserError(
            f"expected n_kv_heads to divide n_heads={n_heads}, got n_kv_heads={n_kv_heads}; use {', '.join(works)}"
        )
    return n_kv_heads


def site_of(
    d_model: int,
    n_heads: int,
    d_head: int | None = None,
    d_value: int | None = None,
    *,
    causal: bool = False,
    cross: bool = False,
) -> Site:
    """The Site of an attention. Raises UserError if n_heads does not divide d_model and d_head is None."""
    if d_model < 1 or n_heads < 1:
        raise UserError(
            f"d_model and n_heads must be 1 or more, got d_model={d_model} and n_heads={n_heads}"
        )
    if d_head is None:
        if d_model % n_heads:
            raise UserError(_indivisible(d_model, n_heads))
        d_head = d_model // n_heads
    return Site(d_model, n_heads, d_head, d_value or d_head, causal, cross)


def _indivisible(d_model: int, n_heads: int) -> str:
    """The message, with the nearest values of d_model that work."""
    below = d_model - d_model % n_heads
    above = below + n_heads
    near = f"{below} or {above}" if below else f"{above}"
    return f"d_model must be divisible by n_heads; got d_model={d_model}, n_heads={n_heads}; use d_model={near}"
