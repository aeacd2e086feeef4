"""An encoding of positions for attention that somebody else has written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from jarilab.attention import flex
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry, geometry_of
from jarilab.attention.kernels import attend, is_blockwise
from jarilab.attention.module import check_positions
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.encodings.compose import LayerEncodings, layer_specs
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

At = Positions | Int[Tensor, "... _"] | None
"""Positions of tokens: as a jarilab.Positions, or `(L,)` or `(B, L)` int64. None: 0, 1, 2, ..."""

INPUT_CALLS = {
    "embed": "enc.embed(x) once, at the model's input,",
    "inject": "enc.inject(x) in each layer, before the maps to queries and keys,",
}
"""The calls for the hooks that add positions to an input."""


class PositionEncoding(nn.Module):
    """An encoding as a module, to use in attention of one's own.

        enc = jarilab.PositionEncoding("rotary", n_heads=8, d_head=64, causal=True)
        y = enc.attention(q, k, v)  # as F.scaled_dot_product_attention(q, k, v, is_causal=True)

    `attention` works for every encoding. Those of images need `positions=jarilab.Positions.grid(rows, columns)`.
    `rotate`, `bias` and `score_mod` serve the encodings that are only that; others raise UserError and name what they
    need.

    spec: of the encoding, such as `t5:buckets=16`. n_heads: H. d_head: E of queries and keys. causal: queries never
    see later keys, which `attention`, `bias` and `score_mod` then ensure. cross: keys are of another sequence. d_model:
    D of the attention's input, H times E by default. d_value: E of values, d_head by default.

    Raises UserError for an unknown spec, or if it does not work with these arguments.
    """

    def __init__(
        self,
        spec: str,
        n_heads: int,
        d_head: int,
        *,
        causal: bool = False,
        cross: bool = False,
        d_model: int | None = None,
        d_value: int | None = None,
    ):
        super().__init__()
        site = Site(d_model or n_heads * d_head, n_heads, d_head, d_value or d_head, causal, cross)
        self._input_calls: set[str] = set()
        self._wrap(LayerEncodings(spec, site, 1), 0)

    @staticmethod
    def layers(
        spec: str, n_layers: int, n_heads: int, d_head: int, **options: bool | int | None
    ) -> nn.ModuleList:
        """One PositionEncoding for each layer. Layers share parameters as the encoding's source says.

        spec: one for all layers, or one for each: `rotary,rotary,none`. options: as of the class.
        """
        modules = [
            PositionEncoding(layer_specs(spec)[0], n_heads, d_head, **options)  # type: ignore[arg-type]
            for _ in range(n_layers)
        ]
        encodings = LayerEncodings(spec, modules[0].site, n_layers)
        for layer, module in enumerate(modules):
            module._wrap(encodings, layer)
            module._input_calls = modules[0]._input_calls  # one layer adds positions for all
        return nn.ModuleList(modules)

    def _wrap(self, encodings: LayerEncodings, layer: int) -> None:
        self.encoding: Encoding = encodings.by_layer[layer]
        self.site = self.encoding.site
        self.spec = encodings.spec

    @property
    def scale(self) -> float:
        """The factor of q.k: 1 / sqrt(E), times the encoding's factor."""
        return self.site.d_head**-0.5 * self.encoding.scale_factor

    def embed(self, x: Float[Tensor, "B L D"], positions: At = None) -> Float[Tensor, "B L D"]:
        """The model's input with positions. Raises UserError if the encoding adds nothing there."""
        self._check("embed")
        self._input_calls.add("embed")
        return self.encoding.embed(x, self._of_input(positions, x))

    def inject(self, x: Float[Tensor, "B L D"], positions: At = None) -> Float[Tensor, "B L D"]:
        """The input of the maps to queries and keys. Raises UserError if the encoding adds nothing there."""
        self._check("inject")
        self._input_calls.add("inject")
        return self.encoding.inject(x, self._of_input(positions, x))

    def rotate(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        positions: At = None,
        key_positions: At = None,
    ) -> tuple[Float[Tensor, "B H Q E"], Float[Tensor, "B H K E"]]:
        """Queries and keys rotated by their positions. Queries are at the last of the keys' positions by default.

        Raises UserError if the encoding does more than rotate, or does not rotate.
        """
        self._check_alone("rotate")
        q_pos, k_pos = self._both(positions, key_positions, q.shape[2], k.shape[2], q)
        check_positions(q_pos, q[:, 0])
        check_positions(k_pos, k[:, 0])
        encoding = self.encoding
        q_rotation = encoding.rotation_for(q_pos, "query", k_pos)
        k_rotation = encoding.rotation_for(k_pos, "key", k_pos)
        return encoding.rotate(q, q_rotation), encoding.rotate(k, k_rotation)

    def bias(
        self, queries: int, keys: int, positions: At = None, key_positions: At = None
    ) -> Float[Tensor, "*B H Q K"]:
        """The bias as a mask for F.scaled_dot_product_attention; -inf for later keys if `causal`.

        queries, keys: their numbers Q and K. Raises UserError if the encoding does more than add a bias, or adds none.
        """
        self._check_alone("bias")
        like = next(self.encoding.parameters(), torch.empty(0))
        q_pos, k_pos = self._both(positions, key_positions, queries, keys, like)
        additive = self._geometry(q_pos, k_pos, None).additive
        assert additive is not None
        return additive

    def score_mod(
        self, queries: int, keys: int, positions: At = None, key_positions: At = None
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
        """The bias as a `score_mod` for FlexAttention; -inf for later keys if `causal`.

        Raises UserError if the encoding is not a bias that depends on the distance alone.
        """
        self._check_alone("bias")
        like = next(self.encoding.parameters(), torch.empty(0))
        q_pos, k_pos = self._both(positions, key_positions, queries, keys, like)
        blocks = flex.distance_bias_of(self.encoding, q_pos, k_pos)
        if blocks is None or not flex.supports(self.encoding, q_pos, k_pos):
            raise UserError(
                f"score_mod expected a bias by distance alone, got {self.spec}, which depends on both positions; use "
                "enc.bias(Q, K) or enc.attention(q, k, v)"
            )
        if not self.site.causal:
            return blocks.score_mod
        q_order, k_order = q_pos.order, k_pos.order

        def causal(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            biased = blocks.score_mod(score, b, h, q, k)
            return torch.where(q_order[q] >= k_order[k], biased, -float("inf"))

        return causal

    def attention(
        self,
        query: Float[Tensor, "#B H Q _"],
        key: Float[Tensor, "#B G _ _"],
        value: Float[Tensor, "#B _ _ W"],
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        positions: At = None,
        key_positions: At = None,
        x: Float[Tensor, "_ _ D"] | None = None,
    ) -> Float[Tensor, "#B H Q W"]:
        """Attention with this encoding. Arguments as of F.scaled_dot_product_attention, before any rotation.

        attn_mask: boolean (True may attend) or a summand of the scores, any shape that expands to `(B, H, Q, K)`; it
        may be combined with is_causal. is_causal: also True if the encoding is `causal`. scale: of q.k, 1 / sqrt(E) by
        default. positions, key_positions: of queries and keys. By default keys are at 0, 1, 2, ... and queries are the
        last of them, as with a cache, which keeps keys unrotated. Without key_positions, as many keys as queries of one
        sequence are at `positions`. x: the input from which keys were made, for encodings that read it.

        Unlike PyTorch's function, a causal mask compares positions: 1 query over 5 keys sees all 5.
        Raises UserError for shapes that do not fit, a missing `x`, and an encoding of the input without `embed`.
        """
        self._check_input()
        key, value = self._grouped(query, key, value, enable_gqa)
        (rows,) = torch.broadcast_shapes(query.shape[:1], key.shape[:1])
        query, key, value = (part.expand(rows, -1, -1, -1) for part in (query, key, value))
        q_pos, k_pos = self._both(positions, key_positions, query.shape[2], key.shape[2], query)
        check_positions(q_pos, query[:, 0])
        check_positions(k_pos, key[:, 0])
        pairs, summand = split_mask(attn_mask, torch.Size((*query.shape[:3], key.shape[2])))
        geometry = self._geometry(q_pos, k_pos, pairs, is_causal, summand is not None, dropout_p)
        if summand is not None:
            geometry = with_summand(geometry, summand.to(query.dtype))
        encoding = self.encoding
        if "rotate" in encoding.hooks:
            query = encoding.rotate(query, geometry.q_rotation)
            key = encoding.rotate(key, geometry.k_rotation)
        factor = self.scale if scale is None else scale * encoding.scale_factor
        states = self._key_states(x, key)
        return attend(AttentionCall(query, key, value, geometry, factor, dropout_p, states=states))

    def _geometry(
        self,
        q_pos: Positions,
        k_pos: Positions,
        pairs: Tensor | None,
        is_causal: bool = False,
        dense: bool = True,
        dropout: float = 0.0,
    ) -> Geometry:
        causal = self.site.causal or is_causal
        mask = Mask(causal, pairs=pairs) if causal or pairs is not None else None
        width = min(self.site.d_head, self.site.d_value)
        blockwise = not dense and is_blockwise(
            "auto", self.encoding.hooks, q_pos, k_pos, mask, dropout, width
        )
        return geometry_of(self.encoding, q_pos, k_pos, mask, blockwise=blockwise)

    def _key_states(self, x_BKD: Tensor | None, key: Tensor) -> tuple[Tensor, ...]:
        if not self.encoding.n_states:
            return ()
        if x_BKD is None or x_BKD.shape[:2] != (key.shape[0], key.shape[2]):
            shape = "nothing" if x_BKD is None else tuple(x_BKD.shape)
            raise UserError(
                f"{self.spec} reads the attention's input: expected x of shape ({key.shape[0]}, {key.shape[2]}, "
                f"{self.site.d_model}), got {shape}; pass x=, the input from which all keys were made"
            )
        return self.encoding.key_states(x_BKD)

    def _grouped(
        self, query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
    ) -> tuple[Tensor, Tensor]:
        """Keys and values for each query head. Raises UserError for shapes that do not fit."""
        site = self.site
        shapes = f"got {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        if query.ndim != 4 or query.shape[1::2] != (site.n_heads, site.d_head):
            raise UserError(
                f"expected queries (B, {site.n_heads}, Q, {site.d_head}), {shapes}; build the encoding with the "
                "n_heads and d_head of your attention, and split heads before you call it"
            )
        expected = f"({query.shape[0]} or 1, heads, K, {site.d_head})"
        is_alike = key.ndim == 4 and (1 in (query.shape[0], key.shape[0]) or len(query) == len(key))
        if not is_alike or key.shape[3] != site.d_head:
            raise UserError(
                f"expected keys {expected}, {shapes}; give queries and keys the same rows and width of heads"
            )
        if value.ndim != 4 or key.shape[:3] != value.shape[:3]:
            raise UserError(
                f"expected keys and values of equal numbers of rows, heads and tokens, {shapes}; give each key a value"
            )
        groups = key.shape[1]
        if groups == site.n_heads:
            return key, value
        if not enable_gqa or site.n_heads % groups:
            raise UserError(
                f"expected {site.n_heads} heads of keys, {shapes}; pass enable_gqa=True if query heads share keys"
            )
        copies = site.n_heads // groups
        return key.repeat_interleave(copies, 1), value.repeat_interleave(copies, 1)

    def _both(
        self,
        positions: At,
        key_positions: At,
        queries: int,
        keys: int,
        like: Tensor,
    ) -> tuple[Positions, Positions]:
        """Positions of queries and keys; without any, the queries are the last of the keys."""
        cross, device = self.site.cross, like.device
        if key_positions is None and queries == keys and not cross:
            key_positions = positions
        k_pos = self._positions(key_positions, keys, 0, "source" if cross else "sequence", device)
        if positions is None and queries > keys and not cross:
            raise UserError(
                f"expected at most as many queries as keys, got {queries} and {keys}; pass positions=, or build the "
                "encoding with cross=True"
            )
        is_last = positions is None or positions is key_positions
        if is_last and queries == keys and not cross:
            return k_pos, k_pos
        if positions is None and key_positions is not None and not cross:
            return k_pos.slice(keys - queries, keys), k_pos
        first = 0 if cross else keys - queries
        return self._positions(
            positions, queries, first, "target" if cross else "sequence", device
        ), k_pos

    def _of_input(self, positions: At, x_BLD: Tensor) -> Positions:
        """Positions of the input's tokens."""
        pos = self._positions(positions, x_BLD.shape[1], 0, "sequence", x_BLD.device)
        check_positions(pos, x_BLD)
        return pos

    def _positions(
        self, at: At, length: int, first: int, frame: str, device: torch.device
    ) -> Positions:
        """Positions of `length` tokens; `first` is the place of the first in the order of all."""
        axes = self.encoding.axes
        if at is None and 1 not in axes:
            raise UserError(
                f"{self.spec}: expected positions of {' or '.join(map(str, axes))} axes, got none; pass positions=, "
                "such as jarilab.Positions.grid(rows, columns)"
            )
        if at is None:
            return Positions.sequence(length, first, frame=frame, device=device)
        if not isinstance(at, Positions):
            order_L = torch.arange(first, first + length, device=device)
            at = Positions(at.unsqueeze(-1), order_L, frame=frame, rising_order=order_L)
        if at.length != length:
            raise UserError(
                f"expected positions of {length} tokens, got {at.length}; give each token one"
            )
        return at

    def _check_input(self) -> None:
        """Raises UserError if positions were to be added to the input, and have not been."""
        if (self.encoding.hooks & set(INPUT_CALLS)) - self._input_calls:
            raise UserError(
                f"{self.spec} adds positions to the input, expected a call for that before attention, got none; "
                f"{self._uses()}"
            )

    def _check(self, hook: str) -> None:
        """Raises UserError unless the encoding has this hook."""
        if hook not in self.encoding.hooks:
            raise UserError(
                f"expected an encoding that has {hook}, got {self.spec}; {self._uses()}"
            )

    def _check_alone(self, hook: str) -> None:
        """Raises UserError unless the encoding is this hook and nothing else."""
        hooks, factor = self.encoding.hooks, self.encoding.scale_factor
        if hooks == {hook} and factor == 1:
            return
        does = " and ".join(sorted(hooks)) or "no positions at all"
        if factor != 1:
            does += f" and scores scaled by {factor:g}"
        raise UserError(
            f"expected an encoding that is nothing but {hook}, got {self.spec}, which has {does}; {self._uses()}"
        )

    def _uses(self) -> str:
        """What to call instead."""
        if not self.encoding.hooks:
            return "use F.scaled_dot_product_attention(q, k, v)"
        first = [INPUT_CALLS[hook] for hook in sorted(self.encoding.hooks & set(INPUT_CALLS))]
        return "use " + " and ".join([*first, "enc.attention(q, k, v)"])


def split_mask(
    mask: Tensor | None, shape: torch.Size
) -> tuple[Bool[Tensor, "B Q K"] | None, Tensor | None]:
    """An `attn_mask` as pairs that may attend in some head, and what is added to the scores.

    Raises UserError for integers, and if the mask does not expand to `shape`, which is `(B, H, Q, K)`.
    """
    if mask is None:
        return None, None
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        raise UserError(
            f"expected attn_mask to be boolean (True may attend) or floating point (added to the scores), got "
            f"{mask.dtype}; convert a mask of 1 and 0 with .bool()"
        )
    try:
        mask_BHQK = mask.expand(shape)
    except RuntimeError:
        raise UserError(
            f"expected attn_mask to expand to {shape}, got {tuple(mask.shape)}; give it the axes rows, heads, queries "
            "and keys, any of them 1"
        ) from None
    has_heads = mask.ndim > 2 and mask.shape[-3] > 1
    if mask.dtype is torch.bool:
        summand = torch.zeros(shape, device=mask.device).masked_fill(~mask_BHQK, -math.inf)
        return mask_BHQK.any(1), (summand if has_heads else None)
    # transformers hides keys with the smallest finite number instead of -inf.
    hidden_BHQK = mask_BHQK <= torch.finfo(mask.dtype).min / 2
    return ~hidden_BHQK.all(1), mask_BHQK.masked_fill(hidden_BHQK, -math.inf if has_heads else 0.0)


def with_summand(geometry: Geometry, summand: Tensor) -> Geometry:
    """The geometry with numbers added to the scores. Hidden keys of single heads have -inf."""
    bias = summand if geometry.bias is None else geometry.bias + summand
    additive = bias if geometry.allowed is None else bias.masked_fill(~geometry.allowed, -math.inf)
    # A row that one head alone hides would be NaN. Its keys become equal, and its output is zeroed.
    empty = additive.isneginf().all(-1, keepdim=True)
    if not bool(empty.any()):
        return replace(geometry, bias=bias, additive=additive)
    has_key = ~empty if geometry.has_key is None else geometry.has_key & ~empty
    return replace(
        geometry,
        bias=bias.masked_fill(empty, 0.0),
        additive=additive.masked_fill(empty, 0.0),
        has_key=has_key,
    )
