"""The encoder of text: *BERT: Pre-training of Deep Bidirectional Transformers* (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from annotated_types import Ge, Le
from torch import nn
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.models.base import one_a_row
from jarilab.models.layers import LayerKeywords, LayerOptions
from jarilab.models.limits import Layers
from jarilab.models.stacks import Encoder
from jarilab.nn.layers import ACTIVATIONS, Scale, TokenEmbedding
from jarilab.nn.linear import Linear
from jarilab.positions.coordinates import Tokens


class TextEncoder(nn.Module):
    """Tokens in, a vector for each out, or scores of the words that may stand there; every token sees every other.

        model = jarilab.TextEncoder(vocab_size=100, encoding="rotary", words=True)
        scores_BLV = model(ids_BL)

    encoding: one spec for all layers. segments: how many kinds there are, a vector of each being added to its tokens
    (*token types*); none by default. words: give a score of each word in place of vectors, as BERT does under its
    masks. embedding_norm: a norm before the first layer, behind the positions. embedding_scale: what embeddings are
    multiplied by, the square root of d_model (sqrt) or nothing (none).

    What each layer is made of, from `d_model` to `kernel`, stands at `__init__`. n_layers: of the stack.
    """

    @unpack_options(LayerOptions(norm="post", activation="gelu"))
    def __init__(
        self,
        vocab_size: int,
        *,
        n_layers: Layers = 2,
        encoding: str = "learned",
        segments: Annotated[int, Ge(0), Le(1024)] = 0,
        words: bool = False,
        embedding_norm: bool = True,
        embedding_scale: Scale = "sqrt",
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

    def forward(
        self,
        tokens: Int[Tensor, "B L"] | Tokens,
        segments: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L N"]:
        """N is D, or V with `words`. segments: the kind of each token; all of the first by default. What stands at
        padding means nothing, and no real token sees it. Raises UserError for segments where there are no kinds."""
        tokens = one_a_row(Tokens.of(tokens))
        x_BLD = self.embedding(tokens.ids)
        if self.segments is not None:
            segments = torch.zeros_like(tokens.ids) if segments is None else segments
            x_BLD = x_BLD + self.segments(segments)
        elif segments is not None:
            raise UserError("this model knows no segments: expected None; build it with segments=2")
        x_BLD = self.encoder(x_BLD, positions=tokens.positions, keep=tokens.keep)
        return x_BLD if self.words is None else self.words(x_BLD, self.embedding.weight)


class WordScores(nn.Module):
    """Vectors in, scores of words out: a map, the nonlinearity, a norm, and the embeddings of the words."""

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
