"""The text encoder: *BERT: Pre-training of Deep Bidirectional Transformers* (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import torch
from annotated_types import Ge, Le
from torch import nn
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.models.base import one_a_row, registry
from jarilab.models.layers import LayerKeywords, LayerOptions, Layers
from jarilab.models.stacks import Encoder, first_token, mean_of_tokens
from jarilab.nn.sublayers import ACTIVATIONS, Linear, Scale, TokenEmbedding
from jarilab.positions.coordinates import Tokens


@registry.register("text_encoder")
class TextEncoder(nn.Module):
    """The text encoder: tokens in, a vector for each out, or scores. Every token sees every other.

        model = jarilab.TextEncoder(vocab_size=100, encoding="rotary", words=True)
        scores_BLV = model(ids_BL)

    classes: number of classes, whose scores are then returned.
    encoding: one spec for all layers.
    segments: number of token types, whose vectors are added to their tokens; none by default.
    words: return a score of each word instead of vectors, as BERT's masked language model.
    embedding_norm: a norm after the positions and before the first layer.
    embedding_scale: factor of embeddings, the square root of d_model (sqrt) or 1 (none).
    pool: classify by the first token, which stands for the text (class), or by the mean of all (mean).

    n_layers: layers of the stack. `__init__` has the options of layers, from `d_model` to `kernel`.
    """

    @unpack_options(LayerOptions(norm="post", activation="gelu"))
    def __init__(
        self,
        vocab_size: int,
        classes: int | None = None,
        *,
        n_layers: Layers = 2,
        encoding: str = "learned",
        segments: Annotated[int, Ge(0), Le(1024)] = 0,
        words: bool = False,
        embedding_norm: bool = True,
        embedding_scale: Scale = "sqrt",
        pool: Literal["class", "mean"] = "class",
        **layer: Unpack[LayerKeywords],
    ):
        super().__init__()
        options = LayerOptions(**layer)
        d_model = options.d_model
        self.embedding = TokenEmbedding(vocab_size, d_model, embedding_scale)
        self.segments = TokenEmbedding(segments, d_model, embedding_scale) if segments else None
        self.encoder = Encoder(
            n_layers=n_layers, encoding=encoding, embedding_norm=embedding_norm, **layer
        )
        self.words = WordScores(options, vocab_size) if words else None
        self.generator = None if classes is None else nn.Linear(d_model, classes)
        self.pool = pool

    def max_positions(self) -> dict[str, int | None]:
        """Return the number of supported positions, None for no limit."""
        return {"source": self.encoder.encoding.max_positions}

    def forward(
        self, tokens: Int[Tensor, "B L"] | Tokens, segments: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B *L N"]:
        """Return vectors (N = D), scores of words (N = V) with `words`, or scores `(B, V)` of classes.

        segments: the type of each token; 0 by default. Real tokens do not see padding. Raises UserError for segments of
        a model without token types.
        """
        tokens = one_a_row(Tokens.of(tokens))
        x_BLD = self.embedding(tokens.ids)
        if self.segments is not None:
            segments = torch.zeros_like(tokens.ids) if segments is None else segments
            x_BLD = x_BLD + self.segments(segments)
        elif segments is not None:
            raise UserError("this model knows no segments: expected None; build it with segments=2")
        x_BLD = self.encoder(x_BLD, positions=tokens.positions, keep=tokens.keep)
        if self.generator is not None:
            pool = first_token if self.pool == "class" else mean_of_tokens
            return self.generator(pool(x_BLD, tokens.keep))
        return x_BLD if self.words is None else self.words(x_BLD, self.embedding.weight)


class WordScores(nn.Module):
    """Scores of words from vectors: a linear map, an activation, a norm, and the word embeddings."""

    def __init__(self, options: LayerOptions, vocab_size: int):
        super().__init__()
        self.map = Linear(options.d_model, options.d_model)
        self.activation = ACTIVATIONS[options.activation]
        self.norm = options.one_norm()
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(
        self, x: Float[Tensor, "B L D"], embedding: Float[Tensor, "V D"]
    ) -> Float[Tensor, "B L V"]:
        x_BLD = self.norm(self.activation(self.map(x)))
        return functional.linear(x_BLD, embedding, self.bias)
