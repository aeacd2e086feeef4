"""What text files become: token numbers on disk, made once, cached by content, and mapped into memory.

The files are read as a stream and written as one, so memory does not grow with them: held at a time are some thousand
lines, and the pages of the mapped files that are looked at, which the system takes back when it needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.core.storage.cache import cached
from jarilab.data.text.files import (
    Reading,
    content_hash,
    document_files,
    documents,
    no_usable,
    pairs,
)
from jarilab.data.text.tokenizers import Tokenizer, train
from jarilab.data.text.training import TRAINING_BYTES
from jarilab.data.text.vocabulary import PADDING

_NUMBERS = "pairs.numbers"
_BATCH_ROWS = 4096
_BATCH_CHARACTERS = 1 << 18


class Encoded:
    """Rows of token numbers, read from the files as they are asked for.

    ids: all rows one after the other, uint16 or uint32; row n is ids[offsets[n] : offsets[n + 1]].
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray):
        self.ids = ids
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """How many there are in all rows."""
        return len(self.ids)

    @property
    def lengths(self) -> Int[Tensor, " N"]:
        """The number of tokens of each row (int64), worked out at each call."""
        return torch.from_numpy(np.diff(self.offsets))

    def padded(self, indices: Int[Tensor, " B"] | Sequence[int]) -> Int[Tensor, "B L"]:
        """The rows of these numbers with PADDING behind, up to the longest of them, int64.

        Raises IndexError for a number that is no row's.
        """
        starts, ends = self._ends(indices)
        lengths_B = ends - starts
        column_L = np.arange(lengths_B.max(initial=0))
        real_BL = column_L < lengths_B[:, None]
        ids_BL = np.full(real_BL.shape, PADDING, np.int64)
        ids_BL[real_BL] = self.ids[(starts[:, None] + column_L)[real_BL]]
        return torch.from_numpy(ids_BL)

    def _ends(self, indices: Tensor | Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        at = np.asarray(indices, dtype=np.int64)
        if at.size and not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(
                f"expected numbers of rows from 0 to {len(self) - 1}; got {at.min()} to {at.max()}"
            )
        return self.offsets[at], self.offsets[at + 1]


@dataclass(frozen=True)
class EncodedPairs:
    """Row n of `source` belongs to row n of `target`; `reading` counts what was used and what was omitted.

    numbers: `(N,)`, which of the pairs that `files.pairs` gives each row is.
    """

    source: Encoded
    target: Encoded
    reading: Reading
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.source)


def prepare_pairs(
    paths: Sequence[Path],
    source: Tokenizer,
    target: Tokenizer,
    *,
    longest: int,
) -> EncodedPairs:
    """The pairs of texts in these files (see `files.pairs`) as token numbers, from the cache where they are there.

    Pairs of more than `longest` tokens on a side are omitted and counted. Raises UserError as `files.pairs`, and where
    no pair is short enough.
    """
    facts = {
        "what": "pairs",
        "contents": content_hash(paths),
        "files": len(paths),
        "tokenizers": [source.fingerprint, target.fingerprint],
        "longest": longest,
    }

    def make(folder: Path) -> dict[str, int]:
        reading, start = Reading(), 0
        with (
            _Writer(folder, "source", source) as left,
            _Writer(folder, "target", target) as right,
            (folder / _NUMBERS).open("wb") as numbers,
        ):
            for batch in _batches(pairs(paths, reading)):
                ones = source.encode_batch([one for one, _ in batch])
                others = target.encode_batch([other for _, other in batch])
                both = enumerate(zip(ones, others, strict=True))
                short = [n for n, pair in both if max(map(len, pair)) <= longest]
                omitted = len(batch) - len(short)
                reading.pairs -= omitted
                reading.too_long += omitted
                numbers.write((start + np.array(short, np.int64)).tobytes())
                left.rows([ones[n] for n in short])
                right.rows([others[n] for n in short])
                start += len(batch)
        if not reading.pairs:
            named = " and ".join(str(path) for path in paths)
            raise UserError(
                f"{named}: expected pairs of at most {longest} tokens a side; got {reading.too_long:,}, all longer; "
                "raise the limit or shorten the lines"
            )
        return asdict(reading)

    def load(folder: Path, counts: Mapping[str, Any]) -> EncodedPairs:
        sides = _mapped(folder, "source", source), _mapped(folder, "target", target)
        return EncodedPairs(*sides, Reading(**counts), np.memmap(folder / _NUMBERS, np.int64, "r"))

    return cached(facts, make, load)


def prepare_documents(path: Path, tokenizer: Tokenizer) -> Encoded:
    """The documents of a file or folder (see `files.documents`), one row each, from the cache where they are there.

    Blank documents have no row. Raises UserError as `files.documents`, and where all are blank.
    """
    files = document_files(path)
    facts = {
        "what": "documents",
        "contents": content_hash(files),
        "files": len(files),
        "tokenizers": [tokenizer.fingerprint],
    }

    def make(folder: Path) -> dict[str, int]:
        with _Writer(folder, "documents", tokenizer) as writer:
            for document in documents(path):
                length = 0
                for batch in _batches(document):
                    length += writer.put(tokenizer.encode_batch(batch)).sum()
                if length:
                    writer.end_rows(np.array([length]))
            if not writer.written:
                raise no_usable([path])
            return {"rows": writer.ended}

    return cached(facts, make, lambda folder, _: _mapped(folder, "documents", tokenizer))


def train_tokenizers(
    paths: Sequence[Path], kind: str, size: int, joint: bool, lowercase: bool = False
) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer for each side of the pairs in these files, or one for both, given twice (see `tokenizers.train`)."""

    def texts(side: int) -> Iterator[str]:
        return (pair[side] for pair in pairs(paths, Reading()))

    def make(folder: Path) -> dict[str, int]:
        every = chain.from_iterable(pairs(paths, Reading()))
        sides = [every] if joint else [texts(0), texts(1)]
        trained = [train(kind, side, size=size, lowercase=lowercase) for side in sides]
        _write_tokenizers(folder, trained)
        return {}

    facts = _training_facts("pair tokenizers", paths, kind, size, lowercase) | {"joint": joint}
    made = cached(facts, make, lambda folder, _: _read_tokenizers(folder))
    return made[0], made[-1]


def train_tokenizer(path: Path, kind: str, size: int, lowercase: bool = False) -> Tokenizer:
    """A tokenizer for the documents of a file or folder (see `tokenizers.train`), from the cache where it is there."""

    def make(folder: Path) -> dict[str, int]:
        pieces = chain.from_iterable(documents(path))
        _write_tokenizers(folder, [train(kind, pieces, size=size, lowercase=lowercase)])
        return {}

    facts = _training_facts("document tokenizer", document_files(path), kind, size, lowercase)
    (tokenizer,) = cached(facts, make, lambda folder, _: _read_tokenizers(folder))
    return tokenizer


def _training_facts(
    what: str, paths: Sequence[Path], kind: str, size: int, lowercase: bool
) -> dict[str, Any]:
    return {
        "what": what,
        "contents": content_hash(paths),
        "files": len(paths),
        "kind": kind,
        "size": size,
        "lowercase": lowercase,
        "training_bytes": TRAINING_BYTES,
    }


def _write_tokenizers(folder: Path, tokenizers: Sequence[Tokenizer]) -> None:
    for number, tokenizer in enumerate(tokenizers):
        (folder / f"{number}.json").write_text(tokenizer.to_json(), encoding="utf-8", newline="")


def _read_tokenizers(folder: Path) -> list[Tokenizer]:
    found = sorted(folder.glob("[01].json"))
    return [Tokenizer.from_json(path.read_text(encoding="utf-8")) for path in found]


class _Writer:
    """Writes rows as they come: the numbers into one file, where each row ends into another."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer):
        self._type = _type(tokenizer)
        self._ids = (folder / f"{name}.ids").open("wb")
        self._offsets = (folder / f"{name}.offsets").open("wb")
        self._offsets.write(np.zeros(1, np.int64).tobytes())
        self.written = 0
        self.ended = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()
        self._offsets.close()

    def rows(self, rows: list[list[int]]) -> None:
        self.end_rows(self.put(rows))

    def put(self, parts: list[list[int]]) -> np.ndarray:
        """Writes numbers without ending a row, and gives the lengths of the parts."""
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        ids = np.fromiter(chain.from_iterable(parts), self._type, int(lengths.sum()))
        self._ids.write(ids.tobytes())
        return lengths

    def end_rows(self, lengths: np.ndarray) -> None:
        ends = self.written + np.cumsum(lengths, dtype=np.int64)
        self._offsets.write(ends.tobytes())
        self.written += int(lengths.sum())
        self.ended += len(lengths)


def _type(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32


def _mapped(folder: Path, name: str, tokenizer: Tokenizer) -> Encoded:
    ids = np.memmap(folder / f"{name}.ids", _type(tokenizer), "r")
    return Encoded(ids, np.memmap(folder / f"{name}.offsets", np.int64, "r"))


def _batches(items: Iterator[Any]) -> Iterator[list[Any]]:
    """Texts, or pairs of them, some thousand at a time, and fewer where they are long."""
    batch, characters = [], 0
    for item in items:
        batch.append(item)
        characters += len(item) if isinstance(item, str) else len(item[0]) + len(item[1])
        if len(batch) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
