"""Language modelling on your own text: predict the next token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, final
from unicodedata import normalize

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch.nn import functional

from jarilab.core.errors import UserError, counted
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.data.finding import Finding, refused
from jarilab.data.text import END, FIRST, PADDING, store, text_files
from jarilab.data.text.checks import (
    find_equal_documents,
    find_lost,
    find_overlap,
    find_repeats,
    find_scripts,
    find_unknown,
    lines_of,
    quantiles,
)
from jarilab.data.text.held_out import Cut, find_cut, parts
from jarilab.data.text.mixture import Corpus, Mixture, corpora
from jarilab.data.text.pieces import Form
from jarilab.data.text.scan import MIN_LETTERS, Scan, scan_documents
from jarilab.data.text.spelling import Spelling
from jarilab.data.text.tokenizers import UNKNOWN, Tokenizer, UnknownPieces, unknown_notice
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.base import Batch, Learner, evenly, full_names, registry
from jarilab.tasks.metrics import METRICS
from jarilab.tasks.policies.base import Numbers
from jarilab.tasks.text_stream import Stream
from jarilab.tasks.token_task import TokenTask

AT_ONCE = 64  # windows in a batch
SHOWN = 64  # largest number of tokens of a sample input
LINES = f"lines of {MIN_LETTERS} letters or more"
DIGITS = tuple("0123456789")


@registry.register("text")
@final
class Text(TokenTask):
    """Predict the next token of a text: files, or folders of *.txt files (plain or compressed), one document each.

    Training reads windows at any offset. Documents are packed one after the other, and documents in a window do not see
    each other. train: a file or a folder; several with weights, as in a.txt:2 b.txt:0.5, which say how often an epoch
    reads each. valid: held-out text. Without it, the last part of each text is held out, from the start of a document
    or a line on. It is the same for every tokenizer. context_length: tokens in a window. tokenizer: characters, bpe,
    unigram or words; or a file: a tokenizer.json, a SentencePiece model, or the folder of a run or of transformers.
    vocab_size: tokens of the tokenizer at most; rarer words and characters are unknown. lowercase: convert the text to
    lower case. normalize: Unicode's composed form nfc for every text, or none. byte_fallback: spell unknown words and
    characters in bytes, as bpe and unigram always do. held_out: share of each text to hold out if `valid` is not given.
    metric: metric by which runs are compared.
    """

    predictor = "continuation"
    usual_model = "decoder"
    model_arguments = ("vocab_size",)
    asks_policy = True
    length_unit = "tokens of a window"
    has_stride = True
    _stride: int | None = None
    _at_once = AT_ONCE

    def __init__(
        self,
        *,
        train: tuple[str, ...] = (),
        valid: str = "",
        context_length: Annotated[int, Ge(1), Le(1_000_000)] = 256,
        tokenizer: str = "characters",
        vocab_size: Annotated[int, Ge(1), Le(1_000_000)] = 8000,
        lowercase: bool = False,
        normalize: Literal["nfc", "none"] = "nfc",
        byte_fallback: bool = False,
        held_out: Annotated[float, Gt(0), Lt(1)] = 0.1,
        metric: Literal["loss", "perplexity", "bits_per_character"] = "loss",
    ):
        self.train, self.valid, self.context_length = tuple(train), valid, context_length
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.form = Form(lowercase, normalize == "nfc", byte_fallback=byte_fallback)
        self.share = held_out
        self.metric = METRICS[metric]
        self._tokenizer: Tokenizer | None = None
        self._data: tuple[str, ...] = (valid,) if valid else ()
        self._training: Stream | None = None
        self._mixture: Mixture | None = None
        self._held_out: Stream | None = None

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        training = {
            "epochs": 10,
            "batch_size": 64,
            "lr": 4e-3,
            "evaluations": 10,
            "evaluation_examples": 200,
        }
        options = {"d_model": 256, "n_heads": 8, "n_layers": 6, "dropout": 0.1}
        return full_names(training=training, model=options)

    # Preparation --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        weighted = _corpora(self.train)
        paths = _paths(self.train)
        self._tokenizer = store.train_tokenizer(
            paths, self.tokenizer, self.vocab_size, self._cuts, **asdict(self.form)
        )
        if self.valid:
            self._training, self._held_out = self._stream(paths), self._stream([Path(self.valid)])
        else:
            self._training, self._held_out = self._split()
        if len(weighted) > 1:
            windows = [max(1, size // self.context_length) for size in self._training.sizes]
            self._mixture = Mixture([corpus.weight for corpus in weighted], windows)

    @cached_property
    def _cuts(self) -> list[Cut]:
        """Where the held-out part of each text begins; none with `valid`."""
        return [] if self.valid else [find_cut(path, self.share) for path in _paths(self.train)]

    def _split(self) -> tuple[Stream, Stream]:
        """Split each text into training and held-out text."""
        encoded, ends = store.prepare_documents(_paths(self.train), self._known, self._cuts)
        return Stream.of(encoded, ends, 0, 2), Stream.of(encoded, ends, 1, 2)

    def _stream(self, paths: Sequence[Path]) -> Stream:
        return Stream.of(*store.prepare_documents(paths, self._known))

    def artifacts(self) -> dict[str, bytes]:
        return {"vocabulary.json": self._known.to_json().encode()}

    def restore(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.read(folder / "vocabulary.json")

    def hold_out(self, paths: Sequence[str]) -> None:
        if len(paths) != 1:
            raise UserError(
                f"--data expects one file or folder of text, got {len(paths)}; give one"
            )
        self._held_out, self._data = self._stream([Path(paths[0])]), tuple(paths)
        for name in ("_held_out_unknown", "_held_out_characters", "_lost", "_overlap"):
            vars(self).pop(name, None)

    @property
    def trained_length(self) -> int:
        return self.context_length

    def _set_length(self, length: int, stride: int | None) -> None:
        stream = self._measured()
        if len(stream) < length:
            raise UserError(
                f"length: expected a held-out text of {length:,} tokens or more, for one window, got {len(stream):,} "
                "tokens; give a smaller length, or a longer text with --data"
            )
        # As many tokens in a batch as at the trained length: its scores are what memory must hold.
        self._at_once = max(1, AT_ONCE * self.context_length // length)
        self.context_length, self._stride = length, stride

    @property
    def held_out_of(self) -> tuple[str, ...]:
        return () if self.valid else tuple(map(str, _paths(self.train)))

    @property
    def _known(self) -> Tokenizer:
        assert self._tokenizer is not None, "prepare or restore comes first"
        return self._tokenizer

    @property
    def _windows(self) -> Stream:
        assert self._training is not None, "prepare comes first"
        return self._training

    # For the model and the training loop ---------------------------------------------------------------------------

    @property
    def model_options(self) -> dict[str, Any]:
        return {"vocab_size": len(self._known)}

    @property
    def longest(self) -> dict[str, int]:
        return {"target": self.context_length}

    @property
    def training_size(self) -> int:
        """The number of windows, such that an epoch reads each token about once, or as often as its weight says."""
        if self._mixture is not None:
            return len(self._mixture)
        return max(1, len(self._windows) // self.context_length)

    @property
    def tokens_per_example(self) -> int:
        return self.context_length

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        # A random offset, so that no token is the first of its window in every epoch.
        offset_B = torch.randint(self.context_length, indices.shape, generator=generator)
        sizes = torch.tensor(self._windows.sizes if self._mixture else [len(self._windows)])
        if self._mixture is not None:
            indices = self._mixture.rows(indices, generator)
        # The number of each text, and of the window in it.
        first = (sizes // self.context_length).clamp(min=1).cumsum(0)
        text_B = torch.bucketize(indices, first, right=True).clamp(max=len(sizes) - 1)
        within_B = indices - functional.pad(first, (1, 0))[text_B]
        last_B = (sizes[text_B] - self.context_length).clamp(min=0)
        start_B = torch.minimum(within_B * self.context_length + offset_B, last_B)
        start_B += functional.pad(sizes.cumsum(0), (1, 0))[text_B]
        return self._batch(self._windows, start_B, self.policy.seed(generator))

    def _batch(self, stream: Stream, starts: Int[Tensor, " B"], seed: int | None = None) -> Batch:
        input_BL, labels_BL, documents_BL = stream.windows(starts, self.context_length)
        return Batch(
            (self.tokens(input_BL, "sequence", documents=documents_BL, seed=seed),), labels_BL
        )

    def numbers(self, frame: str) -> Numbers | None:
        """Return how numbers are written if each character is a token; other tokens may hold several digits."""
        return Numbers(self._digits) if self._known.kind == "characters" else None

    @cached_property
    def _digits(self) -> tuple[int, ...]:
        names = self._known.names(list(range(len(self._known))))
        return tuple(token for token, name in enumerate(names) if name in DIGITS)

    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        """Return loss in nats per token, perplexity, and bits per character.

        Windows do not overlap. With a stride they do, and each token counts in the first window that reads it.
        """
        stream, loss, count, ids = self._measured(), 0.0, 0, []
        losses: list[float] = []
        step = self._stride or self.context_length
        # A window is needed until the one before it reaches the end.
        starts = torch.arange(0, max(1, len(stream) - self.context_length + step), step)
        starts = starts[evenly(len(starts), examples)]
        for some in starts.split(self._at_once):
            batch = self._batch(stream, some)
            batch.labels[some > 0, : self.context_length - step] = PADDING
            tokens = int((batch.labels != PADDING).sum())
            scores = learner.scores(batch)
            loss += tokens * float(self.loss(scores, batch))
            count += tokens
            if examples is None and self.metric.name == "loss":
                losses += _window_losses(scores, batch.labels).tolist()
            ids += batch.labels[batch.labels > END].tolist()
        mean = loss / count
        # In units of a mean window, so that their mean is the loss of a token though the last window is shorter.
        outcomes = [loss * len(starts) / count for loss in losses]
        return {
            **({"outcomes": outcomes} if outcomes else {}),
            "loss": mean,
            "perplexity": math.exp(min(mean, 700.0)),
            "bits_per_character": self._bits_per_character(
                loss / math.log(2), ids, is_whole=examples is None
            ),
            "examples": float(len(starts)),
            **({} if self._known.knows_all else {"unknown_tokens": self._unknown_shares}),
        }

    @property
    def _unknown_shares(self) -> dict[str, float]:
        """The shares of unknown tokens; that of the training text only where it was read."""
        training = {} if self._training is None else {"training": self._training_unknown.share}
        return training | {"held-out": self._held_out_unknown.share}

    def _bits_per_character(self, bits: float, ids: list[int], *, is_whole: bool) -> float:
        """The bits of a text per character. Each byte of an unknown token costs 8 bits more.

        The characters of the whole held-out text are those of its file, so they are the same for every tokenizer.
        """
        missing, unknown = 0, None
        if self._known.has_unknown(ids):
            missing, unknown = ids.count(UNKNOWN), self._held_out_unknown
            bits += 8 * missing * unknown.bytes
        if is_whole:
            return bits / max(1, self._held_out_characters)
        # Decoded together, since the bytes of one character may lie in two batches.
        characters = len(self._known.decode(ids, "x" * len(ids))) - missing * len("x")
        return bits / max(1.0, characters + (missing * unknown.characters if unknown else 0))

    @cached_property
    def _held_out_characters(self) -> int:
        """The characters of the text that is measured, in Unicode's composed form."""
        pieces = chain.from_iterable(self._texts(held_out=True))
        return sum(len(normalize("NFC", piece)) for piece in pieces)

    @cached_property
    def _held_out_unknown(self) -> UnknownPieces:
        """The unknown pieces of the text that is measured."""
        return self._unknown_in(self._measured(), held_out=True)

    @cached_property
    def _training_unknown(self) -> UnknownPieces:
        return self._unknown_in(self._windows, held_out=False)

    def _unknown_in(self, stream: Stream, *, held_out: bool) -> UnknownPieces:
        # The ids are read first, since they are mapped into memory and few vocabularies lack anything.
        is_lacking = self._known.has_unknown(stream.ids)
        return UnknownPieces.of(self._texts(held_out) if is_lacking else (), self._known)

    def _texts(self, held_out: bool) -> Iterator[Iterator[str]]:
        """The documents of the training text or of the held-out text, each in pieces."""
        if held_out and self._data:
            return text_files.documents(Path(self._data[0]))
        paths = _paths(self.train)
        if not self._cuts:
            return chain.from_iterable(map(text_files.documents, paths))
        both = (parts(path, cut) for path, cut in zip(paths, self._cuts, strict=True))
        return chain.from_iterable(pair[held_out] for pair in both)

    @cached_property
    def _equal(self) -> list[str]:
        scan = scan_documents(_paths(self.train))
        return lines_of([*find_equal_documents(scan), *find_repeats(scan, LINES)])

    def notices(self) -> list[str]:
        unknown = unknown_notice(" and ".join(self.train), self._training_unknown.share)
        return [*unknown, *self._equal, *self._too_short]

    @property
    def _too_short(self) -> list[str]:
        """What to know of a training text that does not fill a window."""
        count = len(self._windows)
        notice = (
            f"the training text has {counted(count, 'tokens')}, fewer than a window of {self.context_length:,}; later "
            "positions are not trained: give more text, or a smaller --context-length"
        )
        return [] if count >= self.context_length else [notice]

    def held_out_notices(self) -> list[str]:
        unknown = unknown_notice(
            " and ".join(self._data or self.train), self._held_out_unknown.share
        )
        return [*unknown, *lines_of(self._lost), *lines_of(self._overlap)]

    @cached_property
    def _lost(self) -> list[Finding]:
        """Whether a tokenizer from a file gives the beginning of the held-out text back."""
        pieces = chain.from_iterable(self._texts(held_out=True))
        text = next(pieces, "") if self._known.kind == "file" else ""
        return find_lost(text, self._known, self.tokenizer)

    @cached_property
    def _overlap(self) -> list[Finding]:
        """What held-out lines share with the training text, if it still exists."""
        missing = [path for path in _paths(self.train) if not path.exists()]
        if missing:
            text = f"whether data are also in the training text is not known: {missing[0]} is gone"
            return [Finding("note", "overlap", text)] if self._data else []
        train = scan_documents(_paths(self.train))
        if self._data:
            held_out = scan_documents([Path(self._data[0])])
            return list(find_overlap(held_out, train, LINES))
        is_held_out = self._held_out_lines(train)
        return list(find_overlap(train, train, LINES, is_held_out, ~is_held_out))

    def _held_out_lines(self, scan: Scan) -> np.ndarray:
        """Whether each line of a scan of the training files is held out."""
        is_held_out, ends, file = np.zeros(len(scan), bool), [0, *scan.ends], 0
        for path, cut in zip(_paths(self.train), self._cuts, strict=True):
            document = file + cut.document
            file += len(text_files.document_files(path))
            lines = scan.rows["line"][ends[document] : ends[document + 1]]
            start = ends[document] + int(np.searchsorted(lines, cut.line))
            is_held_out[start : ends[file]] = True
        return is_held_out

    def check(self) -> list[Finding]:
        scan = scan_documents(_paths(self.train))
        findings = [*find_equal_documents(scan), *find_repeats(scan, LINES)]
        findings += find_scripts(scan, scan.rows, LINES)
        if len(scan):
            text = f"{counted(len(scan), LINES)}: {quantiles(scan.rows['length'])} characters"
            findings.append(Finding("note", "characters", text))
        try:
            self.prepare()
        except UserError as error:
            return [*findings, refused(error)]
        known, held_out = self._training_unknown, self._held_out_unknown
        return [
            Finding("note", "data", self.describe()),
            *findings,
            find_unknown(known, "training text"),
            find_unknown(held_out, "held-out text"),
            *self._lost,
            *self._overlap,
        ]

    def _measured(self) -> Stream:
        """The held-out text, read on first use."""
        if self._held_out is None:
            valid = [Path(self.valid)]
            self._held_out = self._stream(valid) if self.valid else self._split()[1]
        return self._held_out

    # Text and answers --------------------------------------------------------------------------------------------

    def read(self, line: str) -> list[int]:
        return self._known.encode_known(line)

    def sources(self, lines: Sequence[list[int]]) -> Tokens:
        """Return texts of equal length as a batch; an empty one begins a document."""
        return self.tokens(torch.tensor([line or [FIRST] for line in lines]), "sequence")

    def write(self, numbers: Sequence[int]) -> str:
        return self._known.decode(list(numbers))

    @property
    def spelling(self) -> Spelling:
        return Spelling(self._known.reading())

    @property
    def target_spelling(self) -> Spelling:
        return Spelling(self._known.reading(), self._known.writing())

    def held_out_pairs(self, examples: int | None = None) -> list[tuple[str, str]]:
        stream = self._measured()
        starts = torch.arange(0, len(stream), self.context_length)
        _, labels_BL, _ = stream.windows(starts[evenly(len(starts), examples)], self.context_length)
        texts = [self.write(row[row > END].tolist()) for row in labels_BL]
        return [(text, text) for text in texts]

    def show_source(self, numbers: Sequence[int]) -> list[str]:
        return self._known.names(list(numbers))

    show_target = show_source

    def sample_inputs(self) -> list[str]:
        """Return the beginning of the held-out text, if it is available."""
        if self._held_out is None:
            return []
        _, labels_1L, _ = self._held_out.windows(torch.tensor([0]), min(self.context_length, SHOWN))
        text = self.write(labels_1L[0].tolist())
        return [text] if text.strip() else []

    def describe(self) -> str:
        named = " and ".join(Path(name).name for name in self.train)
        trained = counted(len(self._windows), "tokens of training text")
        documents = counted(self._windows.documents, "documents")
        vocabulary = f"{self._known.kind}, vocabulary of {len(self._known):,}"
        return f"{named}: {trained} in {documents}; {vocabulary}{self._held_out_from}"

    @property
    def _held_out_from(self) -> str:
        """Where held-out text begins, as file and line."""
        starts = [
            text_files.document_files(path)[cut.document].name
            + (f":{cut.line}" if cut.starts_line else f", character {cut.characters + 1:,},")
            for path, cut in zip(_paths(self.train), self._cuts, strict=False)
        ]
        return f"; held out from {' and '.join(starts)} on" if starts else ""

    def purpose(self) -> tuple[str, str]:
        return (
            "Continues a text: says after each token which comes next.",
            "글을 이어 씁니다. 토큰마다 다음에 올 토큰을 말합니다.",
        )

    def fingerprint(self) -> str:
        files = chain.from_iterable(map(text_files.document_files, _paths(self.train)))
        starts = [f", held out from {cut}" for cut in self._cuts]
        return f"sha256 {text_files.content_hash(list(files))}{''.join(starts)}"


def _corpora(train: Sequence[str]) -> list[Corpus]:
    """The texts of `train` with their weights."""
    if not any(train):
        raise UserError("--train names no text; write --train FILE, or a folder of *.txt files")
    return corpora("train", train, single=True)


def _paths(train: Sequence[str]) -> list[Path]:
    return [corpus.files[0] for corpus in _corpora(train)]


def _window_losses(
    scores: Float[Tensor, "B L V"], labels: Int[Tensor, "B L"]
) -> Float[Tensor, " B"]:
    """Return the sum of the cross-entropies of each window, without padding."""
    log_p_BLV = scores.float().log_softmax(-1)
    log_p_BL = log_p_BLV.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -log_p_BL.masked_fill(labels == PADDING, 0.0).sum(1)
