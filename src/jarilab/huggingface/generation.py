"""Greedy answers of encoder-decoders of transformers."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from jarilab.core.errors import UserError
from jarilab.huggingface.loading import Loaded

MAX_NEW_TOKENS = 48
TOKEN_SETTINGS = {
    "forced_bos_token_id": False,
    "forced_eos_token_id": False,
    "bad_words_ids": False,
    "eos_token_id": True,
    "suppress_tokens": True,
    "begin_suppress_tokens": True,
}
"""Generation settings that hold token IDs, and whether IDs outside the vocabulary are allowed."""


@dataclass(frozen=True)
class Generated:
    """The ids of an answer, after a start token.

    prompt: how many of them after the start token are given, such as Whisper's language. limit: of further ones.
    """

    ids: list[int]
    prompt: int
    limit: int


def generate(loaded: Loaded, inputs: dict[str, Any], limit: int) -> Generated:
    """The greedy answer to these inputs, of at most `limit` new tokens.

    Raises UserError for settings of generation that are no tokens of the model.
    """
    model: Any = loaded.model
    _check_tokens(loaded)
    first_step = _FirstStep()
    # Whisper returns its prompt and its end only then.
    whole = "force_unique_generate_call"
    options = {whole: True} if whole in inspect.signature(model.generate).parameters else {}
    output_BL = model.generate(
        **inputs,
        **options,
        max_new_tokens=limit,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        return_dict_in_generate=False,
        logits_processor=[first_step],
        # A step with a cache has one query, and cross-attention does not know which one.
        use_cache=False,
    )
    return Generated(output_BL[0].tolist(), max(first_step.length - 1, 0), limit)


def _check_tokens(loaded: Loaded) -> None:
    """Raises UserError for settings that name no tokens. Other numbers are ignored where tokens are forbidden."""
    model: Any = loaded.model
    settings, count = model.generation_config, len(model.get_output_embeddings().weight)
    for name, is_any in TOKEN_SETTINGS.items():
        value = getattr(settings, name, None)
        words = value if name == "bad_words_ids" and isinstance(value, list) else [value]
        for word in words:
            tokens = word if isinstance(word, list | tuple) else [] if word is None else [word]
            is_right = all(type(each) is int and (is_any or 0 <= each < count) for each in tokens)
            if not is_right:
                raise UserError(
                    f"{_settings_file(loaded)}: expected tokens from 0 to {count - 1} in {name}, got {value!r:.40}; "
                    "put back the file that was saved with the model"
                )


def _settings_file(loaded: Loaded) -> Path:
    """The file that holds the settings of generation."""
    saved = loaded.folder / "generation_config.json"
    return saved if saved.is_file() else loaded.folder / "config.json"


class _FirstStep:
    """A processor of scores that changes nothing. length: tokens before the first that is generated."""

    length = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.length = self.length or input_ids.shape[1]
        return scores


def start_token_id(loaded: Loaded) -> int | None:
    """The token from which a decoder starts. Raises UserError for a number that is none of its tokens."""
    model: Any = loaded.model
    settings = getattr(model, "generation_config", None)
    start = getattr(settings or loaded.config, "decoder_start_token_id", None)
    # As `generate` of transformers.
    start = settings.bos_token_id if settings and start is None else start
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    size = len(decoder.get_input_embeddings().weight)
    if start is None or (isinstance(start, int) and 0 <= start < size):
        return start
    raise UserError(
        f"{_settings_file(loaded)}: expected a decoder_start_token_id from 0 to {size - 1}, got {start!r:.40}; "
        "put back the file that was saved with the model"
    )
