"""Multi-head attention (*Attention Is All You Need*, section 3.2), with the hooks of an encoding.

      x_BQD          source_BKD, or x itself
        |              |        |
      inject         inject     |           positions are added to queries and keys, not to values
        |              |        |
      query           key     value         linear maps, then split into heads
        |              |        |
      rotate         rotate     |           by the positions of each side
        |              |        |
      q_BHQE         k_BHKE   v_BHKE        these make an AttentionCall
        '-------.------'        |
          q.k + terms           |           terms: from content and positions
                |               |
          * scale + bias        |           scale: 1 / sqrt(E); bias: from positions alone; the mask is added here
                |               |
             softmax            |
                |               |
          weights_BHQK          |           the attention map
                '-------.-------'
            weights.v + values              values: from weights and positions
                        |
                     y_BHQE                 heads concatenated, then a linear map
                        |
                      y_BQD

inject, rotate, terms, bias and values are hooks of an `Encoding`. A `Geometry` holds what they compute from positions.
"""

from __future__ import annotations

import torch
from torch import nn

from jarilab.attention.cache import LayerCache
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry, geometry_of
from jarilab.attention.heads import groups_of, scale_of, site_of, split_heads
from jarilab.attention.kernels import Kernel, attend, check, is_blockwise
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings import compose
from jarilab.encodings.base import hooks_of, registry
from jarilab.nn.dropout import checked_rate
from jarilab.nn.sublayers import Linear, Scale, few_rows, linear
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


class AttentionKernel(nn.Module):
    """Computes an AttentionCall. A module without parameters, so that a forward hook can record its calls.

    site: its name on a tape, for modules of other libraries whose path does not name it.
    """

    def __init__(self, kernel: Kernel = "auto", site: str | None = None):
        super().__init__()
        self.kernel: Kernel = kernel
        self.site = site

    def forward(self, call: AttentionCall) -> Float[Tensor, "B H Q W"]:
        return attend(call, self.kernel)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}"


class Attention(nn.Module):
    """Multi-head self-attention or cross-attention.

        attention = jarilab.Attention(64, n_heads=8, encoding="rotary")
        y_BLD = attention(x_BLD, mask=jarilab.Mask(causal=True))

    d_model: D of input and output. n_heads: H. encoding: a spec such as `rotary:base=500`, or None if the surrounding
    stack owns the encoding and passes a `Geometry`. d_head: E of queries and keys, D / H by default. d_value: of
    values, d_head by default. causal: whether the encoding may assume a causal mask, which the caller passes. cross:
    keys may come from another frame of positions. scale: sqrt divides q.k by sqrt(E), none does not. dropout: of the
    attention weights. kernel: see `jarilab.attention.kernels`. n_kv_heads: heads of keys and values, H by default;
    fewer are shared by groups of query heads (*GQA*, Ainslie et al. 2023; 1 is *multi-query*, Shazeer 2019). bias: of
    the linear maps.

    Raises UserError if n_heads does not divide d_model, n_kv_heads does not divide n_heads, or the encoding is not
    possible inside attention or with the kernel.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 8,
        *,
        encoding: str | None = "none",
        d_head: int | None = None,
        d_value: int | None = None,
        causal: bool = False,
        cross: bool = False,
        scale: Scale = "sqrt",
        dropout: float = 0.0,
        kernel: Kernel = "auto",
        n_kv_heads: int | None = None,
        bias: bool = True,
    ):
        super().__init__()
        self.site = site_of(d_model, n_heads, d_head, d_value, causal=causal, cross=cross)
        self.scale = scale_of(scale, self.site.d_head)
        self.dropout = checked_rate(dropout)
        kv_heads = groups_of(n_heads, n_kv_heads)
        self.query = Linear(d_model, n_heads * self.site.d_head, bias)
        self.key = Linear(d_model, kv_heads * self.site.d_head, bias)
        self.value = Linear(d_model, kv_heads * self.site.d_value, bias)
        self.out = Linear(n_heads * self.site.d_value, d_model, bias)
        self.attend = AttentionKernel(kernel)
        self.encoding = None
        if encoding is not None:
            self.encoding = compose.build(encoding, self.site)
            check(kernel, [self.encoding], dropout=dropout)
            if "embed" in self.encoding.hooks:
                raise UserError(
                    f"{encoding} is added to the input of a model, expected an encoding inside attention; use "
                    f"jarilab.Encoder or jarilab.EncoderDecoder, or one of {', '.join(_encodings_inside_attention())}"
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

        positions, source_positions: of queries and keys, 0, 1, 2, ... by default. geometry: replaces positions and
        mask; required with a cache. cache: earlier keys and values; for cross-attention a filled cache replaces
        `source`.
        """
        if mask is not None and not isinstance(mask, Mask):
            raise UserError(
                f"expected mask to be a jarilab.Mask, got {type(mask).__name__}; wrap a boolean tensor, True = may "
                "attend: jarilab.Mask(pairs=...)"
            )
        if geometry is None:
            geometry = self._geometry(x, source, positions, source_positions, mask, cache)
        if geometry.encoding.site.cross or source is not None:
            q_BHQE, k_BHKE, v_BHKE, *states = self._project_cross(x, source, geometry, cache)
        else:
            q_BHQE, k_BHKE, v_BHKE, *states = self._project_self(x, geometry, cache)
        _check_rows(geometry.mask, x)
        dropout = self.dropout if self.training else 0.0
        scale = self.scale * geometry.encoding.scale_factor
        call = AttentionCall(q_BHQE, k_BHKE, v_BHKE, geometry, scale, dropout, states=tuple(states))
        y_BHQE = self.attend(call)
        y_BQD = y_BHQE.transpose(1, 2).flatten(-2)
        return self.out(y_BQD)

    def _project_self(
        self, x_BLD: Tensor, geometry: Geometry, cache: LayerCache | None
    ) -> tuple[Tensor, ...]:
        """Queries, keys, values and key states, cached keys included, each `(B, H, L, E)`."""
        encoding, site = geometry.encoding, self.site
        if "inject" in encoding.hooks:
            # As in DETR: positions are added to the input of queries and keys, not of values.
            injected_BLD = encoding.inject(x_BLD, geometry.q_pos)
            q_BLD, k_BLD = self.query(injected_BLD), self.key(injected_BLD)
            v_BLD = self.value(x_BLD)
        else:
            q_BLD, k_BLD, v_BLD = self._project_together(x_BLD)
        q_BHLE = split_heads(q_BLD, site.n_heads, site.d_head)
        k_BHLE = split_heads(k_BLD, site.n_heads, site.d_head)
        v_BHLE = split_heads(v_BLD, site.n_heads, site.d_value)
        return self.rotate_and_cache(x_BLD, q_BHLE, k_BHLE, v_BHLE, geometry, cache)

    @staticmethod
    def rotate_and_cache(
        x_BLD: Tensor,
        q_BHLE: Tensor,
        k_BHLE: Tensor,
        v_BHLE: Tensor,
        geometry: Geometry,
        cache: LayerCache | None,
    ) -> tuple[Tensor, ...]:
        """Rotate queries and keys, append keys, values and states to the cache, and return all of them."""
        encoding = geometry.encoding
        rotates, cached_too = "rotate" in encoding.hooks, geometry.rotates_cached_keys
        if rotates:
            q_BHLE = encoding.rotate(q_BHLE, geometry.q_rotation)
        if rotates and not cached_too:
            k_BHLE = encoding.rotate(k_BHLE, geometry.k_rotation)
        states = encoding.key_states(x_BLD)
        if cache is not None:
            k_BHLE, v_BHLE, *states = cache.append(k_BHLE, v_BHLE, *states)
        if rotates and cached_too:
            k_BHLE = encoding.rotate(k_BHLE, geometry.k_rotation)
        return q_BHLE, k_BHLE, v_BHLE, *states

    def _project_together(self, x_BLD: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values by one product instead of three."""
        # The parameters stay separate, each with its own name and initial values. With few rows, as in generation,
        # concatenating the weights would take longer than the product.
        maps = (self.query, self.key, self.value)
        if few_rows(x_BLD, 256) and not torch.is_grad_enabled():
            return tuple(linear(x_BLD, each.weight, each.bias) for each in maps)
        weight = torch.cat([each.weight for each in maps])
        biases: list[Tensor] = [each.bias for each in maps if each.bias is not None]
        bias = torch.cat(biases) if biases else None
        widths = [each.out_features for each in maps]
        return linear(x_BLD, weight, bias).split(widths, -1)

    def _project_cross(
        self, x_BQD: Tensor, source_BKD: Tensor | None, geometry: Geometry, cache: LayerCache | None
    ) -> tuple[Tensor, ...]:
        """Queries, and keys, values and key states from the source or the cache."""
        encoding, site = geometry.encoding, self.site
        q_BQD = self.query(encoding.inject(x_BQD, geometry.q_pos))
        q_BHQE = split_heads(q_BQD, site.n_heads, site.d_head)
        q_BHQE = encoding.rotate(q_BHQE, geometry.q_rotation)
        # The source is the same at every step of decoding.
        if cache is not None and cache.length:
            return q_BHQE, *cache.filled()
        if source_BKD is None:
            raise UserError(
                "cross-attention expected a source of keys, got none; pass it as the second argument, or a filled cache"
            )
        k_BKD = self.key(encoding.inject(source_BKD, geometry.k_pos))
        k_BHKE = split_heads(k_BKD, site.n_heads, site.d_head)
        k_BHKE = encoding.rotate(k_BHKE, geometry.k_rotation)
        v_BHKE = split_heads(self.value(source_BKD), site.n_heads, site.d_value)
        states = encoding.key_states(source_BKD)
        if cache is not None:
            cache.append(k_BHKE, v_BHKE, *states)
        return q_BHQE, k_BHKE, v_BHKE, *states

    def _geometry(
        self,
        x_BQD: Tensor,
        source_BKD: Tensor | None,
        positions: Positions | None,
        source_positions: Positions | None,
        mask: Mask | None,
        cache: LayerCache | None,
    ) -> Geometry:
        if self.encoding is None or cache is not None:
            raise UserError(
                "an attention without an encoding, or with a cache, expected a geometry, got none; pass "
                "geometry=jarilab.geometry_of(encoding, q_pos, k_pos, mask)"
            )
        q_pos = _checked_positions(positions, x_BQD, self.query.weight)
        k_pos = q_pos
        if source_BKD is not None:
            k_pos = _checked_positions(source_positions, source_BKD, self.key.weight)
        blockwise = self.is_blockwise(self.encoding.hooks, q_pos, k_pos, mask)
        return geometry_of(self.encoding, q_pos, k_pos, mask, blockwise=blockwise)

    def is_blockwise(
        self, hooks: frozenset[str], q_pos: Positions, k_pos: Positions, mask: Mask | None
    ) -> bool:
        """Whether to build a Geometry without Q x K tensors. hooks: of the encoding."""
        dropout = self.dropout if self.training else 0.0
        width = min(self.site.d_head, self.site.d_value)
        return is_blockwise(self.attend.kernel, hooks, q_pos, k_pos, mask, dropout, width)


def _checked_positions(positions: Positions | None, x_BLD: Tensor, weight: Tensor) -> Positions:
    """`positions`, or 0, 1, 2, ... by default. Raises UserError if they or `x_BLD` have a wrong shape."""
    check_vectors(x_BLD, weight)
    positions = positions or Positions.sequence(x_BLD.shape[1], device=x_BLD.device)
    check_positions(positions, x_BLD)
    return positions


def check_vectors(x: Tensor, weight: Float[Tensor, "N D"]) -> None:
    """Raises UserError if `x` is not `(B, L, D)` in the dtype of `weight`."""
    width = weight.shape[1]
    if x.ndim != 3 or x.shape[2] != width:
        raise UserError(
            f"expected an input (B, L, {width}), got {tuple(x.shape)}; build the module with the d_model of its input, "
            "or map the input with torch.nn.Linear first"
        )
    if x.dtype is not weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise UserError(
            f"expected an input in {weight.dtype}, as the module is, got {x.dtype}; convert with .to({weight.dtype})"
        )


def check_positions(positions: Positions, x: Float[Tensor, "B L D"]) -> None:
    """Raises UserError if there is not one position for each token."""
    batch, length = x.shape[:2]
    rows = positions.coordinates.shape[0] if positions.coordinates.ndim == 3 else batch
    if positions.length != length or rows not in (1, batch):
        raise UserError(
            f"expected positions of {batch} rows of {length} tokens, got {rows} of {positions.length}; give each token "
            "a position"
        )


def _check_rows(mask: Mask | None, x_BLD: Tensor) -> None:
    """Raises UserError for a mask of another number of rows."""
    rows = None if mask is None else mask.rows
    if rows is not None and rows != x_BLD.shape[0]:
        raise UserError(
            f"expected a mask of as many rows as the input, {x_BLD.shape[0]}, or of one row, got {rows}; select the "
            "mask's rows"
        )


def _encodings_inside_attention() -> list[str]:
    """Names of the encodings that are not added to the input."""
    classes = {name: registry.spec(name).target for name in registry.names()}
    return [name for name, cls in classes.items() if "embed" not in hooks_of(cls)]
