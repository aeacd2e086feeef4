"""Text to token ids and back. The special tokens and the character vocabulary are exported here."""

from jarilab.data.text.vocabulary import (
    END,
    FIRST,
    PADDING,
    SPECIAL,
    CharacterVocabulary,
    ListedVocabulary,
)

__all__ = ["END", "FIRST", "PADDING", "SPECIAL", "CharacterVocabulary", "ListedVocabulary"]
