"""Text to image by a language model: *Zero-Shot Text-to-Image Generation* (Ramesh et al. 2021), section 2.

A caption's words and an image's codes form one sequence, which the decoder of the language models reads:

    <bos> three one seven <pad> | <boi> code code code ...
    text                          rows of the image, from left to right

Words have a position in the text, codes one in the image. The mark between them has neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, final

import torch
from torch import nn
from torch.nn import functional

from jarilab.attention.cache import KVCache
from jarilab.core.devices import constant
from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.models.base import registry
from jarilab.models.decoder import CausalStack
from jarilab.models.decoding.sample import Filters, check_option
from jarilab.models.layers import LayerKeywords, LayerOptions, Layers
from jarilab.nn.sublayers import TokenEmbedding
from jarilab.positions.coordinates import Positions, Tokens

AXES = ("text", "image.row", "image.column")
PADDING, FIRST = 0, 1
"""Word ids of padding and of the first token, as in `jarilab.data.text`."""
MOST_GUIDANCE = 1000


@dataclass(frozen=True, eq=False)
class NextScores:
    """Scores of the next token: of words after each caption token, of codes from the mark on.

    No code can follow where a word must, and no word where a code must, so each position scores its own kind only.
    """

    text: Float[Tensor, "B T V"]
    image: Float[Tensor, "B N C"]


@final
@dataclass(frozen=True)
class CodeChoice:
    """The rule that takes the next image code from its scores."""

    guidance: float
    filters: Filters

    def __post_init__(self) -> None:
        expected = f"0 (no caption) to {MOST_GUIDANCE}; 1 is none, 2 is usual"
        check_option("guidance", self.guidance, 0 <= self.guidance <= MOST_GUIDANCE, expected)

    def guided(self, each: Sequence[Float[Tensor, "B C"]]) -> Float[Tensor, "B C"]:
        """Return the scores with the caption, moved away from those without it, if there are any."""
        if len(each) == 1:
            return each[0]
        with_caption_BC, without_BC = each
        return torch.lerp(without_BC, with_caption_BC, self.guidance)

    def take(self, scores: Float[Tensor, "B C"], chance: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return one code for each row, by inverting the cumulative distribution at a number from 0 to 1."""
        if self.filters.temperature == 0:
            return scores.argmax(-1)
        # In float64, since the sum of many small probabilities loses digits.
        below_BC = self.filters.apply(scores).double().softmax(-1).cumsum(-1)
        # The total may be rounded below 1, and no chance may lie above it.
        chance_B1 = chance.unsqueeze(1) * below_BC[:, -1:]
        # `right` skips codes without probability, also for a chance of 0.
        return torch.searchsorted(below_BC, chance_B1, right=True).squeeze(1)


@registry.register("text_to_image")
class TextToImage(nn.Module):
    """Words and codes in, scores of the next word or code out. `steps` generates images.

    vocab_size: words, including padding and the first token.
    codes: codes of the image tokenizer.
    caption: length of the longest caption in tokens, including the first token.
    rows, columns: of codes.
    encoding: positional encoding; a part with `@text` or `@image` sees the positions of that part only.
    n_layers: layers of the stack.

    `__init__` has the options of layers, from `d_model` to `kernel`. Raises UserError for an encoding that cannot work.
    """

    @unpack_options(LayerOptions(d_model=128, n_heads=4, activation="gelu"))
    def __init__(
        self,
        vocab_size: int,
        codes: int,
        caption: int,
        rows: int,
        columns: int,
        *,
        n_layers: Layers = 4,
        encoding: str = "learned@text+rotary2d@image",
        **layer: Unpack[LayerKeywords],
    ):
        super().__init__()
        self.vocab_size, self.codes = vocab_size, codes
        self.caption, self.rows, self.columns = caption, rows, columns
        # IDs of the joint vocabulary: words, the mark, the token for no caption, then codes.
        self.mark, self.nothing, self.offset = vocab_size, vocab_size + 1, vocab_size + 2
        options = LayerOptions(**layer)
        self.embedding = TokenEmbedding(self.offset + codes, options.d_model)
        self.decoder = CausalStack(options, n_layers, encoding=encoding, window=None)
        self.decoder.encoding.check_axes(AXES)
        self.generator = nn.Linear(options.d_model, self.offset + codes, bias=False)

    @staticmethod
    def check(options: Mapping[str, Any]) -> None:
        """Raises UserError for options that no model can have."""
        TextToImage(1, 1, 1, 1, 1, **{**options, "n_layers": 1})

    def forward(
        self,
        captions: Int[Tensor, "B T"],
        codes: Int[Tensor, "B N"],
        without: Bool[Tensor, " B"] | None = None,
    ) -> NextScores:
        """Return the scores of the next word or code after each token.

        captions: padded at the end. codes: row by row. without: True to replace the caption by a learned token, for
        guidance.
        """
        # Nothing is predicted after the last code, so it is not read.
        tokens = self.joined(captions, codes[:, :-1], without)
        x_BLD = self.embedding(tokens.ids)
        x_BLD = self.decoder(x_BLD, positions=tokens.positions, keep=tokens.keep)
        text = captions.shape[1]
        words = functional.linear(x_BLD[:, :text], self.generator.weight[: self.vocab_size])
        return NextScores(words, self._of_codes(x_BLD[:, text:]))

    def joined(
        self,
        captions: Int[Tensor, "B T"],
        codes: Int[Tensor, "B N"],
        without: Bool[Tensor, " B"] | None = None,
    ) -> Tokens:
        """Return caption, mark and codes as one sequence of T + 1 + N tokens with positions, see `forward`.

        codes: of a whole image, or its first ones.
        """
        if without is not None:
            captions = torch.where(without.unsqueeze(1), self._no_caption(captions), captions)
        mark_B1 = captions.new_full((len(captions), 1), self.mark)
        ids_BL = torch.cat((captions, mark_B1, codes + self.offset), 1)
        text = captions.shape[1]
        never_padded = torch.ones_like(ids_BL[:, text:], dtype=torch.bool)
        keep_BL = torch.cat((captions != PADDING, never_padded), 1)
        positions = self._places(text, codes.shape[1], ids_BL.device)
        return Tokens(ids_BL, positions, keep_BL)

    def one_sequence(self) -> OneSequence:
        """Return the model with the same parameters, for sequences from `joined`."""
        return OneSequence(self)

    def steps(
        self,
        captions: Int[Tensor, "B T"],
        *,
        guidance: float = 2.0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int,
    ) -> Iterator[Int[Tensor, " B"]]:
        """Draw an image for each caption. Yields each code of all images as soon as it is drawn, row by row.

        captions: of one length, without padding. guidance: scores are `without + guidance * (with - without)`
        (*Classifier-Free Diffusion Guidance*, Ho and Salimans 2021); 1 for none. Then temperature (0 takes the most
        likely code), top_k and top_p apply. Codes are drawn on the CPU from the seed and the image's number, so an
        image does not depend on the others, except for rounding. Raises UserError before drawing for padded or long
        captions and impossible options.
        """
        fits = captions.ndim == 2 and 1 <= captions.shape[1] <= self.caption
        if not fits or bool((captions == PADDING).any()):
            raise UserError(
                f"expected captions of one length, 1 to {self.caption} tokens and no padding, got "
                f"{tuple(captions.shape)}; draw captions of like length together"
            )
        choice = CodeChoice(guidance, Filters(temperature, top_k, top_p))
        return self._steps(captions.to(self.embedding.weight.device), choice, seed)

    @torch.no_grad()
    def _steps(self, captions: Tensor, choice: CodeChoice, seed: int) -> Iterator[Tensor]:
        # Row after row, so that an image's numbers are the same however many there are.
        generator, codes = torch.Generator().manual_seed(seed), self.rows * self.columns
        chance_BN = torch.rand(len(captions), codes, generator=generator, dtype=torch.float64)
        # What is read with the caption, and without it: a sequence and a cache for each.
        prefixes = [captions]
        if choice.guidance != 1:
            prefixes.append(self._no_caption(captions)[:, :1])
        caches = [KVCache(len(self.decoder.layers)) for _ in prefixes]
        both = list(zip(prefixes, caches, strict=True))
        scores_BC = choice.guided([self._begin(ids, cache) for ids, cache in both])
        for number in range(codes):
            ids_B = choice.take(scores_BC.float().cpu(), chance_BN[:, number])
            yield ids_B
            if number + 1 < codes:
                new_B1 = ids_B.to(captions.device).unsqueeze(1) + self.offset
                each = [self._go_on(new_B1, number, ids.shape[1], cache) for ids, cache in both]
                scores_BC = choice.guided(each)

    def max_positions(self) -> dict[str, int | None]:
        """Return the number of supported positions, None for no limit."""
        return {"caption": self.decoder.encoding.max_positions}

    def _begin(self, captions: Tensor, cache: KVCache) -> Float[Tensor, "B C"]:
        tokens = self.joined(captions, captions[:, :0])
        x_BLD = self.embedding(tokens.ids)
        x_BLD = self.decoder(x_BLD, positions=tokens.positions, cache=cache)
        return self._of_codes(x_BLD[:, -1])

    def _go_on(
        self, ids_B1: Tensor, number: int, text: int, cache: KVCache
    ) -> Float[Tensor, "B C"]:
        """Read the code `number` of the image at its row and column."""
        places, start = self._places(text, number + 1, ids_B1.device), text + 1 + number
        place = places.slice(start, start + 1)
        x_B1D = self.decoder(self.embedding(ids_B1), positions=place, cache=cache)
        return self._of_codes(x_B1D[:, -1])

    def _places(self, text: int, codes: int, device: torch.device) -> Positions:
        """Return positions of words, the mark and the first codes; -1 on an axis that a token lacks."""
        order_L = torch.arange(text + 1 + codes, device=device)
        grid = Positions.grid(self.rows, self.columns, device=device)
        coordinates_LA = torch.full((len(order_L), 3), -1, device=device)
        coordinates_LA[:text, 0] = order_L[:text]
        coordinates_LA[text + 1 :, 1:] = grid.coordinates[:codes]
        extent_A = constant((self.caption, self.rows, self.columns), device)
        return Positions(
            coordinates_LA, order_L, AXES, "joint", extent=extent_A, rising_order=order_L
        )

    def _no_caption(self, captions: Tensor) -> Tensor:
        """Return the token for no caption, with padding."""
        nothing = torch.full_like(captions, PADDING)
        nothing[:, 0] = self.nothing
        return nothing

    def _of_codes(self, x_BND: Tensor) -> Tensor:
        return functional.linear(x_BND, self.generator.weight[self.offset :])


@final
class OneSequence(nn.Module):
    """A `TextToImage` as a language model over caption, mark and codes, for inspection.

    Words follow words, and codes follow the mark. After the last word and the last code the mark has probability 1.
    Impossible tokens have a finite score without probability, so logarithms and divergences stay finite.
    """

    def __init__(self, model: TextToImage):
        super().__init__()
        self.embedding, self.decoder = model.embedding, model.decoder
        self.generator = model.generator
        self.mark, self.nothing, self.offset = model.mark, model.nothing, model.offset
        self.image = model.rows * model.columns
        self.training = model.training

    def forward(self, tokens: Tokens) -> Float[Tensor, "B L V"]:
        """Return the scores of the token after each. V counts words, the mark, the token for no caption, and codes."""
        x_BLD = self.embedding(tokens.ids)
        x_BLD = self.decoder(x_BLD, positions=tokens.positions, keep=tokens.keep)
        scores_BLV = self.generator(x_BLD)
        # Half, so that the difference of two scores does not overflow.
        never = torch.finfo(scores_BLV.dtype).min / 2
        return scores_BLV.masked_fill(~self._may_follow(tokens.ids), never)

    def _may_follow(self, ids_BL: Int[Tensor, "B L"]) -> Bool[Tensor, "B L V"]:
        number_V = torch.arange(len(self.embedding.weight), device=ids_BL.device)
        word_V, code_V = number_V < self.mark, number_V >= self.offset
        code_BL = ids_BL >= self.offset
        drawing_BL = code_BL | (ids_BL == self.mark)
        follows_BLV = torch.where(drawing_BL.unsqueeze(-1), code_V, word_V)
        last_BL = code_BL & (code_BL.cumsum(1) == self.image)
        last_BL[:, :-1] |= ids_BL[:, 1:] == self.mark
        return torch.where(last_BL.unsqueeze(-1), number_V == self.mark, follows_BLV)
