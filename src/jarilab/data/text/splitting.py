"""Other pieces for the same text each time it is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.data.text.tokenizers import Tokenizer
from jarilab.data.text.vocabulary import PADDING


@final
@dataclass(frozen=True, eq=False)
class Splitting:
    """Splits tokens at random into the two that BPE merged into them, and these again.

    Like BPE-dropout (Provilkov et al., 2020), it shows a model a word in several spellings. Rows of equal length are
    split equally often, so a batch of them needs hardly any padding.

    halves: `(V, 2)`, the ids of the two tokens that a token was merged from, -1 where there are none.
    share: splits for each token of a row, rounded for the row, so a small share leaves short rows whole. longest: no
    row becomes longer than this.
    """

    halves: Int[Tensor, "V 2"]
    share: float
    longest: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, share: float, longest: int) -> Splitting:
        """Return the splitting of a tokenizer's rows. Raises UserError if it is not of the kind bpe."""
        if tokenizer.kind != "bpe":
            raise UserError(
                "split_tokens: expected a tokenizer of the kind bpe, whose tokens are made of two, got "
                f"{tokenizer.kind}; omit --split-tokens or use --tokenizer bpe"
            )
        halves = torch.full((len(tokenizer), 2), -1)
        for whole, parts in tokenizer.merged_from.items():
            halves[whole] = torch.tensor(parts)
        return cls(halves, share, longest)

    def splits(self, lengths: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
        """Return how often rows of these lengths are split."""
        wanted = (lengths * self.share).round().to(lengths.dtype)
        return wanted.minimum(self.longest - lengths).clamp(min=0)

    def split(self, ids_BL: Int[Tensor, "B L"], generator: torch.Generator) -> Int[Tensor, "B M"]:
        """Return padded rows with some tokens split, fewer where a row has too few that can be."""
        splits_B = self.splits((ids_BL != PADDING).sum(1))
        for done in range(int(splits_B.max())):
            can_BL = (self.halves[ids_BL, 0] >= 0) & (done < splits_B)[:, None]
            row_M = can_BL.any(1).nonzero()[:, 0]
            draw_BL = torch.rand(ids_BL.shape, generator=generator)
            at_M = draw_BL.masked_fill(~can_BL, -1.0).argmax(1)[row_M]
            left_M, right_M = self.halves[ids_BL[row_M, at_M]].unbind(1)
            # What stands behind the split token moves by one place.
            ids_BL = functional.pad(ids_BL, (0, 1), value=PADDING)
            moved_ML = torch.arange(ids_BL.shape[1]) > at_M[:, None]
            ids_BL[row_M] = torch.where(moved_ML, ids_BL[row_M].roll(1, 1), ids_BL[row_M])
            ids_BL[row_M, at_M], ids_BL[row_M, at_M + 1] = left_M, right_M
        return ids_BL[:, : int((ids_BL != PADDING).sum(1).max())]
