"""How a model of transformers chooses the next token of its answer, as plain data for a saved page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from jarilab.core.shapes import Bool, Float

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "stop_strings": (),
    "return_timestamps": (False,),
    "max_time": (),
}
"""Generation settings that a page does not support, and their neutral values."""


@dataclass(frozen=True)
class GreedyRules:
    """Rules of greedy generation. Lengths and places count the tokens after the start token.

    prompt: how many tokens are given. eos_token_ids: end the answer, from `min_length` tokens on. suppressed: tokens
    that are never chosen. begin_suppressed: tokens that are not chosen at the place `begin_index`. forced: the token at
    a place. allowed: the tokens to choose from at a place. no_repeat_ngram_size: the length of sequences that may come
    only once; 0 without such a rule.
    """

    prompt: int
    max_length: int
    eos_token_ids: list[int]
    min_length: int
    suppressed: list[int]
    begin_suppressed: list[int]
    begin_index: int
    forced: dict[int, int]
    allowed: dict[int, list[int]]
    no_repeat_ngram_size: int

    def choose(self, scores_V: Float[Tensor, " V"], ids: Sequence[int]) -> int:
        """The token after `ids`, which begin with the start token. scores_V: of the model there."""
        place = len(ids) - 1
        if place in self.forced:
            return self.forced[place]
        allowed = self.allowed.get(place)
        if allowed is not None:
            return allowed[int(scores_V[allowed].argmax())]
        scores_V = scores_V.clone()
        scores_V[self._suppressed_after(ids)] = -math.inf
        return int(scores_V.argmax())

    def excluded(self, ids: Sequence[int], count: int) -> Bool[Tensor, "L V"]:
        """The tokens, of `count`, that cannot follow each of `ids` but the last."""
        excluded_LV = torch.zeros(len(ids) - 1, count, dtype=torch.bool)
        for place, row_V in enumerate(excluded_LV):
            allowed = [self.forced[place]] if place in self.forced else self.allowed.get(place)
            if allowed is None:
                row_V[self._suppressed_after(ids[: place + 1])] = True
            else:
                row_V.fill_(True)
                row_V[allowed] = False
        return excluded_LV

    def _suppressed_after(self, ids: Sequence[int]) -> list[int]:
        place = len(ids) - 1
        suppressed = [*self.suppressed, *self._repeating(ids)]
        if place == self.begin_index:
            suppressed += self.begin_suppressed
        if place < self.min_length:
            suppressed += self.eos_token_ids
        return suppressed

    def _repeating(self, ids: Sequence[int]) -> list[int]:
        """The tokens that would make the last `no_repeat_ngram_size` tokens ones that came before."""
        size = self.no_repeat_ngram_size
        if not size or len(ids) < size:
            return []
        last = list(ids[len(ids) - size + 1 :])
        starts = range(len(ids) - size + 1)
        return [ids[at + size - 1] for at in starts if list(ids[at : at + size - 1]) == last]

    def reproduces(self, scores_LV: Float[Tensor, "L V"], ids: Sequence[int]) -> bool:
        """Whether `ids` follow from the model's scores after each of them."""
        places = [*self.allowed, *range(self.prompt, len(ids) - 1)]
        return all(
            self.choose(scores_LV[place], ids[: place + 1]) == ids[place + 1] for place in places
        )


def unsupported_setting(model: Any) -> str | None:
    """The first setting of `generation_config.json` that `GreedyRules` lacks; None if it has all."""
    settings = model.generation_config
    for name, neutral in NEUTRAL.items():
        value = getattr(settings, name, None)
        if value not in (None, [], {}, *neutral):
            return name
    words = getattr(settings, "bad_words_ids", None) or []
    return "bad_words_ids" if any(len(word) > 1 for word in words) else None


def greedy_rules(model: Any, prompt: int, new: int) -> GreedyRules:
    """The rules of a model. prompt: tokens that are given after the start token. new: of further tokens, at most."""
    settings, count = model.generation_config, vocabulary_size(model)
    ends = _tokens(settings.eos_token_id, count)
    forced = {}
    first, last = (getattr(settings, f"forced_{each}_token_id", None) for each in ("bos", "eos"))
    # Of several forced tokens the first of the vocabulary is chosen, since all have the same score.
    if _listed(first) and not prompt:
        forced[0] = min(_listed(first))
    if _listed(last):
        forced[prompt + new - 1] = min(_listed(last))
    single_ends = [[end] for end in ends]  # are never bad words
    words = [word for word in settings.bad_words_ids or [] if word not in single_ends]
    min_new = settings.min_new_tokens  # replaces min_length
    min_length = (settings.min_length or 0) - 1 if min_new is None else prompt + min_new
    languages = getattr(settings, "lang_to_id", None) or {}
    detects = bool(prompt and languages) and _detects_language(model)
    return GreedyRules(
        prompt=prompt,
        max_length=prompt + new,
        eos_token_ids=ends,
        min_length=min_length,
        suppressed=_tokens([*_listed(settings.suppress_tokens), *chain(*words)], count),
        begin_suppressed=_tokens(settings.begin_suppress_tokens, count),
        begin_index=prompt + (first is not None and not prompt),
        forced=forced,
        allowed={0: sorted(languages.values())} if detects else {},
        no_repeat_ngram_size=max(0, settings.no_repeat_ngram_size or 0),
    )


def _detects_language(model: Any) -> bool:
    """Whether Whisper recognizes the language from the encoder's output, since no setting names it."""
    settings = model.generation_config
    if getattr(settings, "language", None) is not None:
        return False
    if getattr(settings, "task", None) is not None:
        return True
    forced = getattr(settings, "forced_decoder_ids", None)
    forced = forced or getattr(model.config, "forced_decoder_ids", None)
    return not forced or forced[0][0] != 1 or forced[0][1] is None


def vocabulary_size(model: Any) -> int:
    """How many tokens have a score."""
    return len(model.get_output_embeddings().weight)


def _tokens(value: Any, count: int) -> list[int]:
    """The numbers that are tokens. Generation ignores others, such as the -1 of some Whisper models."""
    return [each for each in _listed(value) if 0 <= each < count]


def _listed(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(each) for each in value] if isinstance(value, list | tuple) else [int(value)]
