"""Tokenizers of other programs: a tokenizer.json of Hugging Face, and SentencePiece models."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, final

from jarilab.core.bounds import run_bounded
from jarilab.core.errors import UserError, as_user_error, import_optional
from jarilab.core.storage.files import read_bytes
from jarilab.data.text.pieces import KINDS
from jarilab.data.text.training import tokenizers_library

MAX_BYTES = 64 * 2**20


def locate(path: Path, side: str) -> Path:
    """The file of a tokenizer: itself, or in a folder of a run or of transformers. Raises UserError."""
    if path.is_file():
        return path
    names = (
        f"vocabulary.{side}.json",
        "vocabulary.json",
        f"{side}/tokenizer.json",
        "tokenizer.json",
    )
    found = [path / name for name in names if (path / name).is_file()]
    if found:
        return found[0]
    what = f"a folder without {', '.join(names[1::2])}" if path.is_dir() else "no file or folder"
    raise UserError(
        f"tokenizer: expected {', '.join(KINDS)}, a tokenizer.json, a SentencePiece model (.model), or the folder of a "
        f"run or of transformers; got {path}, {what}"
    )


def read(path: Path) -> tuple[str, list[str], bool]:
    """The text to keep of a file, its tokens by id, and whether it reads lower case. Raises UserError."""
    contents = read_bytes(path, MAX_BYTES)
    is_model = path.suffix == ".model"
    text = (base64.b64encode(contents) if is_model else contents).decode(errors="replace")

    def named() -> Any:
        try:
            return library(text)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    opened = run_bounded(path.parent, path.name, named)
    pieces = [opened.id_to_token(number) for number in range(opened.get_vocab_size())]
    if not pieces or None in pieces:
        raise UserError(
            f"{path}: expected tokens numbered from 0 without gaps, got {len(pieces)} with "
            f"{pieces.count(None)} gaps; write the tokenizer again with the program that made it"
        )
    normalizer = getattr(opened, "normalizer", None)
    with as_user_error(f"{path}: expected a normalizer that changes text, got one that fails"):
        return text, pieces, normalizer is not None and normalizer.normalize_str("A") == "a"


def library(text: str) -> Any:
    """The tokenizer of another program, from the text that `read` gives. Raises UserError if it is none."""
    if not text.startswith("{"):
        return SentencePieces(text)
    tokenizer = tokenizers_library().Tokenizer
    with as_user_error(
        "expected a tokenizer.json that tokenizer.save(FILE) of Hugging Face's tokenizers wrote, got a file that it "
        "refuses"
    ):
        opened = tokenizer.from_str(text)
    # A text has the same tokens alone and in a batch, and in every run.
    opened.no_truncation()
    opened.no_padding()
    if getattr(opened.model, "dropout", None):
        opened.model.dropout = None
    return opened


def unknown_id(opened: Any) -> int | None:
    """The id of the unknown token, in its own numbers; None without one."""
    if isinstance(opened, SentencePieces):
        return opened.unknown
    model = json.loads(opened.to_str())["model"]
    if isinstance(model.get("unk_id"), int):
        return model["unk_id"]
    return opened.token_to_id(model["unk_token"]) if model.get("unk_token") else None


def is_over_bytes(opened: Any) -> bool:
    """Whether its tokens are made of GPT-2's letters of bytes."""
    return type(getattr(opened, "decoder", None)).__name__ == "ByteLevel"


def decode(opened: Any, tokens: Sequence[tuple[int, str]], special: int) -> str:
    """The text of tokens, each a number of jarilab's and its text if the file lacks it.

    The first `special` numbers are no tokens of the file.
    """
    parts: list[str] = []
    runs = groupby(tokens, lambda token: token[0] >= special)
    for is_known, run in runs:
        parts += [opened.decode([n - special for n, _ in run])] if is_known else [s for _, s in run]
    return " ".join(part.strip() for part in parts) if len(parts) > 1 else "".join(parts)


@dataclass(frozen=True)
class Encoded:
    """Tokens of a text, and where each begins and ends in it."""

    ids: list[int]
    offsets: list[tuple[int, int]]


@final
class SentencePieces:
    """A SentencePiece model with those methods of Hugging Face's library that jarilab calls.

    text: the model in base64. Raises UserError without the package, and for any other text.
    """

    def __init__(self, text: str):
        package: Any = import_optional("sentencepiece", "sentencepiece")
        try:
            self._model = package.SentencePieceProcessor(model_proto=base64.b64decode(text))
            self.unknown = int(self._model.unk_id())
        except (RuntimeError, ValueError, TypeError) as error:
            raise UserError(
                f"expected a SentencePiece model or a tokenizer.json, got another file ({error!s:.100}); name the file "
                "that `spm_train` wrote"
            ) from None

    def encode(self, text: str, add_special_tokens: bool = False) -> Encoded:
        encoded = self._model.encode_as_offset_mapping(text)
        return Encoded(encoded["ids"], encoded["offsets"])

    def encode_batch_fast(
        self, texts: list[str], add_special_tokens: bool = False
    ) -> list[Encoded]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: list[int]) -> str:
        return self._model.decode(ids)

    def get_vocab_size(self) -> int:
        return self._model.get_piece_size()

    def id_to_token(self, number: int) -> str:
        return self._model.id_to_piece(number)
