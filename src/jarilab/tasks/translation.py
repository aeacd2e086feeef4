"""Translation, or any rewriting of lines, learned from your own files."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from typing import Annotated, Any, Literal, final

import numpy as np
import torch
from annotated_types import Ge, Le

from jarilab.core.errors import UserError, counted, import_optional
from jarilab.core.shapes import Int, Tensor
from jarilab.data.finding import Finding, refused
from jarilab.data.text import END, store, text_files
from jarilab.data.text.checks import (
    find_in_pairs,
    find_overlap,
    find_repeats,
    find_too_long,
    find_unknown,
    lines_of,
)
from jarilab.data.text.mixture import Corpus, Mixture, corpora
from jarilab.data.text.pairs import PairCounts, numbered_pairs, pair_table, pairs
from jarilab.data.text.pieces import KINDS, Form
from jarilab.data.text.scan import Scan, scan_pairs
from jarilab.data.text.spelling import STRIPPED, Reading, Spelling
from jarilab.data.text.splitting import Splitting
from jarilab.data.text.tokenizers import Tokenizer, UnknownPieces, unknown_notice
from jarilab.tasks.base import Learner, full_names, registry
from jarilab.tasks.metrics import METRICS
from jarilab.tasks.seq2seq import JudgedBy, PairsTask, Rows

_ARTIFACTS = ("vocabulary.source.json", "vocabulary.target.json")
_ROWS_AT_ONCE = 1 << 16
HELD_OUT = 1000  # pairs held out of the training files if there is no `valid`


@registry.register("translation")
@final
class Translation(PairsTask):
    """Translate lines: two files line by line, or one TSV or CSV, plain or compressed (gzip, bzip2, xz), in UTF-8.

    train: two files, source and target, or one TSV or CSV. Several corpora can have weights after their last names, as
    in a.de a.en:2 b.de b.en:0.5. A weight says how often an epoch reads each pair. columns: the two columns of a file,
    by number or title, such as 2,4 or german,english; recognised by default. valid: held-out files of the same kind;
    without them, pairs of the training files are held out, evenly spread. tokenizer: bpe (byte-level, no unknown
    tokens), unigram, words or characters; or a file: a tokenizer.json, a SentencePiece model, or the folder of a run or
    of transformers. vocab_size: tokens of the tokenizer. joint: one vocabulary for both sides. lowercase: convert the
    text to lower case. normalize: Unicode's composed form nfc for every text, or none. byte_fallback: spell unknown
    words and characters in bytes, as bpe and unigram always do. split_tokens: random splits for each token of a
    training text, such as 0.15, rounded for each line. A split undoes one merge of bpe, others each time; it
    regularizes, like BPE-dropout. longest: maximal tokens of a line; longer pairs are omitted and counted. swap:
    translate from the second file to the first. metric: metric by which runs are compared. tokenized: the files are
    tokenized, so words are what is between spaces, in the vocabulary and in BLEU. bleu_tokenizer: how sacreBLEU
    splits text that is not tokenized. By default (auto), zh for Chinese, char (single characters) for other text
    without blanks, and 13a (the rules of WMT) for the rest. Three need packages of their own: ja-mecab, ko-mecab
    and flores200.
    """

    def __init__(
        self,
        *,
        train: tuple[str, ...] = (),
        columns: tuple[str, ...] = (),
        valid: tuple[str, ...] = (),
        tokenizer: str = "bpe",
        vocab_size: Annotated[int, Ge(1), Le(1_000_000)] = 8000,
        joint: bool = True,
        lowercase: bool = False,
        normalize: Literal["nfc", "none"] = "nfc",
        byte_fallback: bool = False,
        split_tokens: Annotated[float, Ge(0), Le(1)] = 0.0,
        longest: Annotated[int, Ge(1), Le(100_000)] = 128,
        swap: bool = False,
        metric: JudgedBy = "bleu",
        tokenized: bool = False,
        bleu_tokenizer: Literal[
            "auto", "13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "flores200"
        ] = "auto",
    ):
        super().__init__(longest)
        self._notices: list[str] = []
        self._unknown: dict[str, float] = {}
        self._read_as: list[str] = []
        self._data: tuple[str, ...] = ()  # what is measured instead of held-out pairs
        self._measured = PairCounts()  # of `_data` or `valid`
        self._tokenizers: tuple[Tokenizer, Tokenizer] | None = None
        self.words = "none" if tokenized else bleu_tokenizer
        self.train, self.valid, self.columns = tuple(train), tuple(valid), tuple(columns)
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.joint, self.swap = joint, swap
        self.form = Form(lowercase, normalize == "nfc", tokenized, byte_fallback)
        self.metric = METRICS[metric]
        self.split_tokens = split_tokens

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        training = {
            "epochs": 12,
            "tokens": 4096,
            "lr": 4e-3,
            "label_smoothing": 0.1,
            "evaluations": 10,
            "evaluation_examples": 500,
        }
        options: dict[str, Any] = {
            "encoder_decoder": {
                "d_model": 256,
                "d_ff": 1024,
                "n_encoder_layers": 3,
                "n_decoder_layers": 3,
                "dropout": 0.2,
                "shared": True,
            },
            "recurrent": {"d_model": 512, "cell": "lstm", "dropout": 0.3},
        }.get(model, {})
        if model == "recurrent":
            training["lr"] = 2e-3
        options["tied"] = True
        return full_names(training=training, model=options)

    # Its data -------------------------------------------------------------------------------------------------------

    @property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        assert self._tokenizers is not None, "prepare or restore comes first"
        return self._tokenizers

    def artifacts(self) -> dict[str, bytes]:
        return {
            name: t.to_json().encode() for name, t in zip(_ARTIFACTS, self.tokenizers, strict=True)
        }

    def restore(self, folder: Path) -> None:
        source, target = (Tokenizer.read(folder / name) for name in _ARTIFACTS)
        self._tokenizers = source, target

    def _read_data(self) -> tuple[Rows, Rows]:
        _check_installed(self.words)
        weighted = _corpora("train", self.train)
        files = [corpus.files for corpus in weighted]
        if self.columns and len(self.valid) != 1 and all(len(paths) == 2 for paths in files):
            raise UserError(
                f"--columns: expected a file of columns; got {' and '.join(self.train)}, one for each side; leave it "
                "out"
            )
        tables = [pair_table(paths, self.columns) for paths in files]
        is_trained = []
        if not self.valid:
            is_trained = np.split(~self._is_held_out(), self._scan(self.train).ends[:-1])
        first, second = store.train_tokenizers(
            files,
            self.tokenizer,
            size=self.vocab_size,
            joint=self.joint,
            columns=self.columns,
            is_read=is_trained,
            **asdict(self.form),
        )
        # Tokenizers of a file have the sides of the task, trained ones the order of the files.
        is_file = self.tokenizer not in KINDS
        self._tokenizers = (first, second) if is_file else self._in_order(first, second)
        if self.split_tokens:
            one, other = (
                Splitting.of(side, self.split_tokens, self._longest) for side in self.tokenizers
            )
            self._splittings = one, other
        encoded = self._encoded()
        read_as = [table.notice for table in tables if table is not None and table.notice]
        repeats = lines_of(find_repeats(scan_pairs(files, self.columns), "pairs"))
        self._read_as = read_as
        source, target = self._in_order(encoded.source, encoded.target)
        self._unknown = self._unknown_shares("training", [source.ids], [target.ids])
        unknown = _unknown_notices(self._unknown)
        left_out = _complaints(encoded.counts, self._longest)
        self._notices = [*read_as, *left_out, *repeats, *unknown]
        training = None if self.valid else _indices(~self._is_held_out(encoded.numbers))
        if self.valid:
            _ = self.held_out  # read now, so that errors come before the training
        rows = _Chosen(source, training), _Chosen(target, training)
        if len(weighted) > 1:
            sizes = encoded.corpus_sizes(rows[0].numbers)
            lengths = torch.stack([side.lengths for side in rows], 1)
            self._mixture = Mixture([corpus.weight for corpus in weighted], sizes, lengths)
        return rows

    def _in_order(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Return source and target, given what belongs to the first and the second file."""
        return (second, first) if self.swap else (first, second)

    def _encoded(self) -> store.EncodedPairs:
        """All pairs of the training files in order, held-out ones included."""
        return store.prepare_pairs(
            [corpus.files for corpus in _corpora("train", self.train)],
            *self._in_order(*self.tokenizers),
            longest=self._longest,
            columns=self.columns,
        )

    def _is_held_out(self, chosen: np.ndarray | None = None) -> np.ndarray:
        """Return which of the chosen pairs are held out: about HELD_OUT, at most a tenth, by a hash of the source.

        chosen: numbers of pairs; all by default.
        Sources that are equal when normalised are held out together, and those of any tokenizer are the same.
        """
        every = self._scan(self.train).rows["key"][:, int(self.swap)]
        if not len(every):
            raise text_files.no_usable(_files(self.train))
        bound = int(min(0.1, HELD_OUT / len(every)) * 2**64)
        is_low = every < np.uint64(bound)
        held_out = is_low if chosen is None else is_low[chosen]
        if not held_out.any() or held_out.all():
            different = len(np.unique(every if chosen is None else every[chosen]))
            total = len(held_out)
            of = "" if different == total else f" of {counted(different, 'different sources')}"
            raise UserError(
                f"{counted(total, f'pairs{of}', 'are')} too few to hold some out; give held-out files with --valid"
            )
        return held_out

    def _read_held_out(self) -> list[tuple[str, str]]:
        if self.valid:
            return self._texts(_corpora("valid", self.valid), self._measured)
        encoded = self._encoded()
        chosen = encoded.numbers[self._is_held_out(encoded.numbers)]
        return self._texts(_corpora("train", self.train), PairCounts(), set(chosen.tolist()))

    @property
    def held_out_of(self) -> tuple[str, ...]:
        return () if self.valid else tuple(map(str, _files(self.train)))

    def hold_out(self, paths: Sequence[str]) -> None:
        measured = _corpora("data", paths[:2])
        self._measured = PairCounts()
        self._held_out, self._further = self._texts(measured, self._measured), {}
        self._data = tuple(paths[:2])
        vars(self).pop("_overlap", None)
        for path in map(Path, paths[2:]):
            self._add_references(measured[0].files, path)

    def _add_references(self, files: Sequence[Path], path: Path) -> None:
        """Read another reference for each held-out pair. Raises UserError for another number of lines."""
        both = numbered_pairs(files, self.columns)
        is_usable = [bool(one.strip() and other.strip()) for _, one, other in both]
        texts = list(text_files.lines(path))
        if len(texts) != len(is_usable):
            raise UserError(
                f"{path}: expected a reference for each of {len(is_usable):,} lines; got {len(texts):,}; an empty line "
                "stands for none"
            )
        numbers = range(len(self.held_out))
        for number, text in zip(numbers, compress(texts, is_usable), strict=True):
            reference = self.tokenizers[1].normalized(text)
            self._further.setdefault(number, []).extend([reference] if reference.strip() else [])

    def _texts(
        self, read: Sequence[Corpus], counts: PairCounts, chosen: Container[int] | None = None
    ) -> list[tuple[str, str]]:
        """Return the pairs of these corpora in the form of the tokenizers, or those at the chosen indices.

        `counts` is updated. Raises UserError.
        """
        one, other = self.tokenizers
        texts = []
        files = [corpus.files for corpus in read]
        for number, pair in enumerate(pairs(files, counts, self.columns)):
            if chosen is None or number in chosen:
                source, target = self._in_order(*pair)
                texts.append((one.normalized(source), other.normalized(target)))
        return texts

    def _unknown_shares(self, which: str, *sides: Sequence[Any]) -> dict[str, float]:
        """Return the share of unknown tokens in the rows of each side whose tokenizer has some."""
        shares = {}
        for name, tokenizer, rows in zip(("source", "target"), self.tokenizers, sides, strict=True):
            if not tokenizer.knows_all:
                missing = sum(map(tokenizer.count_unknown, rows))
                shares[f"{which} {name}"] = missing / sum(map(len, rows))
        return shares

    def _held_out_unknown(self, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
        texts = zip(*pairs, strict=True)
        sides = [t.encode_batch(list(side)) for t, side in zip(self.tokenizers, texts, strict=True)]
        return self._unknown_shares("held-out", *sides)

    def own_metrics(
        self, pairs: Sequence[tuple[str, str]], written: Sequence[str]
    ) -> dict[str, Any]:
        """Return the shares of unknown tokens, and of the targets that no answer can equal."""
        lost = sum(self.write(self._encode(1, target)) != target for _, target in pairs)
        unknown = self._unknown | self._held_out_unknown(pairs)
        return {"unwritable": lost / len(pairs), **({"unknown_tokens": unknown} if unknown else {})}

    def encode_input(self, text: str) -> list[int]:
        return self.tokenizers[0].encode_known(text)

    def answer(self, learner: Learner, line: str, source: list[int], written: Sequence[int]) -> str:
        target = self.tokenizers[1]
        if not target.has_unknown(written):
            return self.write(written)
        # The last piece, of the end token, is empty.
        pieces = [*self.tokenizers[0].pieces(line)[: len(source)], ""]
        most_attended = learner.most_attended(source, written)
        return target.decode(written, [pieces[at] for at in most_attended])

    # Text and answers --------------------------------------------------------------------------------------------

    @property
    def spelling(self) -> Spelling:
        source, target = self.tokenizers
        return Spelling(_stripped(source.reading()), target.writing())

    @property
    def target_spelling(self) -> Spelling:
        target = self.tokenizers[1]
        return Spelling(_stripped(target.reading()), target.writing())

    def notices(self) -> list[str]:
        return self._notices

    def held_out_notices(self) -> list[str]:
        unknown = _unknown_notices(self._held_out_unknown(self.held_out))
        files = " and ".join(self._data or self.valid)
        left_out = [f"{files}: {line}" for line in _complaints(self._measured, self._longest)]
        return [*left_out, *unknown, *lines_of(self._overlap)]

    @cached_property
    def _overlap(self) -> list[Finding]:
        """What held-out pairs share with the training files, if these still exist."""
        missing = [path for path in _files(self.train) if not path.exists()]
        if missing:
            text = f"whether data are also in the training files is not known: {missing[0]} is gone"
            return [Finding("note", "overlap", text)] if self._data else []
        train = self._scan(self.train)
        side = int(self.swap)
        other = self._data or self.valid  # without one, equal sources are held out together
        return list(find_overlap(self._scan(other), train, "sources", side=side)) if other else []

    def _scan(self, names: Sequence[str]) -> Scan:
        return scan_pairs([corpus.files for corpus in _corpora("train", names)], self.columns)

    def check(self) -> list[Finding]:
        names = self._in_order("source", "target")
        scan = self._scan(self.train)
        if not len(scan):
            raise text_files.no_usable(_files(self.train))
        findings = [
            Finding(
                "note", "pairs", f"{counted(len(scan), 'pairs')} in {' and '.join(self.train)}"
            ),
            *find_repeats(scan, "pairs"),
            *find_in_pairs(scan, names),
        ]
        try:
            self.prepare()
            findings += self._check_tokens()
        except UserError as error:
            findings.append(refused(error))
        return findings

    def _check_tokens(self) -> Iterator[Finding]:
        """Yield what is to know once there is a tokenizer."""
        yield from (Finding("note", "columns", line) for line in self._read_as)
        encoded = self._encoded()
        names = self._in_order("source", "target")
        for name, rows in zip(names, (encoded.source, encoded.target), strict=True):
            # A pair is left out once, for either side.
            omitted = encoded.counts.too_long if name == "target" else 0
            yield find_too_long(rows.lengths.numpy(), omitted, self._longest, name)
        for side, name in enumerate(("source", "target")):
            texts = ([pair[side]] for pair in self.held_out)
            yield find_unknown(UnknownPieces.of(texts, self.tokenizers[side]), f"held-out {name}")
        yield from self._overlap

    def sample_inputs(self) -> list[str]:
        """Return held-out lines of medium length."""
        refused = self.tokenizers[0].refused
        fitting = (source for source, _ in self.held_out if 20 <= len(source) <= 70)
        return list(islice((source for source in fitting if not refused(source)), 3))

    def expected(self, line: str) -> str | None:
        return next((target for source, target in self.held_out if source == line), None)

    def describe(self) -> str:
        files = " and ".join(Path(name).name for name in self.train)
        swapped, joint = " swapped" if self.swap else "", "joint " if self.joint else ""
        kind = f"{self.tokenizers[1].kind}, {joint}vocabulary of {len(self.tokenizers[1]):,}"
        return f"{files}{swapped}: {counted(self.training_size, 'pairs of lines')}; {kind}"

    def purpose(self) -> tuple[str, str]:
        return (
            "Translates a text, as in the pairs that it learned from.",
            "학습한 문장 쌍처럼 글을 번역합니다.",
        )

    def fingerprint(self) -> str:
        return f"sha256 {text_files.content_hash(_files(self.train))}"


def _stripped(reading: Reading | None) -> Reading | None:
    return reading and replace(reading, rules=(STRIPPED, *reading.rules), end=END)


def _check_installed(words: str | None) -> None:
    """Raises UserError if sacreBLEU lacks the package of a tokenizer."""
    if words not in ("ja-mecab", "ko-mecab", "flores200"):
        return
    bleu_of: Any = import_optional("sacrebleu.metrics.bleu", "text").BLEU
    try:
        bleu_of(tokenize=words)
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"bleu_tokenizer: expected the package of {words}, got none ({reason}); install it as sacreBLEU says, or "
            "use --bleu-tokenizer char"
        ) from None


@final
class _Chosen:
    """Some rows of a store; all if `chosen` is None."""

    def __init__(self, rows: store.Encoded, chosen: Int[Tensor, " M"] | None):
        self._rows, self._chosen = rows, chosen

    @property
    def lengths(self) -> Int[Tensor, " N"]:
        """The number of tokens of each row, computed at each call."""
        return self._rows.lengths if self._chosen is None else self._rows.lengths_of(self._chosen)

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of these rows in the store."""
        return np.arange(len(self)) if self._chosen is None else self._chosen.numpy()

    def __len__(self) -> int:
        return len(self._rows if self._chosen is None else self._chosen)

    def padded(self, indices: Int[Tensor, " B"]) -> Int[Tensor, "B L"]:
        return self._rows.padded(indices if self._chosen is None else self._chosen[indices])


def _indices(is_chosen: np.ndarray) -> Int[Tensor, " M"]:
    """Return where an array is true, in 4 bytes each, since there may be millions."""
    parts = np.array_split(is_chosen, 1 + len(is_chosen) // _ROWS_AT_ONCE)
    starts = np.cumsum([0, *map(len, parts)])
    found = [
        (start + np.flatnonzero(part)).astype(np.int32)
        for start, part in zip(starts, parts, strict=False)
    ]
    return torch.from_numpy(np.concatenate(found))


def _unknown_notices(shares: Mapping[str, float]) -> list[str]:
    return list(
        chain.from_iterable(unknown_notice(f"{which} lines", shares[which]) for which in shares)
    )


def _complaints(counts: PairCounts, longest: int) -> list[str]:
    notices = []
    if counts.blank:
        notices.append(f"{counted(counts.blank, 'pairs')} with a blank line on a side left out")
    if counts.too_long:
        too_long = counted(counts.too_long, f"pairs of more than {longest} tokens", "were")
        notices.append(f"{too_long} left out; --longest keeps more")
    return notices


def _corpora(option: str, names: Sequence[str]) -> list[Corpus]:
    """The corpora of an option. Raises UserError if one is not one or two files."""
    found = corpora(option, names)
    if not found or any(len(corpus.files) > 2 for corpus in found):
        several = "; end several corpora with weights: a.de a.en:1 b.de b.en:1"
        raise UserError(
            f"--{option} expects two files, source and target, or one of tab-separated values; got {len(names)}: "
            f"write --{option} text.de text.en{several if len(names) > 2 else ''}"
        )
    return found


def _files(train: Sequence[str]) -> list[Path]:
    return list(chain.from_iterable(corpus.files for corpus in _corpora("train", train)))
