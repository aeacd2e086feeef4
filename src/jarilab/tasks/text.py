"""Language modelling on your own text: predict the next token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, final

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.data.text import END, FIRST, PADDING, store, text_files
from jarilab.data.text.pieces import Form
from jarilab.data.text.spelling import Spelling
from jarilab.data.text.tokenizers import UNKNOWN, Tokenizer, UnknownPieces, unknown_notice
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.base import Batch, Learner, evenly, registry
from jarilab.tasks.metrics import METRICS
from jarilab.tasks.policies.base import Numbers
from jarilab.tasks.token_task import TokenTask

AT_ONCE = 64  # windows in a batch
SHOWN = 64  # largest number of tokens of a sample input
DIGITS = tuple("0123456789")


@registry.register("text")
@final
class Text(TokenTask):
    """Predict the next token of a text: one file, or a folder of *.txt and *.txt.gz files, one document each.

    Training reads windows at any offset. Documents are packed one after the other, and documents in a window do not see
    each other. train: a file or a folder. valid: held-out text; without it, the last `held_out` of the text.
    context_length: tokens in a window. tokenizer: characters, bpe, unigram or words; or a file: a tokenizer.json,
    a SentencePiece model, or the folder of a run or of transformers. vocab_size: tokens of the tokenizer, if it has a
    choice. lowercase: convert the text to lower case. normalize: Unicode's composed form nfc for every text, or none.
    byte_fallback: spell what words and characters lack in bytes, as bpe and unigram do. held_out: share of the text
    held out without `valid`. metric: what runs are judged by.
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
        train: str = "",
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
        self.train, self.valid, self.context_length = train, valid, context_length
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.form = Form(lowercase, normalize == "nfc", byte_fallback=byte_fallback)
        self.share = held_out
        self.metric = METRICS[metric]
        self._tokenizer: Tokenizer | None = None
        self._measured_path = valid or train
        self._training: Stream | None = None
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
        of_model = {f"model.{name}": value for name, value in options.items()}
        return {f"training.{name}": value for name, value in training.items()} | of_model

    # Preparation --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        path = _path("train", self.train)
        self._tokenizer = store.train_tokenizer(
            path, self.tokenizer, self.vocab_size, **asdict(self.form)
        )
        if self.valid:
            self._training, self._held_out = self._stream(self.train), self._stream(self.valid)
        else:
            self._training, self._held_out = self._split()

    def _split(self) -> tuple[Stream, Stream]:
        """Split one text into training and held-out text."""
        text = self._stream(self.train)
        cut = len(text) - max(2, round(self.share * len(text)))
        if cut < 2:
            raise UserError(
                f"{self.train}: {len(text)} tokens are too few to hold {self.share:.0%} out; give more, or a text "
                "to measure on with --valid"
            )
        return text.part(0, cut), text.part(cut, len(text))

    def _stream(self, path: str) -> Stream:
        return Stream(store.prepare_documents(Path(path), self._known))

    def artifacts(self) -> dict[str, bytes]:
        return {"vocabulary.json": self._known.to_json().encode()}

    def restore(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.read(folder / "vocabulary.json")

    def hold_out(self, paths: Sequence[str]) -> None:
        if len(paths) != 1:
            raise UserError(
                f"--data expects one file or folder of text, got {len(paths)}; give one"
            )
        self._held_out, self._measured_path = self._stream(paths[0]), paths[0]
        vars(self).pop("_held_out_unknown", None)

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
        return () if self.valid else (self.train,)

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
        """The number of windows, such that an epoch reads each token about once."""
        return max(1, len(self._windows) // self.context_length)

    @property
    def tokens_per_example(self) -> int:
        return self.context_length

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        # A random offset, so that no token is the first of its window in every epoch.
        offset_B = torch.randint(self.context_length, indices.shape, generator=generator)
        last = max(0, len(self._windows) - self.context_length)
        start_B = (indices * self.context_length + offset_B).clamp(max=last)
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
            "bits_per_character": self._bits_per_character(loss / math.log(2), ids),
            "examples": float(len(starts)),
            **({} if self._known.knows_all else {"unknown_tokens": self._unknown_shares}),
        }

    @property
    def _unknown_shares(self) -> dict[str, float]:
        """The shares of unknown tokens; that of the training text only where it was read."""
        training = {} if self._training is None else {"training": self._training_unknown.share}
        return training | {"held-out": self._held_out_unknown.share}

    def _bits_per_character(self, bits: float, ids: list[int]) -> float:
        """The bits of a text per character. Each byte of an unknown token costs 8 bits more."""
        # Decoded together, since the bytes of one character may lie in two batches.
        characters = float(len(self._known.decode(ids, "x" * len(ids))))
        if self._known.has_unknown(ids):
            missing, unknown = ids.count(UNKNOWN), self._held_out_unknown
            bits += 8 * missing * unknown.bytes
            characters += missing * (unknown.characters - len("x"))
        return bits / max(1.0, characters)

    @cached_property
    def _held_out_unknown(self) -> UnknownPieces:
        """The unknown pieces of the file that is measured."""
        return self._unknown_in(self._measured(), self._measured_path)

    def _unknown_in(self, stream: Stream, path: str) -> UnknownPieces:
        # The ids are read first, since they are mapped into memory and few vocabularies lack anything.
        texts = text_files.documents(Path(path))
        return UnknownPieces.of(texts if self._known.has_unknown(stream.ids) else (), self._known)

    @cached_property
    def _training_unknown(self) -> UnknownPieces:
        return self._unknown_in(self._windows, self.train)

    def notices(self) -> list[str]:
        return unknown_notice(self.train, self._training_unknown.share)

    def held_out_notices(self) -> list[str]:
        return unknown_notice(self._measured_path, self._held_out_unknown.share)

    def _measured(self) -> Stream:
        """The held-out text, read on first use."""
        if self._held_out is None:
            self._held_out = self._stream(self.valid) if self.valid else self._split()[1]
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
        return (
            f"{Path(self.train).name}: {len(self._windows):,} tokens of training text in {self._windows.documents:,} "
            f"documents; {self._known.kind}, vocabulary of {len(self._known):,}"
        )

    def purpose(self) -> tuple[str, str]:
        return (
            "Continues a text: says after each token which comes next.",
            "글을 이어 씁니다. 토큰마다 다음에 올 토큰을 말합니다.",
        )

    def fingerprint(self) -> str:
        return f"sha256 {text_files.content_hash(text_files.document_files(_path('train', self.train)))}"


def _path(option: str, given: str) -> Path:
    if not given:
        raise UserError(
            f"--{option} names no text; write --{option} FILE, or a folder of *.txt files"
        )
    return Path(given)


@final
class Stream:
    """Concatenated documents: the first token before each, and an end after the last."""

    def __init__(self, encoded: store.Encoded, start: int = 0, stop: int | None = None):
        self._encoded = encoded
        self._offsets = encoded.offsets + np.arange(len(encoded.offsets))
        self._start, self._stop = start, int(self._offsets[-1]) if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def ids(self) -> np.ndarray:
        """The tokens of all documents that the stream is a part of."""
        return self._encoded.ids

    @property
    def documents(self) -> int:
        ends = np.searchsorted(self._offsets, (self._start, self._stop - 1), side="right")
        return int(ends[1] - ends[0]) + 1

    def part(self, start: int, stop: int) -> Stream:
        """Return the tokens from `start` to `stop` (excluded)."""
        return Stream(self._encoded, self._start + start, self._start + stop)

    def windows(
        self, starts: Int[Tensor, " B"], context: int
    ) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"], Int[Tensor, "B L"] | None]:
        """Return windows of `context` tokens at these offsets, padded at the end of the stream.

        Returns their tokens, the next tokens, and the document number of each; None if each window lies in one
        document.
        """
        place_BL = self._start + starts.numpy()[:, None] + np.arange(context)
        real_BL = place_BL < self._stop
        place_BL = np.minimum(place_BL, self._stop - 1)
        document_BL = np.searchsorted(self._offsets, place_BL, side="right") - 1
        inside_BL = place_BL - self._offsets[document_BL]
        ids, offsets = self._encoded.ids, self._encoded.offsets
        at_BL = offsets[document_BL] + inside_BL
        before_BL = ids[np.maximum(at_BL - 1, 0)]
        input_BL = _padded(np.where(inside_BL == 0, FIRST, before_BL), real_BL)
        here_BL = ids[np.minimum(at_BL, len(ids) - 1)]
        ends_BL = at_BL == offsets[document_BL + 1]
        labels_BL = _padded(np.where(ends_BL, END, here_BL), real_BL)
        if bool((document_BL[:, :1] == document_BL).all()):
            return input_BL, labels_BL, None
        return input_BL, labels_BL, torch.from_numpy(document_BL)


def _padded(ids_BL: np.ndarray, real_BL: np.ndarray) -> Int[Tensor, "B L"]:
    return torch.from_numpy(np.where(real_BL, ids_BL, PADDING).astype(np.int64))


def _window_losses(
    scores: Float[Tensor, "B L V"], labels: Int[Tensor, "B L"]
) -> Float[Tensor, " B"]:
    """Return the sum of the cross-entropies of each window, without padding."""
    log_p_BLV = scores.float().log_softmax(-1)
    log_p_BL = log_p_BLV.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -log_p_BL.masked_fill(labels == PADDING, 0.0).sum(1)
