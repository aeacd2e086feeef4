"""Text to token numbers and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jarilab.core.errors import UserError

PADDING, FIRST, END = 0, 1, 2
"""The numbers every vocabulary starts with: padding, the start of an answer, its end."""

SPECIAL = ("<pad>", "<bos>", "<eos>")


class CharacterVocabulary:
    """A token for each character of a fixed alphabet."""

    def __init__(self, alphabet: Iterable[str]):
        self.tokens = (*SPECIAL, *alphabet)
        self._number = {token: number for number, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def number(self, character: str) -> int:
        return self._number[character]

    def encode(self, text: str) -> list[int]:
        """The numbers of the characters. Raises UserError that names what is not in the alphabet."""
        strange = sorted({c for c in text if c not in self._number})
        if strange:
            shown = ", ".join(repr(c) for c in strange[:5]) + (", ..." if len(strange) > 5 else "")
            alphabet = "".join(self.tokens[len(SPECIAL) :])
            raise UserError(f"no token for {shown}; the model knows the characters {alphabet}")
        return [self._number[c] for c in text]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text up to the first end or padding."""
        characters = []
        for number in numbers:
            if number in (PADDING, END):
                break
            characters.append(self.tokens[number])
        return "".join(characters)
