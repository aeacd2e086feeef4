"""Common parts of tasks with a source and a target text: batches, decoding to text, and metrics."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Int
from jarilab.data.text import END, FIRST, PADDING
from jarilab.data.text.mixture import Mixture
from jarilab.data.text.splitting import Splitting
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.base import Batch, Learner, evenly, parts_of, right_padded
from jarilab.tasks.metrics import bleu_tokenizer
from jarilab.tasks.token_task import TokenTask

AT_ONCE = 256  # held-out examples in a batch, sorted by length

JudgedBy = Literal["bleu", "chrf", "chrfpp", "exact_match", "perplexity"]


@runtime_checkable
class Rows(Protocol):
    """Token ids of many texts."""

    @property
    def lengths(self) -> Int[Tensor, " N"]:
        """The lengths in tokens."""
        ...

    def padded(self, indices: Int[Tensor, " B"]) -> Int[Tensor, "B L"]:
        """Return the rows at these indices, padded at the end."""
        ...

    def __len__(self) -> int: ...


@final
class Matrix:
    """Rows in memory as one padded matrix."""

    def __init__(self, ids: np.ndarray, lengths: np.ndarray):
        self._ids = torch.from_numpy(ids)
        self.lengths = torch.from_numpy(lengths.astype(np.int64))

    @classmethod
    def of(cls, ids: np.ndarray) -> Matrix:
        """Return rows that are padded at the end."""
        return cls(ids, (ids != PADDING).sum(1))

    def __len__(self) -> int:
        return len(self._ids)

    def padded(self, indices: Int[Tensor, " B"]) -> Int[Tensor, "B L"]:
        longest = max(self.lengths[indices].tolist(), default=0)
        return self._ids[indices, :longest].long()


@runtime_checkable
class Vocabulary(Protocol):
    """Turns text into token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's tokens. Raises UserError for unknown ones."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first end or padding."""
        ...

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return each token as displayed."""
        ...

    def __len__(self) -> int: ...


class PairsTask(TokenTask):
    """A task with a source and a target text. A subclass provides the pairs, and may define groups of held-out
    examples.

    Each source ends with an end token, so it is never empty, and its length can be read from its last token.
    """

    model_arguments = ("source_vocab_size", "target_vocab_size")
    joined_arguments = ("vocab_size",)
    asks_policy = True
    length_unit = "tokens of the source at most, and more than half as many"
    words: str | None = "none"
    """sacreBLEU's tokenizer, `none` for words between spaces, `auto` by the references, None for no BLEU."""

    def __init__(self, longest: int):
        self._longest = longest
        self._train: tuple[Rows, Rows] | None = None
        self._mixture: Mixture | None = None
        self._splittings: tuple[Splitting, Splitting] | None = None
        self._held_out: list[tuple[str, str]] | None = None
        # References beside the target, by the index of the held-out pair.
        self._further: dict[int, list[str]] = {}

    @property
    @abstractmethod
    def tokenizers(self) -> tuple[Vocabulary, Vocabulary]:
        """The tokenizers of source and target."""

    @abstractmethod
    def _read_data(self) -> tuple[Rows, Rows]:
        """Read the training rows of both sides. Raises UserError."""

    @abstractmethod
    def _read_held_out(self) -> list[tuple[str, str]]:
        """Read the held-out pairs of texts. Raises UserError."""

    def prepare(self) -> None:
        self._train = self._read_data()
        vars(self).pop("_lengths", None)

    @property
    def held_out(self) -> list[tuple[str, str]]:
        """The held-out pairs of texts, read on first use."""
        if self._held_out is None:
            self._held_out = self._read_held_out()
        return self._held_out

    def _set_length(self, length: int, stride: int | None) -> None:
        source, target = self.tokenizers
        lengths = [len(source.encode(text)) for text, _ in self.held_out]
        chosen = [i for i, tokens in enumerate(lengths) if length / 2 < tokens <= length]
        if not chosen:
            longest = max(lengths, default=0)
            raise UserError(
                f"length: expected held-out pairs with {length // 2 + 1:,} to {length:,} tokens of the source, got "
                f"none; the longest has {longest:,}: give another length, or longer pairs with --data"
            )
        self._further = {i: self._further.get(number, []) for i, number in enumerate(chosen)}
        self._held_out = [self.held_out[number] for number in chosen]
        longest = max(len(target.encode(text)) for _, text in self._held_out)
        self._longest = max(self._longest, length, longest)

    # For the model and the training loop ---------------------------------------------------------------------------

    @property
    def model_options(self) -> dict[str, Any]:
        source, target = self.tokenizers
        if self.one_sequence:
            return {"vocab_size": len(source)}
        return {"source_vocab_size": len(source), "target_vocab_size": len(target)}

    def check_model(self, options: Mapping[str, Any]) -> None:
        source, target = self.tokenizers
        if self.one_sequence and source != target:
            raise UserError(
                "expected one vocabulary for a model that reads source and target as one sequence, got two; use "
                "--joint if the task has it, or another --model"
            )
        if options.get("shared") and source != target:
            raise UserError(
                "expected one vocabulary for a shared embedding, got two; use --joint or --no-shared"
            )

    @property
    def longest(self) -> dict[str, int]:
        return {"source": self._longest + 1, "target": self._longest + 1}

    @property
    def training_size(self) -> int:
        return len(self._rows[0]) if self._mixture is None else len(self._mixture)

    @property
    def training_lengths(self) -> Int[Tensor, "N S"]:
        """Return the tokens of source and target with their ends, or of both as one sequence."""
        return self._lengths

    @cached_property
    def _lengths(self) -> Int[Tensor, "N S"]:
        source, target = self._rows
        lengths = torch.stack((source.lengths, target.lengths), 1)
        lengths = lengths if self._mixture is None else self._mixture.lengths(lengths)
        if self._splittings is not None:
            sides = zip(self._splittings, lengths.unbind(1), strict=True)
            lengths += torch.stack([splitting.splits(side) for splitting, side in sides], 1)
        lengths.add_(1)
        return lengths.sum(1, True, dtype=lengths.dtype) if self.one_sequence else lengths

    @property
    def _rows(self) -> tuple[Rows, Rows]:
        assert self._train is not None, "prepare comes first"
        return self._train

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        source, target = self._rows
        if self._mixture is not None:
            indices = self._mixture.rows(indices, generator)
        seed = self.policy.seed(generator)
        rows = [side.padded(indices) for side in (source, target)]
        if self._splittings is not None:
            both = zip(self._splittings, rows, strict=True)
            rows = [splitting.split(side, generator) for splitting, side in both]
        return self._batch(rows[0], rows[1], seed)

    def _batch(
        self, source: Int[Tensor, "B K"], target: Int[Tensor, "B Q"], seed: int | None = None
    ) -> Batch:
        if self.one_sequence:
            return self.joined(_ended(source), _ended(target), seed)
        shifted = functional.pad(target, (1, 0), value=FIRST)
        inputs = self._source(source, seed), self.tokens(shifted, "target", seed=seed)
        return Batch(inputs, _ended(target))

    def _source(self, ids: Int[Tensor, "B K"], seed: int | None = None) -> Tokens:
        ids = _ended(ids)
        if self.one_sequence:
            return self.prompts(ids)
        keep = ids != PADDING
        return self.tokens(ids, "source", keep=None if bool(keep.all()) else keep, seed=seed)

    # Evaluation ----------------------------------------------------------------------------------------------------

    def group_of(self, source: str, target: str) -> str:
        """Return the group of a held-out pair among `groups`; `all` for none."""
        return "all"

    def own_metrics(
        self, pairs: Sequence[tuple[str, str]], written: Sequence[str]
    ) -> dict[str, Any]:
        """Return further metrics of the answers to these pairs."""
        return {}

    @final
    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        """Return BLEU, chrF and chrF++ (sacreBLEU), exact match, and perplexity per target token.

        Sources that `read` refuses are not measured; `refused` counts them.
        `parts` gives exact match by the length of the answer if that is the task's metric.
        """
        asked = evenly(len(self.held_out), examples).tolist()
        numbers = [i for i in asked if self._unreadable(self.held_out[i][0]) is None]
        pairs = [self.held_out[i] for i in numbers]
        if not pairs:
            reason = self._unreadable(self.held_out[asked[0]][0]) if asked else "there are none"
            raise UserError(
                f"expected held-out sources of 1 to {self._longest} tokens, got none among {len(asked):,}; give others "
                f"(the first: {reason})"
            )
        sources = [self._encode(0, source) for source, _ in pairs]
        targets = [self._encode(1, target) for _, target in pairs]
        written: list[str] = [""] * len(pairs)
        loss = count = 0.0
        by_length = sorted(range(len(pairs)), key=lambda i: len(sources[i]))
        for start in range(0, len(pairs), AT_ONCE):
            rows = by_length[start : start + AT_ONCE]
            read = _chosen(sources, rows)
            batch = self._batch(read, _chosen(targets, rows))
            for row, ids in zip(rows, learner.write(self._source(read)), strict=True):
                written[row] = self.answer(learner, pairs[row][0], sources[row], ids)
            tokens = int((batch.labels != PADDING).sum())
            loss += tokens * float(self.loss(learner.scores(batch), batch))
            count += tokens
        metrics: dict[str, Any] = {
            "perplexity": math.exp(min(loss / count, 700.0)),
            "examples": float(len(pairs)),
        }
        references = [[self.held_out[i][1], *self._further.get(i, ())] for i in numbers]
        right = [answer in known for answer, known in zip(written, references, strict=True)]
        metrics |= self._judge(written, references)
        if learner.judge is not None:
            metrics |= learner.judge(pairs, written)
        if examples is None and self.metric.name == "exact_match":
            lengths = torch.tensor([len(target) for target in targets])
            metrics |= parts_of(torch.tensor(right), {"tokens of the answer": lengths})
            metrics["outcomes"] = right
        metrics |= self.own_metrics(pairs, written)
        if refused := len(asked) - len(pairs):
            metrics["refused"] = refused
        return metrics | self._exact_matches(pairs, right, counted=examples is None)

    def _exact_matches(
        self, pairs: Sequence[tuple[str, str]], right: Sequence[bool], *, counted: bool
    ) -> dict[str, Any]:
        """Return the share of right answers, in all and by group. counted: whether to add the counts."""
        of_group: dict[str, list[bool]] = {group: [] for group in self.groups}
        for pair, is_right in zip(pairs, right, strict=True):
            for group in {"all", self.group_of(*pair)} & of_group.keys():
                of_group[group].append(is_right)
        known = {group: some for group, some in of_group.items() if some}
        counts = {group: len(some) for group, some in known.items() if group != "all"}
        shares = {
            "exact_match" if group == "all" else f"exact_match_{group}": sum(some) / len(some)
            for group, some in known.items()
        }
        return {**shares, "group_examples": counts} if counted and counts else shares

    def _judge(self, written: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Return BLEU, chrF and chrF++ with their settings. references: of each answer, the target first."""
        if self.words is None:
            return {}
        bleu_of: Any = import_optional("sacrebleu.metrics.bleu", "text").BLEU
        chrf_of: Any = import_optional("sacrebleu.metrics.chrf", "text").CHRF
        # A pair with fewer references than others has None in their place.
        columns = list(zip_longest(*references))
        words = bleu_tokenizer(columns[0]) if self.words == "auto" else self.words
        metrics = {
            "bleu": bleu_of(tokenize=words),
            "chrf": chrf_of(),
            "chrfpp": chrf_of(word_order=2),
        }
        scores = {n: m.corpus_score(list(written), columns).score for n, m in metrics.items()}
        scores["signature"] = str(metrics["bleu"].get_signature())
        return scores

    def _encode(self, side: int, text: str) -> list[int]:
        """Encode a held-out text, cut to the model's maximal length."""
        return self.tokenizers[side].encode(text)[: self._longest]

    # Text and answers --------------------------------------------------------------------------------------------

    def read(self, line: str) -> list[int]:
        text = line.strip()
        if not text:
            raise UserError("the line is empty; write a text to answer")
        ids = self.encode_input(text)
        if len(ids) > self._longest:
            raise UserError(
                f"{len(ids):,} tokens are too many; this run reads at most {self._longest}: cut the line"
            )
        return ids

    def encode_input(self, text: str) -> list[int]:
        """Return the tokens of a source to answer. Raises UserError for a text that the model cannot read."""
        return self.tokenizers[0].encode(text)

    def _unreadable(self, line: str) -> str | None:
        """Why the model cannot read a source, or None if it can."""
        try:
            return None if self.read(line) else "it is blank"
        except UserError as error:
            return str(error)

    def read_target(self, text: str) -> list[int]:
        return [*self.tokenizers[1].encode(text.strip()), END]

    def held_out_pairs(self, examples: int | None = None) -> list[tuple[str, str]]:
        return [self.held_out[i] for i in evenly(len(self.held_out), examples).tolist()]

    def sources(self, lines: Sequence[list[int]]) -> Tokens:
        return self._source(right_padded(lines))

    def write(self, numbers: Sequence[int]) -> str:
        return self.tokenizers[1].decode(list(numbers))

    def show_source(self, numbers: Sequence[int]) -> list[str]:
        return self.tokenizers[0].names(list(numbers))

    def show_target(self, numbers: Sequence[int]) -> list[str]:
        return self.tokenizers[1].names(list(numbers))


def padding_last(ids: np.ndarray) -> np.ndarray:
    """Move the padding of each row behind its tokens."""
    return np.take_along_axis(ids, np.argsort(ids == PADDING, axis=1, kind="stable"), 1)


def scattered(numbers: np.ndarray) -> np.ndarray:
    """Return Knuth's multiplicative hash of each number, in 32 bits."""
    return numbers.astype(np.uint64) * np.uint64(2654435761) % np.uint64(2**32)


def _chosen(texts: Sequence[list[int]], rows: Sequence[int]) -> Int[Tensor, "B L"]:
    """Return some of the texts, padded."""
    return right_padded([texts[row] for row in rows])


def _ended(ids: Int[Tensor, "B L"]) -> Int[Tensor, "B M"]:
    """Append an end token to each row."""
    ids_BM = functional.pad(ids, (0, 1), value=PADDING)
    length_B1 = (ids_BM != PADDING).sum(1, keepdim=True)
    return ids_BM.scatter(1, length_B1, END)
