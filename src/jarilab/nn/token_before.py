"""What stood before each token, added to its vector, so that no layer has to look there first.

The product with the token before is a bigram table of low rank. The sum over two tokens is the smear, or token shift,
of the speed runs of small GPTs (modded-nanogpt, 2025).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.nn.sublayers import TokenEmbedding

REACH = 2
"""How many tokens before it a token reads."""
NOTHING = -1
"""In place of a token before the first of a document or of a text, and of padding."""


class TokenBefore(nn.Module):
    """Add to each token's vector `x_t` a product with the token before and a sum over the two before.

        x_t + sqrt(D) * (before[token_(t-1)] * this[token_t] + first * x_(t-1) + second * x_(t-2))

    before, this: tables `(V, D)`. first, second: a factor for each of the D numbers. All but `this` begin at 0, so an
    untrained model is the one without them.
    """

    # The factor sqrt(D) lets them learn as fast as token embeddings do; without it a third of the gain is lost.

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        self.before = nn.Parameter(torch.zeros(vocab_size, d_model))
        self.this = nn.Parameter(nn.init.normal_(torch.empty(vocab_size, d_model), 1.0, 0.5))
        self.first = nn.Parameter(torch.zeros(d_model))
        self.second = nn.Parameter(torch.zeros(d_model))
        self.scale = d_model**0.5

    def forward(
        self,
        embedding: TokenEmbedding,
        ids: Int[Tensor, "B K"],
        documents: Int[Tensor, "B L"] | None,
    ) -> Float[Tensor, "B L D"]:
        """Return what is added to the vectors of all but the first two tokens.

        embedding: of the tokens. ids: with the two tokens before, or NOTHING where there is none. documents: a token
        of another document counts as none.
        """
        length = ids.shape[1] - REACH
        (one_BL, is_one_BL1), (two_BL, is_two_BL1) = (
            self._earlier(ids, documents, distance, length) for distance in (1, 2)
        )
        this_BLD = functional.embedding(ids[:, REACH:].clamp_min(0), self.this)
        product_BLD = functional.embedding(one_BL, self.before) * this_BLD
        one_BLD = (product_BLD + self.first * embedding(one_BL)) * is_one_BL1
        two_BLD = self.second * embedding(two_BL) * is_two_BL1
        return self.scale * (one_BLD + two_BLD)

    @staticmethod
    def _earlier(
        ids: Int[Tensor, "B K"], documents: Int[Tensor, "B L"] | None, distance: int, length: int
    ) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L 1"]]:
        """Return the tokens at a distance before each, and whether there is one in the same document."""
        id_BL = ids[:, REACH - distance : REACH - distance + length]
        is_token_BL = id_BL != NOTHING
        if documents is not None:
            earlier_BL = functional.pad(documents, (distance, 0), value=NOTHING)[:, :length]
            is_token_BL = is_token_BL & (earlier_BL == documents)
        return id_BL.clamp_min(0), is_token_BL.unsqueeze(-1)
