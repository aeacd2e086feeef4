"""The Transformer of *Attention Is All You Need* (Vaswani et al. 2017): encoder, decoder, and both together."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le, Lt
from torch import nn
from torch.nn import functional

from jarilab.attention.cache import KVCache, LayerCache, positions_of
from jarilab.attention.geometry import Geometry, geometry_of, geometry_of_layers
from jarilab.attention.kernels import Kernel, check
from jarilab.attention.module import Attention, check_positions, check_vectors, site_of
from jarilab.encodings.compose import LayerEncodings
from jarilab.errors import UserError
from jarilab.masks import Mask
from jarilab.models.base import check_layers, one_a_row, registry
from jarilab.nn.layers import Activation, FeedForward, NormPlace, Residual, TokenEmbedding
from jarilab.positions import Positions, Tokens
from jarilab.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class LayerOptions:
    """What the layers of a stack are made of. hidden: F of the feed-forward, 4 D by default. drop_path: of the last
    layer; it rises evenly from 0 in the first."""

    width: int
    heads: int
    hidden: int | None = None
    norm: NormPlace = "pre"
    activation: Activation = "relu"
    dropout: float = 0.0
    kernel: Kernel = "auto"
    drop_path: float = 0.0

    def of_layer(self, layer: int, layers: int) -> LayerOptions:
        """Those of one layer of a stack."""
        return (
            replace(self, drop_path=self.drop_path * layer / max(1, layers - 1))
            if self.drop_path
            else self
        )

    def encodings(
        self, spec: str, layers: int, *, causal: bool = False, cross: bool = False
    ) -> LayerEncodings:
        """The encodings of one kind of attention in the stack. Raises UserError where they, or the stack, cannot be."""
        site = site_of(self.width, self.heads, causal=causal, cross=cross)
        encodings = LayerEncodings(spec, site, check_layers(layers))
        check(self.kernel, encodings.of_layer[0].hooks)
        return encodings

    def attention(self, *, causal: bool = False, cross: bool = False) -> Attention:
        return Attention(
            self.width,
            self.heads,
            encoding=None,
            causal=causal,
            cross=cross,
            dropout=self.dropout,
            kernel=self.kernel,
        )

    def feed_forward(self) -> FeedForward:
        hidden = 4 * self.width if self.hidden is None else self.hidden
        return FeedForward(self.width, hidden, self.activation, self.dropout)

    def residual(self) -> Residual:
        return Residual(self.width, self.norm, self.dropout, self.drop_path)

    def last_norm(self) -> nn.Module:
        """What a stack of these ends with."""
        return nn.LayerNorm(self.width) if self.norm == "pre" else nn.Identity()


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each with a residual connection."""

    def __init__(self, options: LayerOptions):
        super().__init__()
        self.attention = options.attention()
        self.attention_residual = options.residual()
        self.feed_forward = options.feed_forward()
        self.feed_forward_residual = options.residual()

    def forward(
        self, x: Float[Tensor, "B L D"], geometry: Geometry, cache: LayerCache | None = None
    ) -> Float[Tensor, "B L D"]:
        x = self.attention_residual(x, lambda x: self.attention(x, geometry=geometry, cache=cache))
        return self.feed_forward_residual(x, self.feed_forward)

    def of_first(
        self, x: Float[Tensor, "B L D"], geometry: Geometry, first: int
    ) -> Float[Tensor, "B R D"]:
        """What `forward` gives for the first tokens, R of them, without the work for the others: they are keys alone.
        `geometry` has as many queries."""
        x = self.attention_residual(
            x, lambda x: self.attention(x[:, :first], x, geometry=geometry), first
        )
        return self.feed_forward_residual(x, self.feed_forward)


class Encoder(nn.Module):
    """A stack in which every token sees every other: `(B, L, D)` in, `(B, L, D)` out.

        encoder = jarilab.Encoder(64, layers=2, encoding="rotary")
        y_BLD = encoder(x_BLD, keep=keep_BL)

    hidden: F of the feed-forward, 4 D by default. norm: `pre` or the original's `post`. drop_path: the share of
    examples that leave out a sublayer of the last layer in training; it rises evenly from 0 in the first.
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
        drop_path: float = 0.0,
    ):
        super().__init__()
        options = LayerOptions(width, heads, hidden, norm, activation, dropout, kernel, drop_path)
        self.encoding = options.encodings(encoding, layers)
        self.layers = nn.ModuleList(
            EncoderLayer(options.of_layer(i, layers)) for i in range(layers)
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
        """positions: 0, 1, 2, ... by default. keep: False on padding. mask: rules of one's own instead of `keep`.
        first: how many of the first tokens the output is wanted of, R; all by default. The last layer then leaves out
        the others' queries, which changes nothing for the first, but its map has their rows alone. Raises UserError for
        a number of tokens that are not there, and with a mask of one's own.
        """
        if mask is not None and keep is not None:
            raise UserError("give either keep or mask; Mask(keys=keep, ...) holds both")
        if first is not None and not 1 <= first <= x.shape[1]:
            raise UserError(f"first is a number of tokens: expected 1 to {x.shape[1]}, got {first}")
        if mask is not None and first is not None:
            raise UserError(
                "first goes with keep, since a mask may be of all queries; cut the output: y[:, :1]"
            )
        check_vectors(x, self.layers[0].attention.query.weight)  # type: ignore
        mask = mask if keep is None else Mask(keys=keep)
        positions = positions or Positions.sequence(x.shape[1], device=x.device)
        check_positions(positions, x)
        x = self.encoding.embed(x, positions)
        geometries = geometry_of_layers(self.encoding, positions, positions, mask)
        whole = len(self.layers) if first is None else len(self.layers) - 1
        for layer, geometry in zip(self.layers[:whole], geometries[:whole], strict=True):
            x = layer(x, geometry)
        if first is not None:
            last = geometry_of(
                self.encoding.of_layer[-1], positions.slice(0, first), positions, mask
            )
            x = self.layers[-1].of_first(x, last, first)  # type: ignore[operator]
        return self.norm(x)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, then feed-forward."""

    def __init__(self, options: LayerOptions):
        super().__init__()
        self.self_attention = options.attention(causal=True)
        self.self_residual = options.residual()
        self.cross_attention = options.attention(cross=True)
        self.cross_residual = options.residual()
        self.feed_forward = options.feed_forward()
        self.feed_forward_residual = options.residual()

    def forward(
        self,
        x: Float[Tensor, "R Q D"],
        memory: Float[Tensor, "B K D"],
        own: Geometry,
        cross: Geometry,
        own_cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Float[Tensor, "R Q D"]:
        """R = B * W: the W hypotheses about a source stand side by side as its queries, W * Q of them, so that its keys
        and values are there once. `cross` is placed accordingly."""
        x = self.self_residual(x, lambda x: self.self_attention(x, geometry=own, cache=own_cache))
        rows = x.shape
        x = x.reshape(memory.shape[0], -1, rows[2])
        x = self.cross_residual(
            x, lambda x: self.cross_attention(x, memory, geometry=cross, cache=cross_cache)
        )
        return self.feed_forward_residual(x.view(rows), self.feed_forward)


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
        drop_path: float = 0.0,
    ):
        super().__init__()
        options = LayerOptions(width, heads, hidden, norm, activation, dropout, kernel, drop_path)
        self.encoding = options.encodings(encoding, layers, causal=True)
        self.cross_encoding = options.encodings(cross_encoding, layers, cross=True)
        self.layers = nn.ModuleList(
            DecoderLayer(options.of_layer(i, layers)) for i in range(layers)
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
        """memory: the encoder's output; row r of `x` belongs to its row r // W, where R = B * W. memory_keep: False on
        its padding. cache: what was read before; `positions` must then be given. origin: the memory that this one was
        selected from, by which the cache tells it from another; itself by default. Padding among the queries needs no
        mask, as nothing after it is read. Raises UserError where the rows are not W for each source."""
        if cache is not None and positions is None:
            raise UserError(
                "with a cache the decoder must be told where the new tokens are; pass positions="
            )
        check_vectors(x, self.layers[0].self_attention.query.weight)  # type: ignore
        check_vectors(memory, self.layers[0].cross_attention.key.weight)  # type: ignore
        positions = positions or Positions.sequence(x.shape[1], frame="target", device=x.device)
        memory_positions = memory_positions or Positions.sequence(
            memory.shape[1], frame="source", device=x.device
        )
        check_positions(positions, x)
        check_positions(memory_positions, memory)
        if not len(memory) or len(x) % len(memory):
            raise UserError(
                f"each source has the same number of hypotheses: expected a multiple of {len(memory)} rows of targets, "
                f"got {len(x)}; select the same sources in the state and in the ids"
            )
        if cache is not None:
            cache.belong_to(memory if origin is None else origin)
            cache.check_sources(len(memory))
        k_pos = positions if cache is None else cache.extend(positions)
        memory_mask = None if memory_keep is None else Mask(keys=memory_keep)
        own = geometry_of_layers(
            self.encoding, positions, k_pos, Mask(causal=True), new_k_pos=positions
        )
        side_by_side = _side_by_side(positions, len(x) // len(memory))
        cross = geometry_of_layers(self.cross_encoding, side_by_side, memory_positions, memory_mask)
        x = self.encoding.embed(x, positions)
        for i, layer in enumerate(self.layers):
            caches = (None, None) if cache is None else (cache.own[i], cache.source[i])
            x = layer(x, memory, own[i], cross[i], *caches)
        return self.norm(x)


def _side_by_side(positions: Positions, hypotheses: int) -> Positions:
    """The places of Q queries of B * W rows as those of W * Q queries of B rows."""
    if hypotheses == 1:
        return positions

    extent = positions.extent
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
        unplaced=None if positions.unplaced is None else folded(positions.unplaced, 2),
        extent=extent,
    )


@dataclass(frozen=True, eq=False)
class Memory:
    """What the encoder made of the sources, where, and which of it is no padding (all if None).

    origin: the first of all `x` that this one was selected from; itself where None.
    """

    x: Float[Tensor, "B K D"]
    positions: Positions
    keep: Bool[Tensor, "B K"] | None
    origin: Tensor | None = None

    def select(self, rows: Int[Tensor, " R"]) -> Memory:
        """That of these sources alone, in this order."""
        keep = None if self.keep is None else self.keep.index_select(0, rows)
        origin = self.x if self.origin is None else self.origin
        return Memory(
            self.x.index_select(0, rows), positions_of(self.positions, rows), keep, origin
        )


@registry.register("encoder_decoder")
class EncoderDecoder(nn.Module):
    """Source tokens in, scores of target tokens out.

        model = jarilab.EncoderDecoder(source_vocabulary=100, target_vocabulary=100, width=64, encoding="rotary")
        scores_BQV = model(source_ids_BK, target_ids_BQ)

    encoding: the spec for encoder and decoder; encoder_encoding, decoder_encoding: for one of them alone.
    cross_encoding: between decoder and source; none by default, since distances between two sequences mean something
    only where they were made to. tied: the generator's weights are the target embedding's. shared: so are the source
    embedding's (with `tied` all three are one matrix). Raises UserError for that where the vocabularies differ in size.
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
        shared: bool = False,
        kernel: Kernel = "auto",
    ):
        super().__init__()
        if shared and source_vocabulary != target_vocabulary:
            raise UserError(
                f"one embedding for source and target needs one vocabulary: expected the same size, got "
                f"{source_vocabulary} source and {target_vocabulary} target tokens; use a joint vocabulary, or "
                "shared=false"
            )
        # Absent where shared, since a second name for the same weights could not be saved.
        self.source_embedding = None if shared else TokenEmbedding(source_vocabulary, width)
        self.target_embedding = TokenEmbedding(target_vocabulary, width)
        options = asdict(LayerOptions(width, heads, hidden, norm, activation, dropout, kernel))
        self.encoder = Encoder(
            layers=encoder_layers, encoding=encoder_encoding or encoding, **options
        )
        own = decoder_encoding or encoding
        self.decoder = Decoder(
            layers=decoder_layers, encoding=own, cross_encoding=cross_encoding, **options
        )
        self.generator = None if tied else nn.Linear(width, target_vocabulary, bias=False)

    def forward(
        self, source: Int[Tensor, "B K"] | Tokens, target: Int[Tensor, "B Q"] | Tokens
    ) -> Float[Tensor, "B Q V"]:
        """Scores of the token after each target token, given the source and the target tokens up to it."""
        memory = self.start(Tokens.of(source, "source"))
        target = one_a_row(Tokens.of(target, "target"))
        return self.step(memory, target.ids, target.positions, None)

    def start(self, source: Tokens | None) -> Memory:
        """Read the source once. Raises UserError where there is none, or several packed into a row."""
        source = one_a_row(source)
        embedding = (
            self.target_embedding if self.source_embedding is None else self.source_embedding
        )
        x = self.encoder(embedding(source.ids), positions=source.positions, keep=source.keep)
        return Memory(x, source.positions, source.keep)

    def step(
        self, state: Memory, ids: Int[Tensor, "R L"], positions: Positions, cache: KVCache | None
    ) -> Float[Tensor, "R L V"]:
        """Scores after each of `ids`; with a cache, `ids` are only the tokens that are not in it yet."""
        x = self.decoder(
            self.target_embedding(ids),
            state.x,
            positions=positions,
            memory_positions=state.positions,
            memory_keep=state.keep,
            cache=cache,
            origin=state.origin,
        )
        weight = self.target_embedding.weight if self.generator is None else self.generator.weight
        return functional.linear(x, weight)

    def new_cache(self) -> KVCache:
        return KVCache(len(self.decoder.layers))

    def max_positions(self) -> dict[str, int | None]:
        """How many positions each side can tell apart, None for no end."""
        return {
            "source": self.encoder.encoding.max_positions,
            "target": self.decoder.encoding.max_positions,
        }
