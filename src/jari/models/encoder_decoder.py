"""The Transformer of *Attention Is All You Need* (Vaswani et al. 2017): encoder, decoder, and both together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le, Lt
from torch import nn
from torch.nn import functional

from jari.attention.cache import KVCache, LayerCache
from jari.attention.geometry import Geometry, place_layers
from jari.attention.kernels import Kernel, check
from jari.attention.module import Attention, check_positions, site_of
from jari.encodings.compose import LayerEncodings
from jari.errors import UserError
from jari.layers import Activation, FeedForward, NormPlace, Residual, TokenEmbedding
from jari.masks import Mask
from jari.models.base import registry
from jari.positions import Positions, Tokens
from jari.shapes import Bool, Float, Int, Tensor


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each with a residual connection."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        norm: NormPlace,
        activation: Activation,
        dropout: float,
        kernel: Kernel,
    ):
        super().__init__()
        self.attention = Attention(width, heads, encoding=None, dropout=dropout, kernel=kernel)
        self.attention_residual = Residual(width, norm, dropout)
        self.feed_forward = FeedForward(width, hidden, activation, dropout)
        self.feed_forward_residual = Residual(width, norm, dropout)

    def forward(
        self, x: Float[Tensor, "B L D"], geometry: Geometry, cache: LayerCache | None = None
    ) -> Float[Tensor, "B L D"]:
        x = self.attention_residual(x, lambda x: self.attention(x, geometry=geometry, cache=cache))
        return self.feed_forward_residual(x, self.feed_forward)


class Encoder(nn.Module):
    """A stack in which every token sees every other: `(B, L, D)` in, `(B, L, D)` out.

        encoder = jari.Encoder(64, layers=2, encoding="rotary")
        y_BLD = encoder(x_BLD, keep=keep_BL)

    hidden: F of the feed-forward, 4 D by default. norm: `pre` or the original's `post`.
    encoding: one spec for all layers. Raises UserError where it cannot be an encoder's.
    """

    def __init__(
        self,
        width: int,
        heads: int = 8,
        layers: int = 2,
        *,
        encoding: str = "sinusoidal",
        hidden: int | None = None,
        norm: NormPlace = "pre",
        activation: Activation = "relu",
        dropout: float = 0.0,
        kernel: Kernel = "auto",
    ):
        super().__init__()
        if layers < 1:
            raise UserError(f"an encoder has 1 layer or more, got {layers}")
        hidden = 4 * width if hidden is None else hidden
        self.encoding = LayerEncodings(encoding, site_of(width, heads), layers)
        check(kernel, self.encoding.of_layer[0].hooks)
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, hidden, norm, activation, dropout, kernel) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        positions: Positions | None = None,
        keep: Bool[Tensor, "B L"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "B L D"]:
        """positions: 0, 1, 2, ... by default. keep: False on padding. mask: rules of one's own instead of `keep`."""
        if mask is not None and keep is not None:
            raise UserError("give either keep or mask; Mask(keys=keep, ...) holds both")
        mask = mask if keep is None else Mask(keys=keep)
        positions = positions or Positions.sequence(x.shape[1], device=x.device)
        check_positions(positions, x)
        x = self.encoding.embed(x, positions)
        for layer, geometry in zip(self.layers, place_layers(self.encoding, positions, positions, mask), strict=True):
            x = layer(x, geometry)
        return self.norm(x)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, then feed-forward."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        norm: NormPlace,
        activation: Activation,
        dropout: float,
        kernel: Kernel,
    ):
        super().__init__()
        self.self_attention = Attention(width, heads, encoding=None, causal=True, dropout=dropout, kernel=kernel)
        self.self_residual = Residual(width, norm, dropout)
        self.cross_attention = Attention(width, heads, encoding=None, cross=True, dropout=dropout, kernel=kernel)
        self.cross_residual = Residual(width, norm, dropout)
        self.feed_forward = FeedForward(width, hidden, activation, dropout)
        self.feed_forward_residual = Residual(width, norm, dropout)

    def forward(
        self,
        x: Float[Tensor, "B Q D"],
        memory: Float[Tensor, "B K D"],
        own: Geometry,
        cross: Geometry,
        own_cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Float[Tensor, "B Q D"]:
        x = self.self_residual(x, lambda x: self.self_attention(x, geometry=own, cache=own_cache))
        x = self.cross_residual(x, lambda x: self.cross_attention(x, memory, geometry=cross, cache=cross_cache))
        return self.feed_forward_residual(x, self.feed_forward)


class Decoder(nn.Module):
    """A causal stack that also attends to a source. Two encodings: its own, and the one between it and the source."""

    def __init__(
        self,
        width: int,
        heads: int = 8,
        layers: int = 2,
        *,
        encoding: str = "sinusoidal",
        cross_encoding: str = "none",
        hidden: int | None = None,
        norm: NormPlace = "pre",
        activation: Activation = "relu",
        dropout: float = 0.0,
        kernel: Kernel = "auto",
    ):
        super().__init__()
        if layers < 1:
            raise UserError(f"a decoder has 1 layer or more, got {layers}")
        hidden = 4 * width if hidden is None else hidden
        self.encoding = LayerEncodings(encoding, site_of(width, heads, causal=True), layers)
        self.cross_encoding = LayerEncodings(cross_encoding, site_of(width, heads, cross=True), layers)
        for encodings in (self.encoding, self.cross_encoding):
            check(kernel, encodings.of_layer[0].hooks)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, hidden, norm, activation, dropout, kernel) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "B Q D"],
        memory: Float[Tensor, "B K D"],
        *,
        positions: Positions | None = None,
        memory_positions: Positions | None = None,
        memory_keep: Bool[Tensor, "B K"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """memory: the encoder's output. memory_keep: False on its padding. cache: what was read before; `positions`
        must then be given. Padding among the queries needs no mask, as nothing after it is read."""
        if cache is not None and positions is None:
            raise UserError("with a cache the decoder must be told where the new tokens are; pass positions=")
        positions = positions or Positions.sequence(x.shape[1], frame="target", device=x.device)
        memory_positions = memory_positions or Positions.sequence(memory.shape[1], frame="source", device=x.device)
        check_positions(positions, x)
        check_positions(memory_positions, memory)
        if cache is not None:
            cache.belong_to(memory)
        k_pos = positions if cache is None else cache.extend(positions)
        memory_mask = None if memory_keep is None else Mask(keys=memory_keep)
        own = place_layers(self.encoding, positions, k_pos, Mask(causal=True), new_k_pos=positions)
        cross = place_layers(self.cross_encoding, positions, memory_positions, memory_mask)
        x = self.encoding.embed(x, positions)
        for i, layer in enumerate(self.layers):
            caches = (None, None) if cache is None else (cache.own[i], cache.source[i])
            x = layer(x, memory, own[i], cross[i], *caches)
        return self.norm(x)


@dataclass(frozen=True, eq=False)
class Memory:
    """What the encoder made of a source, and where."""

    x: Float[Tensor, "B K D"]
    source: Tokens


@registry.register("encoder_decoder")
class EncoderDecoder(nn.Module):
    """Source tokens in, scores of target tokens out.

        model = jari.EncoderDecoder(source_vocabulary=100, target_vocabulary=100, width=64, encoding="rotary")
        scores_BQV = model(source_ids_BK, target_ids_BQ)

    encoding: the spec for encoder and decoder; encoder_encoding, decoder_encoding: for one of them alone.
    cross_encoding: between decoder and source; none by default, since distances between two sequences mean something
    only where they were made to. tied: the generator's weights are the target embedding's.
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        width: Annotated[int, Ge(1), Le(65536)] = 64,
        heads: Annotated[int, Ge(1), Le(1024)] = 8,
        encoder_layers: Annotated[int, Ge(1), Le(1000)] = 2,
        decoder_layers: Annotated[int, Ge(1), Le(1000)] = 2,
        hidden: Annotated[int, Ge(1), Le(262144)] | None = None,
        encoding: str = "sinusoidal",
        encoder_encoding: str | None = None,
        decoder_encoding: str | None = None,
        cross_encoding: str = "none",
        norm: NormPlace = "pre",
        activation: Activation = "relu",
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        tied: bool = False,
        kernel: Kernel = "auto",
    ):
        super().__init__()
        self.source_embedding = TokenEmbedding(source_vocabulary, width)
        self.target_embedding = TokenEmbedding(target_vocabulary, width)
        self.encoder = Encoder(
            width,
            heads,
            encoder_layers,
            encoding=encoder_encoding or encoding,
            hidden=hidden,
            norm=norm,
            activation=activation,
            dropout=dropout,
            kernel=kernel,
        )
        self.decoder = Decoder(
            width,
            heads,
            decoder_layers,
            encoding=decoder_encoding or encoding,
            cross_encoding=cross_encoding,
            hidden=hidden,
            norm=norm,
            activation=activation,
            dropout=dropout,
            kernel=kernel,
        )
        self.generator = None if tied else nn.Linear(width, target_vocabulary, bias=False)

    def forward(
        self, source: Int[Tensor, "B K"] | Tokens, target: Int[Tensor, "B Q"] | Tokens
    ) -> Float[Tensor, "B Q V"]:
        """Scores of the token after each target token, given the source and the target tokens up to it."""
        memory = self.start(Tokens.of(source, "source"))
        target = Tokens.of(target, "target")
        return self.step(memory, target.ids, target.positions, None)

    def start(self, source: Tokens) -> Memory:
        """Read the source once."""
        x = self.encoder(self.source_embedding(source.ids), positions=source.positions, keep=source.keep)
        return Memory(x, source)

    def step(
        self, state: Memory, ids: Int[Tensor, "B L"], positions: Positions, cache: KVCache | None
    ) -> Float[Tensor, "B L V"]:
        """Scores after each of `ids`; with a cache, `ids` are only the tokens that are not in it yet."""
        x = self.decoder(
            self.target_embedding(ids),
            state.x,
            positions=positions,
            memory_positions=state.source.positions,
            memory_keep=state.source.keep,
            cache=cache,
        )
        weight = self.target_embedding.weight if self.generator is None else self.generator.weight
        return functional.linear(x, weight)

    def new_cache(self) -> KVCache:
        return KVCache(len(self.decoder.layers))

    def longest(self) -> dict[str, int | None]:
        """How many positions each side can tell apart, None for no end."""
        return {"source": self.encoder.encoding.longest, "target": self.decoder.encoding.longest}
