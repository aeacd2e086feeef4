"""The Transformer of *Attention Is All You Need* (Vaswani et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import nn

from jarilab.attention.cache import KVCache
from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.models.base import one_a_row, read_from_start, registry
from jarilab.models.layers import LayerKeywords, LayerOptions, Layers
from jarilab.models.one_token import readout
from jarilab.models.stacks import Decoder, Encoder
from jarilab.nn.sublayers import Scale, TokenEmbedding
from jarilab.positions.coordinates import Positions, Tokens


@dataclass(frozen=True, eq=False)
class Memory:
    """The encoder's output with its positions. keep: False on padding; None if there is none.

    origin: the first `x` that this one was selected from; itself if None.
    """

    x: Float[Tensor, "B K D"]
    positions: Positions
    keep: Bool[Tensor, "B K"] | None
    origin: Tensor | None = None

    def select(self, rows: Int[Tensor, " R"]) -> Memory:
        """Return the memory of these sources in this order."""
        selected_RKD = self.x.index_select(0, rows)
        positions = self.positions.select_rows(rows)
        keep = None if self.keep is None else self.keep.index_select(0, rows)
        origin = self.x if self.origin is None else self.origin
        return Memory(selected_RKD, positions, keep, origin)


@registry.register("encoder_decoder")
class EncoderDecoder(nn.Module):
    """The Transformer: source and target tokens in, scores of the next target token out.

        model = jarilab.EncoderDecoder(source_vocab_size=100, target_vocab_size=100, d_model=64, encoding="rotary")
        scores_BQV = model(source_ids_BK, target_ids_BQ)

    encoding: positional encoding of encoder and decoder.
    encoder_encoding: encoding of the encoder (default: `encoding`).
    decoder_encoding: encoding of the decoder (default: `encoding`).
    cross_encoding: encoding between decoder and source. Distances between two sequences have a meaning only if the
        sequences were made for it.
    tied: share the weights of the output layer and the target embedding.
    shared: share the weights of both embeddings; the vocabularies must have the same size.
    embedding_norm: add a norm before the first layer of each stack, after the positions (BART).
    embedding_scale: multiply embeddings by the square root of d_model (sqrt), or not (none).
    generator_bias: add a bias to the score of each token.
    n_encoder_layers: layers of the encoder.
    n_decoder_layers: layers of the decoder.

    `__init__` has the options of layers, from `d_model` to `kernel`. Raises UserError for `shared` with vocabularies of
    different sizes.
    """

    @unpack_options(LayerOptions())
    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        n_encoder_layers: Layers = 2,
        n_decoder_layers: Layers = 2,
        encoding: str = "sinusoidal",
        encoder_encoding: str | None = None,
        decoder_encoding: str | None = None,
        cross_encoding: str = "none",
        tied: bool = False,
        shared: bool = False,
        embedding_norm: bool = False,
        embedding_scale: Scale = "sqrt",
        generator_bias: bool = False,
        **layer: Unpack[LayerKeywords],
    ):
        super().__init__()
        if shared:
            _check_one_vocabulary(source_vocab_size, target_vocab_size)
        d_model = LayerOptions(**layer).d_model
        # Absent where shared, since a second name for the same weights could not be saved.
        self.source_embedding = (
            None if shared else TokenEmbedding(source_vocab_size, d_model, embedding_scale)
        )
        self.target_embedding = TokenEmbedding(target_vocab_size, d_model, embedding_scale)
        spec = encoder_encoding or encoding
        self.encoder = Encoder(
            n_layers=n_encoder_layers, encoding=spec, embedding_norm=embedding_norm, **layer
        )
        spec = decoder_encoding or encoding
        self.decoder = Decoder(
            n_layers=n_decoder_layers,
            encoding=spec,
            cross_encoding=cross_encoding,
            embedding_norm=embedding_norm,
            **layer,
        )
        self.generator = None if tied else nn.Linear(d_model, target_vocab_size, bias=False)
        bias_V = nn.Parameter(torch.zeros(target_vocab_size)) if generator_bias else None
        self.generator_bias = bias_V

    def forward(
        self, source: Int[Tensor, "B K"] | Tokens, target: Int[Tensor, "B Q"] | Tokens
    ) -> Float[Tensor, "B Q V"]:
        """Return the scores of the token after each target token, given the source and the target up to it.

        Raises UserError for padding before a token of the target.
        """
        memory = self.start(Tokens.of(source, "source"))
        target = read_from_start(Tokens.of(target, "target"))
        return self.step(memory, target.ids, target.positions, None)

    def start(self, source: Tokens | None) -> Memory:
        """Encode the source. Raises UserError without a source, and for several documents in a row."""
        source = one_a_row(source)
        x_BKD = self.embeddings[0](source.ids)
        memory_BKD = self.encoder(x_BKD, positions=source.positions, keep=source.keep)
        return Memory(memory_BKD, source.positions, source.keep)

    def step(
        self, state: Memory, ids: Int[Tensor, "R L"], positions: Positions, cache: KVCache | None
    ) -> Float[Tensor, "R L V"]:
        """Return the scores after each of `ids`. With a cache, `ids` are only the tokens that it lacks."""
        x_RLD = self.decoder(
            self.target_embedding(ids),
            state.x,
            positions=positions,
            memory_positions=state.positions,
            memory_keep=state.keep,
            cache=cache,
            origin=state.origin,
        )
        weight = self.target_embedding.weight if self.generator is None else self.generator.weight
        return readout(cache, x_RLD, weight, self.generator_bias)

    @property
    def embeddings(self) -> tuple[TokenEmbedding, TokenEmbedding]:
        """Those of source and target, which may be the same."""
        return self.source_embedding or self.target_embedding, self.target_embedding

    def new_cache(self) -> KVCache:
        return KVCache(len(self.decoder.layers))

    def max_positions(self) -> dict[str, int | None]:
        """Return the number of positions that each side supports, None for no limit."""
        return {
            "source": self.encoder.encoding.max_positions,
            "target": self.decoder.encoding.max_positions,
        }


def _check_one_vocabulary(source: int, target: int) -> None:
    """Raises UserError if the vocabularies cannot share an embedding."""
    if source != target:
        raise UserError(
            f"one embedding for source and target needs one vocabulary: expected the same size, got {source} source "
            f"and {target} target tokens; use a joint vocabulary, or shared=false"
        )
