"""Token ids of text files on disk, cached by content and mapped into memory.

Files are read and written as streams, so memory does not grow with them. Some thousand lines are in memory at a time.
The system reclaims pages of the mapped files when it needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, compress, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.core.storage.content_cache import cached
from jarilab.core.storage.files import sha256
from jarilab.data.text.held_out import Cut, parts
from jarilab.data.text.pairs import PairCounts, pairs, table_facts
from jarilab.data.text.pieces import FORMAT, KINDS, Form
from jarilab.data.text.text_files import content_hash, document_files, documents, no_usable
from jarilab.data.text.tokenizers import Tokenizer, from_file, train
from jarilab.data.text.training import TRAINING_BYTES
from jarilab.data.text.vocabulary import PADDING

T = TypeVar("T")

_NUMBERS = "pairs.numbers"
_BATCH_ROWS = 4096
_ROWS_AT_ONCE = 1 << 16
_BATCH_CHARACTERS = 1 << 18


class Encoded:
    """Rows of token ids, read from disk on access.

    ids: all rows concatenated, uint16 or uint32. Row n is ids[offsets[n] : offsets[n + 1]].
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray):
        self.ids = ids
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """The number of tokens in all rows."""
        return len(self.ids)

    @property
    def lengths(self) -> Int[Tensor, " N"]:
        """The number of tokens of each row, computed at each call."""
        return self.lengths_of(None)

    def lengths_of(self, rows: Int[Tensor, " M"] | None) -> Int[Tensor, " M"]:
        """Return the number of tokens of some rows, or of all, below 2^31 each, as int32."""
        lengths = np.empty(len(self) if rows is None else len(rows), np.int32)
        for start in range(0, len(lengths), _ROWS_AT_ONCE):
            stop = start + _ROWS_AT_ONCE
            if rows is None:
                lengths[start:stop] = np.diff(self.offsets[start : stop + 1])
            else:
                starts, ends = self._ends(rows[start:stop])
                lengths[start:stop] = ends - starts
        return torch.from_numpy(lengths)

    def padded(self, indices: Int[Tensor, " B"] | Sequence[int]) -> Int[Tensor, "B L"]:
        """Return the rows at `indices`, int64, padded at the end to the longest of them.

        Raises IndexError for an index out of range.
        """
        starts, ends = self._ends(indices)
        lengths_B = ends - starts
        column_L = np.arange(lengths_B.max(initial=0))
        real_BL = column_L < lengths_B[:, None]
        ids_BL = np.full(real_BL.shape, PADDING, np.int64)
        ids_BL[real_BL] = self.ids[(starts[:, None] + column_L)[real_BL]]
        return torch.from_numpy(ids_BL)

    def _ends(self, indices: Tensor | Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        rows = np.asarray(indices, dtype=np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(
                f"expected row indices from 0 to {len(self) - 1}; got {rows.min()} to {rows.max()}"
            )
        return self.offsets[rows], self.offsets[rows + 1]


@dataclass(frozen=True)
class EncodedPairs:
    """Encoded pairs: row n of `source` belongs to row n of `target`.

    counts: used and omitted pairs. numbers: `(N,)`, the index of each row among the pairs of `pairs.pairs`.
    """

    source: Encoded
    target: Encoded
    counts: PairCounts
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def corpus_sizes(self, rows: np.ndarray) -> list[int]:
        """The number of these rows, which ascend, in each corpus."""
        ends = np.searchsorted(self.numbers[rows], self.counts.ends)
        return np.diff(ends, prepend=0).tolist()


def prepare_pairs(
    corpora: Sequence[Sequence[Path]],
    source: Tokenizer,
    target: Tokenizer,
    *,
    longest: int,
    columns: Sequence[str] = (),
) -> EncodedPairs:
    """Return the pairs of these corpora (see `pairs.pairs`) as token ids, from the cache if it has them.

    Pairs with more than `longest` tokens on a side are omitted and counted. Raises UserError as `pairs.pairs`
    does, and if no pair is short enough.
    """
    paths = list(chain(*corpora))
    facts = {
        "what": "pairs",
        "contents": content_hash(paths),
        "files": len(paths),
        "tokenizers": [source.fingerprint, target.fingerprint],
        "longest": longest,
        "table": table_facts(corpora, columns),
    }

    def make(folder: Path) -> dict[str, int]:
        counts = PairCounts()
        _write_pairs(folder, pairs(corpora, counts, columns), (source, target), longest, counts)
        if not counts.pairs:
            named = " and ".join(str(path) for path in paths)
            raise UserError(
                f"{named}: expected pairs of at most {longest} tokens a side; got {counts.too_long:,}, all longer; "
                "raise the limit or shorten the lines"
            )
        return asdict(counts)

    def load(folder: Path, record: Mapping[str, Any]) -> EncodedPairs:
        sides = _mapped(folder, "source", source), _mapped(folder, "target", target)
        return EncodedPairs(
            *sides, PairCounts(**record), np.memmap(folder / _NUMBERS, np.int64, "r")
        )

    return cached(facts, make, load)


def _write_pairs(
    folder: Path,
    texts: Iterator[tuple[str, str]],
    tokenizers: tuple[Tokenizer, Tokenizer],
    longest: int,
    counts: PairCounts,
) -> None:
    """Write the pairs of at most `longest` tokens a side to disk, and update the counts."""
    source, target = tokenizers
    start = 0
    with (
        _Writer(folder, "source", source) as left,
        _Writer(folder, "target", target) as right,
        (folder / _NUMBERS).open("wb") as numbers,
    ):
        for batch in _batches(texts):
            ones = source.encode_batch([one for one, _ in batch])
            others = target.encode_batch([other for _, other in batch])
            both = enumerate(zip(ones, others, strict=True))
            short = [n for n, pair in both if max(map(len, pair)) <= longest]
            omitted = len(batch) - len(short)
            counts.pairs -= omitted
            counts.too_long += omitted
            numbers.write((start + np.array(short, np.int64)).tobytes())
            left.rows([ones[n] for n in short])
            right.rows([others[n] for n in short])
            start += len(batch)


def prepare_documents(
    paths: Sequence[Path], tokenizer: Tokenizer, cuts: Sequence[Cut] = ()
) -> tuple[Encoded, tuple[int, ...]]:
    """Return the documents of files and folders, one row each, and the number of rows up to the end of each path.

    They come from the cache if it has them. Blank documents have no row. cuts: where the held-out part of each path
    begins; each part then has an end, and the rest of a document that is cut has a row. Raises UserError as
    `text_files.documents` does, and if all documents of a part are blank.
    """
    files = list(chain.from_iterable(map(document_files, paths)))
    facts = {
        "what": "documents",
        "contents": content_hash(files),
        "files": [len(document_files(path)) for path in paths],
        "tokenizers": [tokenizer.fingerprint],
        "cuts": [asdict(cut) for cut in cuts],
    }

    def make(folder: Path) -> dict[str, list[int]]:
        with _Writer(folder, "documents", tokenizer) as writer:
            ends = []
            for path, cut in zip_longest(paths, cuts):
                for part in (documents(path),) if cut is None else parts(path, cut):
                    ends.append(_write_documents(part, writer, tokenizer))
                    if ends[-1] == ([0, *ends])[-2]:
                        raise no_usable([path])
            return {"ends": ends}

    def load(folder: Path, record: Mapping[str, Any]) -> tuple[Encoded, tuple[int, ...]]:
        return _mapped(folder, "documents", tokenizer), tuple(record["ends"])

    return cached(facts, make, load)


def _write_documents(texts: Iterable[Iterator[str]], writer: _Writer, tokenizer: Tokenizer) -> int:
    """Write documents, each in pieces. Returns the number of rows written until now."""
    for document in texts:
        length = 0
        for batch in _batches(document):
            ids = tokenizer.encode_batch(batch, inside=0 if length else 1)
            length += writer.put(ids).sum()
        if length:
            writer.end_rows(np.array([length]))
    return writer.ended


def train_tokenizers(
    corpora: Sequence[Sequence[Path]],
    kind: str,
    size: int,
    joint: bool,
    columns: Sequence[str] = (),
    is_read: Sequence[np.ndarray] = (),
    **form: bool,
) -> tuple[Tokenizer, Tokenizer]:
    """Train a tokenizer for each side of these pairs, or one for both, returned twice (see `tokenizers.train`).

    kind: or a file, which is read instead (see `tokenizers.from_file`); then the sides are source and target. Several
    corpora are read in turn, a pair of each. is_read: which pairs of each corpus are read, `(N,)` each; all by default.
    """
    if kind not in KINDS:
        one, other = (_from_file(kind, Form(**form), side) for side in ("source", "target"))
        return one, other

    def both() -> Iterator[tuple[str, str]]:
        readers = [pairs([paths], PairCounts(), columns) for paths in corpora]
        if is_read:
            readers = list(map(compress, readers, is_read))
        return readers[0] if len(readers) == 1 else interleave(readers)

    def texts(side: int) -> Iterator[str]:
        return (pair[side] for pair in both())

    def make(folder: Path) -> dict[str, int]:
        both_sides = chain.from_iterable(both())
        sides = [both_sides] if joint else [texts(0), texts(1)]
        trained = [train(kind, side, size=size, **form) for side in sides]
        _write_tokenizers(folder, trained)
        return {}

    paths = list(chain(*corpora))
    facts = _training_facts("pair tokenizers", paths, kind, size, form) | {
        "joint": joint,
        "table": table_facts(corpora, columns),
        "is_read": [sha256(np.packbits(rows).tobytes()) for rows in is_read],
    }
    tokenizers = cached(facts, make, lambda folder, _: _read_tokenizers(folder))
    return tokenizers[0], tokenizers[-1]


def train_tokenizer(
    paths: Sequence[Path], kind: str, size: int, cuts: Sequence[Cut] = (), **form: bool
) -> Tokenizer:
    """Train a tokenizer on the documents of files and folders, or take it from the cache (see `tokenizers.train`).

    kind: or a file, which is read instead (see `tokenizers.from_file`). Several paths are read in turn, a piece of
    each. cuts: where the held-out part of each path begins, which is not read.
    """
    if kind not in KINDS:
        return _from_file(kind, Form(**form))
    files = list(chain.from_iterable(map(document_files, paths)))

    def make(folder: Path) -> dict[str, int]:
        readers = [
            chain.from_iterable(documents(path) if cut is None else parts(path, cut)[0])
            for path, cut in zip_longest(paths, cuts)
        ]
        pieces = readers[0] if len(readers) == 1 else interleave(readers)
        if next(chain.from_iterable(chain.from_iterable(map(documents, paths))), None) is None:
            raise no_usable(paths)
        _write_tokenizers(folder, [train(kind, pieces, size=size, **form)])
        return {}

    facts = _training_facts("document tokenizer", files, kind, size, form) | {
        "files": [len(document_files(path)) for path in paths],
        "cuts": [asdict(cut) for cut in cuts],
    }
    (tokenizer,) = cached(facts, make, lambda folder, _: _read_tokenizers(folder))
    return tokenizer


def interleave(readers: Sequence[Iterator[T]]) -> Iterator[T]:
    """Yield an item of each reader in turn, until all are empty."""
    rounds = zip_longest(*readers, fillvalue=None)
    return (item for items in rounds for item in items if item is not None)


def tokenizer_of(texts: Iterable[str], kind: str, size: int, **form: bool) -> Tokenizer:
    """Train a tokenizer on texts, or read it from a file: see `tokenizers.train` and `tokenizers.from_file`."""
    if kind not in KINDS:
        return _from_file(kind, Form(**form))
    return train(kind, texts, size=size, **form)


def _from_file(path: str, form: Form, side: str = "source") -> Tokenizer:
    """The tokenizer in a file. Raises UserError, also if it should read lower case or spell bytes and does not."""
    tokenizer = from_file(path, side)
    if form.lowercase and not tokenizer.form.lowercase:
        raise UserError(
            f"lowercase: expected a tokenizer that reads lower case, got {path}, which does not; omit --lowercase, or "
            "write the texts in lower case"
        )
    if form.byte_fallback and not tokenizer.knows_all:
        raise UserError(
            f"byte_fallback: expected a tokenizer that knows all bytes, got {path}, which does not; omit "
            "--byte-fallback, or train one"
        )
    return tokenizer


def _training_facts(
    what: str, paths: Sequence[Path], kind: str, size: int, form: Mapping[str, bool]
) -> dict[str, Any]:
    return {
        "what": what,
        "contents": content_hash(paths),
        "files": len(paths),
        "kind": kind,
        "size": size,
        "form": asdict(Form(**form)),
        "format": FORMAT,
        "training_bytes": TRAINING_BYTES,
    }


def _write_tokenizers(folder: Path, tokenizers: Sequence[Tokenizer]) -> None:
    for number, tokenizer in enumerate(tokenizers):
        (folder / f"{number}.json").write_text(tokenizer.to_json(), encoding="utf-8", newline="")


def _read_tokenizers(folder: Path) -> list[Tokenizer]:
    paths = sorted(folder.glob("[01].json"))
    return [Tokenizer.from_json(path.read_text(encoding="utf-8")) for path in paths]


class _Writer:
    """Writes rows to disk: token ids into one file, the end of each row into another."""

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
        """Write ids without ending a row. Returns the lengths of the parts."""
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
    """Yield texts or pairs in batches of at most 4,096 items and about 262,144 characters."""
    batch, characters = [], 0
    for item in items:
        batch.append(item)
        characters += len(item) if isinstance(item, str) else len(item[0]) + len(item[1])
        if len(batch) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
