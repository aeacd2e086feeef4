"""Exports the tokenizers of a run, made from the task's `Spelling`, to transformers.

They are written only if they split and join texts as the run does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING, SPECIAL
from jarilab.data.text.pieces import Form, TokenizerData
from jarilab.data.text.spelling import AT_BLANKS, Reading, Writing
from jarilab.data.text.tokenizers import library
from jarilab.data.text.training import tokenizers_library
from jarilab.export.description import described
from jarilab.huggingface import loading
from jarilab.runs.loaded import OpenRun

FILE = "tokenizer.json"
UNKNOWN = "<unk>"
"""The name of an unknown token."""

_PLACES = re.compile(r"\[\^\]|\[(?:\\.|[^\]])*\]|\\.|[\^$]", re.DOTALL)
"""Parts of a JavaScript pattern: any character, a class, an escape, and both ends of a text."""
_OF_ONIGURUMA = {"[^]": r"[\s\S]", "^": r"\A", "$": r"\z"}
"""The same parts in a pattern of the library, whose ^ and $ match at every line."""


def library_of(
    reading: Reading, writing: Writing, names: Sequence[str], behind: Sequence[int]
) -> Any:
    """A tokenizer of the library `tokenizers`. names: of the tokens by ID. behind: IDs that follow each text."""
    hf = tokenizers_library()
    tokenizer = _of_names(reading, names) if reading.pieces is None else _of_pieces(reading)
    composed = [hf.normalizers.NFC()] if reading.nfc else []
    changes = [hf.normalizers.Replace(_pattern(was), now) for was, now in reading.rules]
    # The library fails where it puts a text into lower case after a rule that inserts something.
    lower = [hf.normalizers.Lowercase()] if reading.lowercase else []
    tokenizer.normalizer = hf.normalizers.Sequence([*composed, *lower, *changes])
    tokenizer.decoder = hf.decoders.Sequence(_decoders(writing))
    ends = [(SPECIAL[number], number) for number in dict.fromkeys(behind)]
    template = " ".join(["$A", *(SPECIAL[number] for number in behind)])
    tokenizer.post_processor = hf.processors.TemplateProcessing(
        single=template, special_tokens=ends
    )
    return tokenizer


def _of_pieces(reading: Reading) -> Any:
    """The library's own tokenizer of a vocabulary."""
    form = Form(at_blanks=reading.cut == AT_BLANKS, byte_fallback=reading.byte_fallback)
    vocabulary = TokenizerData(
        reading.kind, form, reading.pieces or (), reading.merges, reading.scores
    )
    return library(vocabulary, before="")


def _of_names(reading: Reading, names: Sequence[str]) -> Any:
    """A tokenizer in which each match of the cut is a token, and other text is an error."""
    hf = tokenizers_library()
    numbers = {name: number for number, name in enumerate(names)}
    tokenizer = hf.Tokenizer(hf.models.WordLevel(numbers, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Split(_pattern(reading.cut), "removed", invert=True)
    return tokenizer


def _decoders(writing: Writing) -> list[Any]:
    decoders = tokenizers_library().decoders
    if writing.over_bytes:
        return [decoders.ByteLevel()]
    chain = []
    if writing.unknown is not None:
        chain.append(decoders.Replace(UNKNOWN, writing.unknown_text))
    if writing.byte_fallback:
        chain.append(decoders.ByteFallback())
    if writing.join:
        # It puts a space before each token except the first. No token begins with the prefix.
        chain.append(decoders.WordPiece(prefix="\0", cleanup=False))
        chain.append(decoders.Replace(_pattern(r"^ (?=[^])"), writing.join))
    changes = [decoders.Replace(_pattern(was), now) for was, now in writing.rules]
    return [*chain, decoders.Fuse(), *changes]


def _pattern(of_javascript: str) -> Any:
    pattern = _PLACES.sub(lambda match: _OF_ONIGURUMA.get(match[0], match[0]), of_javascript)
    return tokenizers_library().Regex(pattern)


HELD_OUT = 300
"""Held-out texts of the comparison."""
DRAWN = 200
"""Random rows of tokens of the comparison."""
LONGEST = 12
"""Tokens of a random row."""


@dataclass(frozen=True, eq=False)
class Side:
    """The texts that a run reads, or those that it writes.

    names: of the tokens by ID. behind: IDs that follow each text. longest: tokens of a text. read: a function from a
    text to its IDs and those of `behind`; raises UserError. texts: held-out ones.
    """

    reading: Reading
    writing: Writing
    names: Sequence[str]
    behind: Sequence[int]
    longest: int
    read: Callable[[str], list[int]]
    texts: Sequence[str]

    def does_for(self, other: Side) -> bool:
        """Whether both sides have the same tokenizer."""
        first, second = (
            (side.reading, side.writing, list(side.names), side.behind) for side in (self, other)
        )
        return first == second


class _Opened:
    """A tokenizer of the library, with the interface of one of transformers."""

    def __init__(self, path: Path):
        self._tokenizer = tokenizers_library().Tokenizer.from_file(str(path))
        self._tokenizer.encode_special_tokens = True  # "<eos>" in a text is no special token
        self.decode = self._tokenizer.decode

    def __call__(self, text: str, **_: Any) -> Any:
        return SimpleNamespace(input_ids=self._tokenizer.encode(text).ids)


def write(loaded: OpenRun, out: Path, *, wrapped: bool = True) -> str:
    """Write the tokenizer of a run; returns a sentence with the number of compared texts, or why there is none.

    wrapped: with the files of transformers; otherwise `tokenizer.json` alone, for the library `tokenizers`. If answers
    have other tokens or another end, their tokenizer is in the folder `target`. Raises UserError if a tokenizer differs
    from the run.
    """
    task: Any = loaded.task
    cut, writing = task.spelling.read, task.target_spelling.write
    if cut is None or writing is None:
        return (
            "no tokenizer, since its task does not say how text is cut (spelling, target_spelling)"
        )
    tokens = described(loaded)["tokens"]
    pairs, missing = _held_out(task)
    has_source = "source" in tokens
    first = [FIRST] if task.one_sequence else []

    def read(text: str) -> list[int]:
        ids = task.read(text)
        if not ids:
            raise UserError("this text has no tokens; write one that has some")
        return task.sources([ids]).ids[0].tolist() + first

    source = Side(
        cut,
        writing,
        tokens["source"] if has_source else tokens["target"],
        ([] if cut.end is None else [cut.end]) + first,
        task.tokens_read("source" if has_source else "target"),
        read,
        [text for text, _ in pairs],
    )
    target = Side(
        task.target_spelling.read,
        writing,
        tokens["target"],
        [END],
        task.tokens_read("target"),
        task.read_target,
        [text for _, text in pairs],
    )
    opened = _saved(source, out, "right" if has_source else "left", wrapped)
    count = _compare_reading(opened, source)
    if has_source and not source.does_for(target):
        opened = _saved(target, out / loading.TARGET, "right", wrapped)
        count += _compare_reading(opened, target)
    _compare_writing(opened, target, task.write)
    return f"a tokenizer that reads {count:,} texts as the run does{missing}"


def _held_out(task: Any) -> tuple[list[tuple[str, str]], str]:
    """Held-out texts with their answers, and a note if there are none."""
    try:
        return task.held_out_pairs(HELD_OUT), ""
    except UserError as error:  # the data may be missing where a run is exported
        return [], f", none of them held out: {error}"


def _saved(side: Side, out: Path, padding_side: str, wrapped: bool) -> Any:
    """The tokenizer of a side, written and opened again."""
    plain = library_of(side.reading, side.writing, side.names, side.behind)
    padding, first, end = SPECIAL
    if not wrapped:
        plain.add_special_tokens(list(SPECIAL))
        plain.enable_padding(direction=padding_side, pad_id=PADDING, pad_token=padding)
        out.mkdir(exist_ok=True)
        plain.save(str(out / FILE))
        return _Opened(out / FILE)
    transformers = loading.library()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token=padding,
        bos_token=first,
        eos_token=end,
        padding_side=padding_side,
        model_max_length=side.longest,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "<eos>" in a text is no special token
    )
    tokenizer.save_pretrained(out)
    return transformers.AutoTokenizer.from_pretrained(out, **loading.SAFE)


def _compare_reading(opened: Any, side: Side) -> int:
    """The number of texts that a tokenizer was compared on. Raises UserError if it reads one differently."""
    drawn = [opened.decode(ids, skip_special_tokens=True) for ids in _drawn(side)]
    count = 0
    for text in (*side.texts, *drawn):
        try:
            expected = side.read(text)
        except UserError:  # too long, or no input of the task
            continue
        ids = _read(opened, text)
        if ids != expected:
            _refuse(f"reads {text[:60]!r} as the tokens {ids[:20]}, not {expected[:20]}")
        count += 1
    if not count:
        _refuse("reads none of the texts that it was compared on")
    return count


def _read(opened: Any, text: str) -> list[int]:
    try:
        return opened(text, verbose=False).input_ids  # without a warning for long texts
    except Exception as error:  # the library raises no class of its own
        _refuse(f"cannot read {text[:60]!r} ({str(error)[:80]})")


def _compare_writing(opened: Any, side: Side, write: Callable[[Sequence[int]], str]) -> None:
    """Raises UserError if a tokenizer writes tokens differently from the run."""
    rows = [_without_special(_read(opened, text)) for text in side.texts]
    for ids in (*rows, *_drawn(side)):
        text, expected = opened.decode([*ids, END], skip_special_tokens=True), write([*ids, END])
        if text != expected:
            _refuse(f"writes the tokens {ids[:20]} as {text[:60]!r}, not {expected[:60]!r}")


def _without_special(ids: Sequence[int]) -> list[int]:
    return [number for number in ids if number > END]


def _drawn(side: Side) -> list[list[int]]:
    """Random rows of ordinary tokens."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, LONGEST + 1, (DRAWN,), generator=generator).tolist()
    most = len(side.names)
    return [
        torch.randint(len(SPECIAL), most, (length,), generator=generator).tolist()
        for length in lengths
    ]


def _refuse(how: str) -> NoReturn:
    raise UserError(
        f"the tokenizer for other programs {how} as the run does, so nothing was written. Please report this with the "
        "run's task"
    )
