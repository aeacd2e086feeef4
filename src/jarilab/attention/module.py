"""Multi-head attention: *Attention Is All You Need*, section 3.2."""

from __future__ import annotations

import torch
from torch import nn

from jarilab.attention.cache import LayerCache
from jarilab.attention.call import AttentionCall
from jarilab.attention.geometry import Geometry, geometry_of
from jarilab.attention.kernels import Kernel, attend, check
from jarilab.encodings import compose
from jarilab.encodings.base import Site, hooks_of, registry
from jarilab.errors import UserError
from jarilab.masks import Mask
from jarilab.nn.dropout import check_share
from jarilab.nn.linear import Linear, linear
from jarilab.positions import Positions
from jarilab.shapes import Float, Tensor


class Attend(nn.Module):
    """Computes an AttentionCall with the kernel it was told. It has no parameters: it is there to be listened to, by an
    ordinary forward hook, without a second path through the model."""

    def __init__(self, kernel: Kernel = "auto"):
        super().__init__()
        self.kernel: Kernel = kernel

    def forward(self, call: AttentionCall) -> Float[Tensor, "B H Q W"]:
        return attend(call, self.kernel)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}"


class Attention(nn.Module):
    """Queries from one sequence, keys and values from the same or another; H heads; one output projection.

        attention = jarilab.Attention(64, heads=8, encoding="rotary")
        y_BLD = attention(x_BLD, mask=jarilab.Mask(causal=True))

    width: D of input and output. heads: H. encoding: a spec such as `rotary:base=500`, or None where the stack around
    this attention owns the encoding and passes a `Geometry`. head_width: E of queries and keys, D / H by default.
    value_head_width: E of values, as head_width by default. causal: what an encoding may rely on; the mask is the
    caller's. cross: keys may come from another frame of positions. dropout: on the attention weights.
    kernel: see `jarilab.attention.kernels`.

    Raises UserError for a width that the heads do not divide, an encoding that cannot work here, a kernel that cannot
    do what the encoding needs.
    """

    def __init__(
        self,
        width: int,
        heads: int = 8,
        *,
        encoding: str | None = "none",
        head_width: int | None = None,
        value_head_width: int | None = None,
        causal: bool = False,
        cross: bool = False,
        dropout: float = 0.0,
        kernel: Kernel = "auto",
    ):
        super().__init__()
        self.site = site_of(width, heads, head_width, value_head_width, causal=causal, cross=cross)
        self.scale = self.site.head_width**-0.5
        self.dropout = check_share(dropout)
        self.query = Linear(width, heads * self.site.head_width)
        self.key = Linear(width, heads * self.site.head_width)
        self.value = Linear(width, heads * self.site.value_head_width)
        self.out = Linear(heads * self.site.value_head_width, width)
        self.attend = Attend(kernel)
        self.encoding = None
        if encoding is not None:
            self.encoding = compose.build(encoding, self.site)
            check(kernel, self.encoding.hooks)
            if "embed" in self.encoding.hooks:
                raise UserError(
                    f"{encoding} adds to a model's input, which an attention alone does not have: use "
                    f"jarilab.Encoder or jarilab.EncoderDecoder, or an encoding that works inside attention "
                    f"({', '.join(_inside())})"
                )

    def forward(
        self,
        x: Float[Tensor, "B Q D"],
        source: Float[Tensor, "B K D"] | None = None,
        *,
        positions: Positions | None = None,
        source_positions: Positions | None = None,
        mask: Mask | None = None,
        geometry: Geometry | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """Attend from `x` to `source`, or to `x` itself.

        positions, source_positions: places of queries and keys; 0, 1, 2, ... by default. geometry: instead of those
        and mask, worked out by the stack; it must be given together with a cache. cache: keys and values read before;
        for cross-attention, a filled one takes the place of `source`.
        """
        if mask is not None and not isinstance(mask, Mask):
            raise UserError(
                "mask must be a jarilab.Mask; wrap a boolean tensor, True = may attend: jarilab.Mask(pairs=...)"
            )
        if geometry is None:
            geometry = self._geometry(x, source, positions, source_positions, mask, cache)
        if geometry.encoding.site.cross or source is not None:
            q, k, v = self._project_cross(x, source, geometry, cache)
        else:
            q, k, v = self._project_self(x, geometry)
            if cache is not None:
                k, v = cache.append(k, v)
        dropout = self.dropout if self.training else 0.0
        y_BHQE = self.attend(AttentionCall(q, k, v, geometry, self.scale, dropout))
        return self.out(y_BHQE.transpose(1, 2).flatten(-2))

    def _project_self(self, x: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor, Tensor]:
        encoding = geometry.encoding
        if "inject" in encoding.hooks:
            # DETR: positions go into what queries and keys are made of, never into the values.
            placed = encoding.inject(x, geometry.q_pos)
            q, k, v = self.query(placed), self.key(placed), self.value(x)
        else:
            # One product instead of three; the parameters stay apart, each with a name and initial values of its own.
            parts = (self.query, self.key, self.value)
            weight, bias = torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])
            q, k, v = linear(x, weight, bias).split([p.out_features for p in parts], -1)
        q, k, v = (split_heads(t, self.site.heads) for t in (q, k, v))
        if "rotate" in encoding.hooks:
            q, k = encoding.rotate(q, geometry.q_rotation), encoding.rotate(k, geometry.k_rotation)
        return q, k, v

    def _project_cross(
        self, x: Tensor, source: Tensor | None, geometry: Geometry, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        encoding = geometry.encoding
        q = split_heads(self.query(encoding.inject(x, geometry.q_pos)), self.site.heads)
        q = encoding.rotate(q, geometry.q_rotation)
        if cache is not None and cache.length:
            return q, *cache.filled()
        if source is None:
            raise UserError(
                "cross-attention reads its keys from a source; pass it as the second argument, "
                "or a cache that holds them"
            )
        k = split_heads(self.key(encoding.inject(source, geometry.k_pos)), self.site.heads)
        k = encoding.rotate(k, geometry.k_rotation)
        v = split_heads(self.value(source), self.site.heads)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v

    def _geometry(
        self,
        x: Tensor,
        source: Tensor | None,
        positions: Positions | None,
        source_positions: Positions | None,
        mask: Mask | None,
        cache: LayerCache | None,
    ) -> Geometry:
        if self.encoding is None or cache is not None:
            raise UserError(
                "an attention without an encoding of its own, or with a cache, needs to be told where its queries and "
                "keys are; pass geometry=jarilab.geometry_of(encoding, q_pos, k_pos, mask)"
            )
        check_vectors(x, self.query.weight)
        q_pos = positions or Positions.sequence(x.shape[1], device=x.device)
        check_positions(q_pos, x)
        if source is None:
            return geometry_of(self.encoding, q_pos, q_pos, mask)
        check_vectors(source, self.key.weight)
        k_pos = source_positions or Positions.sequence(source.shape[1], device=x.device)
        check_positions(k_pos, source)
        return geometry_of(self.encoding, q_pos, k_pos, mask)


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
    rows = len(positions.coordinates) if positions.coordinates.ndim == 3 else batch
    if positions.length != length or rows not in (1, batch):
        raise UserError(
            f"each token needs its position: expected positions for {batch} rows of {length} tokens, "
            f"got {rows} of {positions.length}"
        )


def _inside() -> list[str]:
    """The encodings that need no input to add to."""
    return [
        name for name in registry.names() if "embed" not in hooks_of(registry.spec(name).target)
    ]


def split_heads(x: Float[Tensor, "B L D"], heads: int) -> Float[Tensor, "B H L E"]:
    """Cut the last axis into heads."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


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
            below, above = width - width % heads, width + heads - width % heads
            near = f"{below} or {above}" if below else f"{above}"
            raise UserError(
                f"the width must be divisible by the heads; got width {width}, {heads} heads; use width {near}"
            )
        head_width = width // heads
    return Site(width, heads, head_width, value_head_width or head_width, causal, cross)
