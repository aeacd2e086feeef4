"""Multi-head attention: *Attention Is All You Need*, section 3.2, and where an encoding has its say.

      x_BQD          source_BKD, or x itself
        |              |        |
      inject         inject     |           positions go into queries and keys, never into values
        |              |        |
      query           key     value         linear maps, then split into heads
        |              |        |
      rotate         rotate     |           each side by its own positions
        |              |        |
      q_BHQE         k_BHKE   v_BHKE        these make an AttentionCall
        '-------.------'        |
          q.k + terms           |           terms: from content and place
                |               |
          * scale + bias        |           scale: 1 / sqrt(E); bias: from place alone; the mask, too, comes here
                |               |
             softmax            |
                |               |
          weights_BHQK          |           what a map shows
                '-------.-------'
            weights.v + values              values: from the weights and place
                        |
                     y_BHQE                 heads side by side, then one linear map
                        |
                      y_BQD

inject, rotate, terms, bias and values are the hooks of an `Encoding`; a Geometry holds what they need of the positions.
"""

from __future__ import annotations

import torch
from torch import nn

from jarilab.attention.cache import LayerCache
from jarilab.attention.checks import check_positions, check_vectors
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry, geometry_of
from jarilab.attention.heads import groups_of, scale_of, site_of, split_heads
from jarilab.attention.kernels import Kernel, attend, check, is_blockwise
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings import compose
from jarilab.encodings.base import hooks_of, registry
from jarilab.nn.dropout import checked_rate
from jarilab.nn.layers import Scale
from jarilab.nn.linear import Linear, few_rows, linear
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


class AttentionKernel(nn.Module):
    """Computes an AttentionCall with the kernel it was given. It has no parameters: it is there for an ordinary forward
    hook to record its calls, without a second path through the model. site: what it is called on a tape, where the path
    to it, of another library's modules, does not say it."""

    def __init__(self, kernel: Kernel = "auto", site: str | None = None):
        super().__init__()
        self.kernel: Kernel = kernel
        self.site = site

    def forward(self, call: AttentionCall) -> Float[Tensor, "B H Q W"]:
        return attend(call, self.kernel)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}"


class Attention(nn.Module):
    """Queries from one sequence, keys and values from the same or another; H heads; one output projection.

        attention = jarilab.Attention(64, n_heads=8, encoding="rotary")
        y_BLD = attention(x_BLD, mask=jarilab.Mask(causal=True))

    d_model: D of input and output. n_heads: H. encoding: a spec such as `rotary:base=500`, or None where the stack
    around this attention owns the encoding and passes a `Geometry`. d_head: E of queries and keys, D / H by default.
    d_value: E of values, as d_head by default. causal: what an encoding may rely on; the mask is the caller's. cross:
    keys may come from another frame of positions. scale: divide q.k by sqrt(E), or by nothing. dropout: on the
    attention weights. kernel: see `jarilab.attention.kernels`. n_kv_heads: how many heads keys and values have, each
    for as many heads of queries (*GQA*, Ainslie et al. 2023; 1 is *multi-query*, Shazeer 2019); H by default. bias: of
    the linear maps.

    Raises UserError for a width that the heads do not divide, heads that those of keys do not divide, an encoding that
    cannot work here, a kernel that cannot do what the encoding needs.
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
        of_keys = groups_of(n_heads, n_kv_heads)
        self.query = Linear(d_model, n_heads * self.site.d_head, bias)
        self.key = Linear(d_model, of_keys * self.site.d_head, bias)
        self.value = Linear(d_model, of_keys * self.site.d_value, bias)
        self.out = Linear(n_heads * self.site.d_value, d_model, bias)
        self.attend = AttentionKernel(kernel)
        self.encoding = None
        if encoding is not None:
            self.encoding = compose.build(encoding, self.site)
            check(kernel, [self.encoding], dropout=dropout)
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
            q_BHQE, k_BHKE, v_BHKE, *states = self._project_cross(x, source, geometry, cache)
        else:
            q_BHQE, k_BHKE, v_BHKE, *states = self._project_self(x, geometry, cache)
        dropout = self.dropout if self.training else 0.0
        scale = self.scale * geometry.encoding.scale_factor
        call = AttentionCall(q_BHQE, k_BHKE, v_BHKE, geometry, scale, dropout, states=tuple(states))
        y_BHQE = self.attend(call)
        y_BQD = y_BHQE.transpose(1, 2).flatten(-2)
        return self.out(y_BQD)

    def _project_self(
        self, x_BLD: Tensor, geometry: Geometry, cache: LayerCache | None
    ) -> tuple[Tensor, ...]:
        """Queries, and keys, values and states of the keys, those in the cache too, each `(B, H, L, E)`."""
        encoding, site = geometry.encoding, self.site
        if "inject" in encoding.hooks:
            # DETR: positions go into what queries and keys are made of, never into the values.
            placed_BLD = encoding.inject(x_BLD, geometry.q_pos)
            q_BLD, k_BLD = self.query(placed_BLD), self.key(placed_BLD)
            v_BLD = self.value(x_BLD)
        else:
            q_BLD, k_BLD, v_BLD = self._map_at_once(x_BLD)
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
        """Queries, keys and values of the same tokens where these are, and behind the keys in the cache; with states of
        all keys."""
        encoding = geometry.encoding
        turns, anew = "rotate" in encoding.hooks, geometry.rotates_anew
        if turns:
            q_BHLE = encoding.rotate(q_BHLE, geometry.q_rotation)
        if turns and not anew:
            k_BHLE = encoding.rotate(k_BHLE, geometry.k_rotation)
        states = encoding.key_states(x_BLD)
        if cache is not None:
            k_BHLE, v_BHLE, *states = cache.append(k_BHLE, v_BHLE, *states)
        if turns and anew:
            k_BHLE = encoding.rotate(k_BHLE, geometry.k_rotation)
        return q_BHLE, k_BHLE, v_BHLE, *states

    def _map_at_once(self, x_BLD: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values by one product instead of three; the parameters stay apart, each with a name and
        initial values of its own. Of few rows, as where one token is written after the other, to lay the weights side
        by side would take longer than the product."""
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
        """Queries of all heads, and keys, values and states of the keys, from the source or as the cache holds them."""
        encoding, site = geometry.encoding, self.site
        q_BQD = self.query(encoding.inject(x_BQD, geometry.q_pos))
        q_BHQE = split_heads(q_BQD, site.n_heads, site.d_head)
        q_BHQE = encoding.rotate(q_BHQE, geometry.q_rotation)
        if cache is not None and cache.length:
            return q_BHQE, *cache.filled()
        if source_BKD is None:
            raise UserError(
                "cross-attention reads its keys from a source; pass it as the second argument, "
                "or a cache that holds them"
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
                "an attention without an encoding of its own, or with a cache, does not know where its queries and "
                "keys are; pass geometry=jarilab.geometry_of(encoding, q_pos, k_pos, mask)"
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
        """Whether its Geometry is to have nothing of Q x K written out. hooks: of the encoding."""
        dropout = self.dropout if self.training else 0.0
        return is_blockwise(self.attend.kernel, hooks, q_pos, k_pos, mask, dropout)


def _checked_positions(positions: Positions | None, x_BLD: Tensor, weight: Tensor) -> Positions:
    """The places of the tokens, 0, 1, 2, ... by default. Raises UserError as the two checks below."""
    check_vectors(x_BLD, weight)
    positions = positions or Positions.sequence(x_BLD.shape[1], device=x_BLD.device)
    check_positions(positions, x_BLD)
    return positions


def _inside() -> list[str]:
    """The encodings that need no input to add to."""
    classes = {name: registry.spec(name).target for name in registry.names()}
    return [name for name, cls in classes.items() if "embed" not in hooks_of(cls)]
