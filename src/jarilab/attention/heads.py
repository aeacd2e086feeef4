"""How the width of a model is cut into heads, and what a head's scores are multiplied by."""

from __future__ import annotations

from typing import get_args

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Site
from jarilab.nn.layers import Scale


def scale_of(scale: Scale, head_width: int) -> float:
    """What q.k is multiplied by. Raises UserError for another word than those of `Scale`."""
    if scale not in get_args(Scale):
        raise unknown("scale", scale, get_args(Scale))
    return head_width**-0.5 if scale == "sqrt" else 1.0


def split_heads(x: Float[Tensor, "B L N"], heads: int, width: int) -> Float[Tensor, "B H L E"]:
    """Cut the last axis into heads of this width. Where there are fewer, each stands in for as many neighbouring ones:
    from here on, rotations, caches and kernels know of no groups."""
    x_BHLE = x.unflatten(-1, (-1, width)).transpose(1, 2)
    copies = heads // x_BHLE.shape[1]
    return x_BHLE if copies == 1 else x_BHLE.repeat_interleave(copies, 1)


def groups_of(heads: int, key_value_heads: int | None) -> int:
    """How many heads keys and values have. Raises UserError where those of queries are not as many for each."""
    if key_value_heads is None:
        return heads
    if not 1 <= key_value_heads <= heads or heads % key_value_heads:
        works = [str(each) for each in range(1, heads + 1) if heads % each == 0]
        raise UserError(
            f"each head of keys serves as many heads of queries: expected key_value_heads to divide the {heads} heads, "
            f"got {key_value_heads}; use {', '.join(works)}"
        )
    return key_value_heads


def site_of(
    width: int,
    heads: int,
    head_width: int | None = None,
    value_head_width: int | None = None,
    *,
    causal: bool = False,
    cross: bool = False,
) -> Site:
    """The site of an attention. Raises UserError where the heads do not divide the width and no head width is given."""
    if width < 1 or heads < 1:
        raise UserError(f"width and heads must be 1 or more, got width {width} and {heads} heads")
    if head_width is None:
        if width % heads:
            raise UserError(_indivisible(width, heads))
        head_width = width // heads
    return Site(width, heads, head_width, value_head_width or head_width, causal, cross)


def _indivisible(width: int, heads: int) -> str:
    """Expected, got, and the nearest widths that work."""
    below = width - width % heads
    above = below + heads
    near = f"{below} or {above}" if below else f"{above}"
    return f"the width must be divisible by the heads; got width {width}, {heads} heads; use width {near}"
