"""Text to token numbers and back: vocabularies here, files, tokenizers and the store in modules of their own."""

from jarilab.data.text.vocabulary import END, FIRST, PADDING, SPECIAL, CharacterVocabulary

__all__ = ["END", "FIRST", "PADDING", "SPECIAL", "CharacterVocabulary"]
