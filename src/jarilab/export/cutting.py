"""What a task says of its text (`Spelling`), as a tokenizer of the library `tokenizers`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jarilab.data.text import SPECIAL
from jarilab.data.text.pieces import Vocabulary
from jarilab.data.text.spelling import Reading, Writing
from jarilab.data.text.tokenizers import UNKNOWN_SIGN, library
from jarilab.data.text.training import tokenizers_library

UNKNOWN = "<unk>"
"""The name of what a vocabulary does not hold."""

_PLACES = re.compile(r"\[\^\]|\[(?:\\.|[^\]])*\]|\\.|[\^$]", re.DOTALL)
"""Any sign, a set of signs, a sign with a backslash, and the two ends of a text, in a pattern of JavaScript."""
_OF_ONIGURUMA = {"[^]": r"[\s\S]", "^": r"\A", "$": r"\z"}
"""What means the same to the library, where it is written otherwise: its ^ and $ are the ends of lines."""


def library_of(
    reading: Reading, writing: Writing, names: Sequence[str], behind: Sequence[int]
) -> Any:
    """Text to tokens as `reading` says, and back as `writing` does. names: of the tokens by number. behind: the tokens
    behind each text."""
    hf = tokenizers_library()
    made = _of_names(reading, names) if reading.pieces is None else _of_pieces(reading)
    changes = [hf.normalizers.Replace(_pattern(was), now) for was, now in reading.rules]
    lower = [hf.normalizers.Lowercase()]
    before, after = (lower if reading.lowercase == of else [] for of in ("text", "characters"))
    made.normalizer = hf.normalizers.Sequence([*before, *changes, *after])
    made.decoder = hf.decoders.Sequence(_decoders(writing))
    ends = [(SPECIAL[number], number) for number in dict.fromkeys(behind)]
    template = " ".join(["$A", *(SPECIAL[number] for number in behind)])
    made.post_processor = hf.processors.TemplateProcessing(single=template, special_tokens=ends)
    return made


def _of_pieces(reading: Reading) -> Any:
    """The library's own of a vocabulary."""
    lowercase = reading.lowercase == "characters"
    made = Vocabulary(reading.kind, lowercase, reading.pieces or (), reading.merges, reading.scores)
    return library(made, before="")


def _of_names(reading: Reading, names: Sequence[str]) -> Any:
    """Each match of the cut is a token; what is none is an error there, too."""
    hf = tokenizers_library()
    numbers = {name: number for number, name in enumerate(names)}
    made = hf.Tokenizer(hf.models.WordLevel(numbers, unk_token=UNKNOWN))
    made.pre_tokenizer = hf.pre_tokenizers.Split(_pattern(reading.cut), "removed", invert=True)
    return made


def _decoders(writing: Writing) -> list[Any]:
    made = tokenizers_library().decoders
    if writing.over_bytes:
        return [made.ByteLevel()]
    found = []
    if writing.unknown is not None:
        found.append(made.Replace(UNKNOWN, UNKNOWN_SIGN))
    if writing.join:
        # It puts a space before each token but the first, and those that begin with a sign that none has.
        found.append(made.WordPiece(prefix="\0", cleanup=False))
        found.append(made.Replace(_pattern(r"^ (?=[^])"), writing.join))
    changes = [made.Replace(_pattern(was), now) for was, now in writing.rules]
    return [*found, made.Fuse(), *changes]


def _pattern(of_javascript: str) -> Any:
    here = _PLACES.sub(lambda found: _OF_ONIGURUMA.get(found[0], found[0]), of_javascript)
    return tokenizers_library().Regex(here)
