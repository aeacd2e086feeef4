"""The encoder and decoder stacks that models are built from."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack, cast

import torch
from torch import nn

from jarilab.attention.cache import KVCache
from jarilab.attention.geometry import geometry_of, geometry_of_layers
from jarilab.attention.module import check_positions, check_vectors
from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.models.layers import DecoderLayer, EncoderLayer, LayerOptions, StackKeywords
from jarilab.models.one_token import one_token
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


class Encoder(nn.Module):
    """A stack in which every token sees every other: `(B, L, D)` in, `(B, L, D)` out.

        encoder = jarilab.Encoder(64, n_layers=2, encoding="rotary")
        y_BLD = encoder(x_BLD, keep=keep_BL)

    encoding: one spec for all layers. embedding_norm: a norm after the positions and before the first layer, as in BERT
    and BART. Raises UserError for an encoding that an encoder cannot use.
    """

    @unpack_options(LayerOptions())
    def __init__(
        self,
        d_model: int,
        n_heads: int = 8,
        n_layers: int = 2,
        *,
        encoding: str = "sinusoidal",
        embedding_norm: bool = False,
        drop_path: float = 0.0,
        **layer: Unpack[StackKeywords],
    ):
        super().__init__()
        options = LayerOptions(d_model, n_heads, drop_path=drop_path, **layer)
        self.encoding = options.encodings(encoding, n_layers)
        self.embedding_norm = options.one_norm() if embedding_norm else nn.Identity()
        self.layers = nn.ModuleList(
            EncoderLayer(options.of_layer(i, n_layers)) for i in range(n_layers)
        )
        self.norm = options.last_norm()

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        positions: Positions | None = None,
        keep: Bool[Tensor, "B L"] | None = None,
        mask: Mask | None = None,
        first: int | None = None,
    ) -> Float[Tensor, "B R D"]:
        """Return a vector for each token, or for the first R.

        positions: 0, 1, 2, ... by default. keep: False on padding. mask: your own rules instead of `keep`. first: R, to
        compute only the first R tokens in the last layer; their values do not change. Raises UserError if R tokens do
        not exist, and for `first` or `keep` together with `mask`.
        """
        _check_rules(x.shape[1], keep, mask, first)
        check_vectors(x, self.layers[0].attention.query.weight)  # type: ignore
        mask = mask if keep is None else Mask(keys=keep)
        positions = positions or Positions.sequence(x.shape[1], device=x.device)
        check_positions(positions, x)
        x_BLD = self.embedding_norm(self.encoding.embed(x, positions))
        attention = cast(EncoderLayer, self.layers[0]).attention
        blockwise = attention.is_blockwise(self.encoding.hooks, positions, positions, mask)
        geometries = geometry_of_layers(
            self.encoding, positions, positions, mask, blockwise=blockwise
        )
        complete = len(self.layers) if first is None else len(self.layers) - 1
        for layer, geometry in zip(self.layers[:complete], geometries[:complete], strict=True):
            x_BLD = layer(x_BLD, geometry)
        if first is None:
            return self.norm(x_BLD)
        encoding = self.encoding.by_layer[-1]
        last = geometry_of(encoding, positions.slice(0, first), positions, mask)
        x_BRD = self.layers[-1].of_first(x_BLD, last, first)  # type: ignore[operator]
        return self.norm(x_BRD)


def _check_rules(length: int, keep: Tensor | None, mask: Mask | None, first: int | None) -> None:
    """Raises UserError for arguments of an encoder that exclude each other."""
    if mask is not None and keep is not None:
        raise UserError("give either keep or mask; Mask(keys=keep, ...) holds both")
    if first is not None and not 1 <= first <= length:
        raise UserError(f"first is a number of tokens: expected 1 to {length}, got {first}")
    if mask is not None and first is not None:
        raise UserError(
            "first goes with keep, since a mask may be of all queries; cut the output: y[:, :1]"
        )


def mean_of_tokens(
    x: Float[Tensor, "B L D"], keep: Bool[Tensor, "B L"] | None
) -> Float[Tensor, "B D"]:
    """Return the mean of the tokens that are not padding."""
    if keep is None:
        return x.mean(1)
    real_BL1 = keep.unsqueeze(-1).to(x.dtype)
    return (x * real_BL1).sum(1) / real_BL1.sum(1)


def first_token(
    x: Float[Tensor, "B L D"], keep: Bool[Tensor, "B L"] | None
) -> Float[Tensor, "B D"]:
    """Return the first token of each row that is not padding."""
    return x[:, 0] if keep is None else _of_rows(x, keep.long().argmax(1))


def last_token(x: Float[Tensor, "B L D"], keep: Bool[Tensor, "B L"] | None) -> Float[Tensor, "B D"]:
    """Return the last token of each row that is not padding."""
    # argmax is the first index of the largest number.
    return x[:, -1] if keep is None else _of_rows(x, keep.cumsum(1).argmax(1))


def _of_rows(x_BLD: Tensor, index_B: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
    return x_BLD[torch.arange(len(index_B), device=index_B.device), index_B]


class Decoder(nn.Module):
    """A causal stack that also attends to a source, with one encoding for each kind of attention.

    embedding_norm: a norm after the positions and before the first layer, as in BART.
    """

    @unpack_options(LayerOptions())
    def __init__(
        self,
        d_model: int,
        n_heads: int = 8,
        n_layers: int = 2,
        *,
        encoding: str = "sinusoidal",
        cross_encoding: str = "none",
        embedding_norm: bool = False,
        drop_path: float = 0.0,
        **layer: Unpack[StackKeywords],
    ):
        super().__init__()
        options = LayerOptions(d_model, n_heads, drop_path=drop_path, **layer)
        self.encoding = options.encodings(encoding, n_layers, causal=True)
        self.cross_encoding = options.encodings(cross_encoding, n_layers, cross=True)
        self.embedding_norm = options.one_norm() if embedding_norm else nn.Identity()
        self.layers = nn.ModuleList(
            DecoderLayer(options.of_layer(i, n_layers)) for i in range(n_layers)
        )
        self.norm = options.last_norm()

    def forward(
        self,
        x: Float[Tensor, "R Q D"],
        memory: Float[Tensor, "B K D"],
        *,
        positions: Positions | None = None,
        memory_positions: Positions | None = None,
        memory_keep: Bool[Tensor, "B K"] | None = None,
        cache: KVCache | None = None,
        origin: Tensor | None = None,
    ) -> Float[Tensor, "R Q D"]:
        """Return a vector for each target token. Row r of `x` (R = B * W rows) belongs to source r // W.

        memory: the encoder's output. memory_keep: False on padding of the source. cache: keys and values of earlier
        tokens; then `positions` is required. origin: the memory that `memory` was selected from, which identifies it to
        the cache; itself by default. Raises UserError if R is not a multiple of B.
        """
        if cache is not None and positions is None:
            raise UserError(
                "with a cache the decoder cannot know where the new tokens are; pass positions="
            )
        check_vectors(x, self.layers[0].self_attention.query.weight)  # type: ignore
        check_vectors(memory, self.layers[0].cross_attention.key.weight)  # type: ignore
        positions = positions or Positions.sequence(x.shape[1], frame="target", device=x.device)
        memory_positions = memory_positions or Positions.sequence(
            memory.shape[1], frame="source", device=x.device
        )
        check_positions(positions, x)
        check_positions(memory_positions, memory)
        # `len` of a tensor is a Python number, which an export would fix.
        sources = memory.shape[0]
        hypotheses = _hypotheses(sources, x.shape[0])
        if cache is not None:
            cache.belong_to(memory if origin is None else origin)
            cache.check_sources(sources)
        k_pos = positions if cache is None else cache.extend(positions)
        # Also hides padding behind the target's tokens.
        mask = Mask(causal=True)
        memory_mask = None if memory_keep is None else Mask(keys=memory_keep)
        first = cast(DecoderLayer, self.layers[0])
        blockwise = first.self_attention.is_blockwise(self.encoding.hooks, positions, k_pos, mask)
        self_geometries = geometry_of_layers(
            self.encoding, positions, k_pos, mask, new_k_pos=positions, blockwise=blockwise
        )
        q_pos = _side_by_side(positions, hypotheses)
        blockwise = first.cross_attention.is_blockwise(
            self.cross_encoding.hooks, q_pos, memory_positions, memory_mask
        )
        cross = geometry_of_layers(
            self.cross_encoding, q_pos, memory_positions, memory_mask, blockwise=blockwise
        )
        x_RQD = self.embedding_norm(self.encoding.embed(x, positions))
        writes = one_token(self, self.in_order, x_RQD, cache)
        # The first token finds no keys of the source yet.
        if cache is not None and writes is not None and cache.source[0].length:
            return self.norm(writes(x_RQD, self_geometries, cross, cache.target, cache.source))
        for i, layer in enumerate(self.layers):
            caches = (None, None) if cache is None else (cache.target[i], cache.source[i])
            x_RQD = layer(x_RQD, memory, self_geometries[i], cross[i], *caches)
        return self.norm(x_RQD)

    def in_order(self) -> list[nn.Module]:
        """Return the layers in order."""
        return list(self.layers)


def _hypotheses(sources: int, rows: int) -> int:
    """Return W, the number of rows of each source. Raises UserError if the rows do not divide evenly."""
    if not sources or rows % sources:
        raise UserError(
            f"each source has the same number of hypotheses: expected a multiple of {sources} rows of targets, "
            f"got {rows}; select the same sources in the state and in the ids"
        )
    return rows // sources


def _side_by_side(positions: Positions, hypotheses: int) -> Positions:
    """Reshape the positions of Q queries in B * W rows to W * Q queries in B rows."""
    if hypotheses == 1:
        return positions

    extent, unplaced = positions.extent, positions.unplaced
    if extent is not None and extent.ndim == 2:
        extent = extent[::hypotheses]  # the hypotheses about a source are in one frame

    def folded(held: Tensor, axes: int) -> Tensor:
        if held.ndim < axes or held.shape[0] == 1:
            return torch.cat([held] * hypotheses, held.ndim - axes + 1)
        return held.reshape(-1, hypotheses * held.shape[1], *held.shape[2:])

    return replace(
        positions,
        coordinates=folded(positions.coordinates, 3),
        order=positions.order.repeat(hypotheses),
        unplaced=None if unplaced is None else folded(unplaced, 2),
        extent=extent,
    )
