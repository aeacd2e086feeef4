"""Special tokens, and a vocabulary of characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jarilab.core.errors import UserError

PADDING, FIRST, END = 0, 1, 2
"""Token ids that every vocabulary starts with: padding, start and end of an answer."""

SPECIAL = ("<pad>", "<bos>", "<eos>")


class CharacterVocabulary:
    """One token for each character of a fixed alphabet."""

    def __init__(self, alphabet: Iterable[str]):
        self.tokens = (*SPECIAL, *alphabet)
        self._number = {token: number for number, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def number(self, character: str) -> int:
        return self._number[character]

    def encode(self, text: str) -> list[int]:
        """Return the ids of the characters. Raises UserError naming characters outside the alphabet."""
        unknown = sorted({c for c in text if c not in self._number})
        if unknown:
            shown = ", ".join(repr(c) for c in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            alphabet = "".join(self.tokens[len(SPECIAL) :])
            raise UserError(f"no token for {shown}; the model knows the characters {alphabet}")
        return [self._number[c] for c in text]

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the text up to the first END or PADDING."""
        characters = []
        for number in numbers:
            if number in (PADDING, END):
                break
            characters.append(self.tokens[number])
        return "".join(characters)
