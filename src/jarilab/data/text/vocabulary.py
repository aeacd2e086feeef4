"""Special tokens, and vocabularies that list their tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import final

from jarilab.core.errors import UserError

PADDING, FIRST, END = 0, 1, 2
"""Token ids that every vocabulary starts with: padding, start and end of an answer."""

SPECIAL = ("<pad>", "<bos>", "<eos>")

WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680"
    + "".join(map(chr, range(0x2000, 0x200B)))
    + "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space, as in the regular expressions of tokenizers. `str.strip` removes other characters too."""


class ListedVocabulary(ABC):
    """One token for each entry of a list, after the special ones. A subclass says which entries a text has."""

    def __init__(self, entries: Iterable[str]):
        self.tokens = (*SPECIAL, *entries)
        self.number = {token: number for number, token in enumerate(self.tokens)}

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's tokens. Raises UserError for unknown ones."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first END or PADDING."""

    def __len__(self) -> int:
        return len(self.tokens)

    def names(self, ids: Iterable[int]) -> list[str]:
        return [self.tokens[token] for token in ids]

    def written(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens up to the first END or PADDING."""
        return self.names(takewhile(lambda token: token not in (PADDING, END), ids))


@final
class CharacterVocabulary(ListedVocabulary):
    """One token for each character of a fixed alphabet."""

    def encode(self, text: str) -> list[int]:
        unknown = sorted({c for c in text if c not in self.number})
        if unknown:
            shown = ", ".join(repr(c) for c in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            alphabet = "".join(self.tokens[len(SPECIAL) :])
            raise UserError(f"no token for {shown}; the model knows the characters {alphabet}")
        return [self.number[c] for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.written(ids))
