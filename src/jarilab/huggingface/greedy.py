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
}
"""Settings of generation that a page does not have, with the values at which they do nothing."""


@dataclass(frozen=True)
class GreedyRules:
    """Rules of greedy generation. Places count the tokens after the start token.

    prompt: how many tokens are given. limit: of tokens. ends: tokens that end the answer, from the place `least` on.
    banned: tokens that are never chosen. banned_first: tokens that are not chosen at the place `opens`. forced: the
    token at a place. among: the tokens to choose from at a place. ngram: the length of sequences that may come only
    once; 0 without such a rule.
    """

    prompt: int
    limit: int
    ends: list[int]
    least: int
    banned: list[int]
    banned_first: list[int]
    opens: int
    forced: dict[int, int]
    among: dict[int, list[int]]
    ngram: int

    def choose(self, scores_V: Float[Tensor, " V"], ids: Sequence[int]) -> int:
        """The token after `ids`, which begin with the start token. scores_V: of the model there."""
        place = len(ids) - 1
        if place in self.forced:
            return self.forced[place]
        among = self.among.get(place)
        if among is not None:
            return among[int(scores_V[among].argmax())]
        scores_V = scores_V.clone()
        scores_V[self._banned_after(ids)] = -math.inf
        return int(scores_V.argmax())

    def excluded(self, ids: Sequence[int], count: int) -> Bool[Tensor, "L V"]:
        """The tokens, of `count`, that cannot follow each of `ids` but the last."""
        excluded_LV = torch.zeros(len(ids) - 1, count, dtype=torch.bool)
        for place, row_V in enumerate(excluded_LV):
            among = [self.forced[place]] if place in self.forced else self.among.get(place)
            if among is None:
                row_V[self._banned_after(ids[: place + 1])] = True
            else:
                row_V.fill_(True)
                row_V[among] = False
        return excluded_LV

    def _banned_after(self, ids: Sequence[int]) -> list[int]:
        place = len(ids) - 1
        banned = [*self.banned, *(self.banned_first if place == self.opens else ())]
        return [*banned, *(self.ends if place < self.least else ()), *self._repeating(ids)]

    def _repeating(self, ids: Sequence[int]) -> list[int]:
        """The tokens that would make the last `ngram` tokens ones that came before."""
        size = self.ngram
        if not size or len(ids) < size:
            return []
        last = list(ids[len(ids) - size + 1 :])
        starts = range(len(ids) - size + 1)
        return [ids[at + size - 1] for at in starts if list(ids[at : at + size - 1]) == last]

    def gives(self, scores_LV: Float[Tensor, "L V"], ids: Sequence[int]) -> bool:
        """Whether `ids` follow from the model's scores after each of them."""
        places = [*self.among, *range(self.prompt, len(ids) - 1)]
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
    if first is not None and not prompt:
        forced[0] = first
    if last is not None:
        forced[prompt + new - 1] = _listed(last)[0]
    words = [word for word in getattr(settings, "bad_words_ids", None) or [] if word not in [ends]]
    least = max((settings.min_length or 0) - 1, prompt + (settings.min_new_tokens or 0))
    # Whisper recognizes the language from the encoder's output.
    languages = getattr(settings, "lang_to_id", None) or {}
    detects = bool(prompt and languages and getattr(settings, "language", None) is None)
    return GreedyRules(
        prompt=prompt,
        limit=prompt + new,
        ends=ends,
        least=least,
        banned=_tokens([*_listed(settings.suppress_tokens), *chain(*words)], count),
        banned_first=_tokens(settings.begin_suppress_tokens, count),
        opens=prompt + (first is not None and not prompt),
        forced=forced,
        among={0: sorted(languages.values())} if detects else {},
        ngram=settings.no_repeat_ngram_size or 0,
    )


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
