"""How a run reads and writes text, as tokenizers of a folder that transformers opens.

They are made of what a task says of its text (`Spelling`), and kept only where they do what the run does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, SPECIAL
from jarilab.data.text.pieces import Vocabulary
from jarilab.data.text.spelling import Reading, Writing
from jarilab.data.text.tokenizers import UNKNOWN_SIGN, library
from jarilab.data.text.training import tokenizers_library
from jarilab.export.description import described
from jarilab.huggingface import loading
from jarilab.runs.loaded import OpenRun

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


HELD_OUT = 300
"""Held-out texts that are compared at most."""
DRAWN = 200
"""Rows of tokens that are drawn by chance to be compared."""
LONGEST = 12
"""Tokens of such a row at most."""


@dataclass(frozen=True, eq=False)
class Side:
    """What a run reads, or what it writes. names: of the tokens by number. behind: the tokens behind each text.
    longest: tokens of a text at most. read: the numbers of a text, with those behind it; raises UserError. texts:
    held-out ones."""

    reading: Reading
    writing: Writing
    names: Sequence[str]
    behind: Sequence[int]
    longest: int
    read: Callable[[str], list[int]]
    texts: Sequence[str]

    def does_for(self, other: Side) -> bool:
        """Whether the tokenizer of this side is that of the other, too."""
        mine, theirs = (
            (side.reading, side.writing, list(side.names), side.behind) for side in (self, other)
        )
        return mine == theirs


def write(loaded: OpenRun, out: Path) -> str:
    """Write the tokenizer of a run of tokens beside its model, and say on how many texts it does what the run does, or
    why there is none. Where answers are of other tokens, or end otherwise, theirs is in the folder `target`.

    Raises UserError where it does not do what the run does.
    """
    task: Any = loaded.task
    cut, writing = task.spelling.read, task.target_spelling.write
    if cut is None or writing is None:
        return (
            "no tokenizer, since its task does not say how text is cut (spelling, target_spelling)"
        )
    tokens = described(loaded)["tokens"]
    pairs, missing = _held_out(task)
    two = "source" in tokens
    first = [FIRST] if task.one_sequence else []

    def read(text: str) -> list[int]:
        ids = task.read(text)
        if not ids:
            raise UserError("this text has no tokens; write one that has some")
        return task.sources([ids]).ids[0].tolist() + first

    source = Side(
        cut,
        writing,
        tokens["source"] if two else tokens["target"],
        ([] if cut.end is None else [cut.end]) + first,
        task.tokens_read("source" if two else "target"),
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
    opened = _saved(source, out, "right" if two else "left")
    count = _compare_reading(opened, source)
    if two and not source.does_for(target):
        opened = _saved(target, out / folder.TARGET, "right")
        count += _compare_reading(opened, target)
    _compare_writing(opened, target, task.write)
    return f"a tokenizer that reads {count:,} texts as the run does{missing}"


def _held_out(task: Any) -> tuple[list[tuple[str, str]], str]:
    """Texts with their answers, and what to say where there are none."""
    try:
        return task.held_out_pairs(HELD_OUT), ""
    except UserError as error:  # the data need not be where a run is exported
        return [], f", none of them held out: {error}"


def _saved(side: Side, out: Path, padding_side: str) -> Any:
    """The tokenizer of a side, written into a folder and opened again."""
    transformers = loading.library()
    padding, first, end = SPECIAL
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library_of(side.reading, side.writing, side.names, side.behind),
        pad_token=padding,
        bos_token=first,
        eos_token=end,
        padding_side=padding_side,
        model_max_length=side.longest,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a text that says <eos> has no end there
    )
    made.save_pretrained(out)
    return transformers.AutoTokenizer.from_pretrained(out, **loading.SAFE)


def _compare_reading(opened: Any, side: Side) -> int:
    """How many texts it reads as the run does. Raises UserError where it reads one otherwise."""
    drawn = [opened.decode(ids, skip_special_tokens=True) for ids in _drawn(side)]
    count = 0
    for text in (*side.texts, *drawn):
        try:
            own = side.read(text)
        except UserError:  # too long, or no input of the task
            continue
        theirs = _read(opened, text)
        if theirs != own:
            _refuse(f"reads {text[:60]!r} as the tokens {theirs[:20]}, not {own[:20]}")
        count += 1
    if not count:
        _refuse("reads none of the texts that it was compared on")
    return count


def _read(opened: Any, text: str) -> list[int]:
    try:
        return opened(text, verbose=False).input_ids  # which would tell of long ones
    except Exception as error:  # the library's own have no class
        _refuse(f"cannot read {text[:60]!r} ({str(error)[:80]})")


def _compare_writing(opened: Any, side: Side, write: Callable[[Sequence[int]], str]) -> None:
    """Raises UserError where it writes tokens otherwise than the run."""
    said = [_said(_read(opened, text)) for text in side.texts]
    for ids in (*said, *_drawn(side)):
        theirs, own = opened.decode([*ids, END], skip_special_tokens=True), write([*ids, END])
        if theirs != own:
            _refuse(f"writes the tokens {ids[:20]} as {theirs[:60]!r}, not {own[:60]!r}")


def _said(ids: Sequence[int]) -> list[int]:
    return [number for number in ids if number > END]


def _drawn(side: Side) -> list[list[int]]:
    """Rows of tokens, the special ones of all vocabularies left out."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, LONGEST + 1, (DRAWN,), generator=generator).tolist()
    most = len(side.names)
    return [
        torch.randint(len(SPECIAL), most, (length,), generator=generator).tolist()
        for length in lengths
    ]


def _refuse(how: str) -> NoReturn:
    raise UserError(
        f"the tokenizer for transformers {how} as the run does, so nothing was written. Please report this with the "
        "run's task"
    )
