"""Metrics of an answer: one number for each row of a batch, read at one position.

    metric = logit_difference(answers, rivals)
    metric(model(*batch.args), batch)      # (B,)

The losses of `study/losses.py` are functions of the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import logits_of

Ids = int | Sequence[Any] | Tensor
"""The token or class of the answer: one for all rows, or one a row."""


def logit_difference(answers: Ids, rivals: Ids, position: int = -1) -> AnswerMetric:
    """The logit of the answer minus that of its rival. Hides what acts on both, see `logit_over_mean`."""
    return AnswerMetric("logit difference", answers, rivals, position)


def logit_over_mean(answers: Ids, position: int = -1) -> AnswerMetric:
    """The logit of the answer minus the mean logit of all tokens."""
    return AnswerMetric("logit over mean", answers, None, position)


def log_probability(answers: Ids, position: int = -1) -> AnswerMetric:
    """The log-probability of the answer in nats."""
    return AnswerMetric("log probability", answers, None, position)


@dataclass(frozen=True, eq=False)
class AnswerMetric:
    """A metric of outputs and their batch, `(B,)`, as the functions above make it.

    position: counted among the tokens of a row without padding, from its end if negative. It must be -1 for a model
    with one answer a row.
    """

    name: str
    answers: Ids
    rivals: Ids | None
    position: int = -1

    def __call__(self, outputs: Any, batch: Batch) -> Float[Tensor, " B"]:
        """Raises UserError for outputs without logits, tokens out of the vocabulary, and NaN."""
        logits = self._logits(outputs)
        places_B = self.read_at(outputs, batch)
        if places_B is not None:
            rows = torch.arange(len(logits), device=logits.device)
            logits = logits[rows, places_B.to(logits.device)]
        logits_BV = logits.double()
        answer_B1 = _column(self.answers, logits_BV, batch.copies)
        values_B = logits_BV.gather(1, answer_B1)[:, 0]
        if self.rivals is not None:
            rival_B1 = _column(self.rivals, logits_BV, batch.copies)
            values_B = values_B - logits_BV.gather(1, rival_B1)[:, 0]
        elif self.name == "log probability":
            values_B = values_B - logits_BV.logsumexp(1)
        else:
            values_B = values_B - logits_BV.mean(1)
        return values_B

    def read_at(self, outputs: Any, batch: Batch) -> Int[Tensor, " B"] | None:
        """The index of the token at which each row is read; None for a model with one answer a row."""
        logits = self._logits(outputs)
        if logits.ndim == 3:
            length = logits.shape[1]
            is_target = "target" in batch.valid and batch.valid["target"].shape[1] == length
            valid_BL = valid_of(batch, "target" if is_target else "source", length)
            return token_at(valid_BL, self.position, self.name)
        if self.position != -1:
            raise UserError(
                f"{self.name}: expected position -1 for a model with one answer a row, got {self.position}"
            )
        return None

    def _logits(self, outputs: Any) -> Tensor:
        logits = logits_of(outputs)
        if logits is None or logits.ndim not in (2, 3):
            raise UserError(
                f"{self.name}: expected logits (B, L, V) or (B, V), got {type(outputs).__name__} without them; load "
                "the model with a head that gives scores of tokens or classes"
            )
        return logits


def checked(values: Any, name: str, batch: Batch) -> Float[Tensor, " B"]:
    """The values of a metric for the rows of a batch. Raises UserError if they are no finite number a row."""
    if not isinstance(values, Tensor) or values.shape != (len(batch),):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise UserError(f"{name}: expected a number for each of {len(batch)} rows, got {got}")
    wrong = (~values.isfinite()).nonzero()[:, 0].tolist()
    if wrong:
        raise UserError(
            f"{name}: expected a finite number for row {wrong[0] + 1}, got {values[wrong[0]].item()}; check the "
            "model's outputs for this input, and that the row has an answer"
        )
    return values.detach().double()


def token_ids(ids: Ids) -> int | list[int]:
    """The answer of all rows, or one a row, as numbers. Raises UserError for anything but single tokens."""
    plain = _plain(ids)
    is_list = isinstance(plain, list | tuple | range)
    rows = list(map(_plain, plain)) if is_list else [plain]
    for row, each in enumerate(rows):
        if isinstance(each, list | tuple):
            raise UserError(
                f"row {row + 1}: expected an answer of one token, got {len(each)}: {list(each)}; choose an answer "
                "of one token, or its first one"
            )
        if isinstance(each, bool) or not hasattr(each, "__index__"):
            raise UserError(
                f"expected token ids as answers, got {ids!r}; pass one for all rows or a list with one a row, and "
                "encode text with the tokenizer"
            )
    return [*map(index, rows)] if is_list else index(rows[0])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value


def _column(ids: Ids, logits_BV: Tensor, copies: int) -> Int[Tensor, "B 1"]:
    """One token a row, repeated for copies of a batch."""
    count, size = len(logits_BV) // copies, logits_BV.shape[1]
    ids = token_ids(ids)
    rows = [ids] if isinstance(ids, int) else ids
    if len(rows) not in (1, count):
        raise UserError(
            f"expected an answer for each of {count} rows, got {len(rows)}; pass one for all, or one a row"
        )
    wrong = [each for each in rows if not 0 <= each < size]
    if wrong:
        raise UserError(
            f"expected tokens from 0 to {size - 1} as answers, got {wrong[:8]}; pass their ids"
        )
    return torch.tensor(rows, device=logits_BV.device).repeat(len(logits_BV) // len(rows))[:, None]


# Positions ------------------------------------------------------------------------------------------------------------


def check_aligned(clean: Batch, batch: Batch, name: str) -> None:
    """Raises UserError if two batches differ in rows, in the tokens of a row, or in padding."""
    if len(batch) != len(clean):
        raise UserError(
            f"expected {len(clean)} {name} inputs, one for each clean one, got {len(batch)}; pair them"
        )
    for row, (tokens, other_tokens) in enumerate(zip(clean.tokens, batch.tokens, strict=True)):
        for side in tokens:
            expected, got = len(tokens[side]), len(other_tokens.get(side, []))
            if got != expected:
                raise UserError(
                    f"row {row + 1}: expected the {expected} tokens ({side}) of the clean input, got {got} in the "
                    f"{name} one; replace words by words of as many tokens"
                )
    for side, valid_BL in clean.valid.items():
        other_BL = batch.valid.get(side)
        if other_BL is None or not torch.equal(other_BL, valid_BL):
            raise UserError(
                f"expected the padding ({side}) of the clean inputs, got another in the {name} ones; pad both alike"
            )


def valid_of(batch: Batch, side: str, length: int) -> Bool[Tensor, "B L"]:
    """The tokens of a sequence that are no padding; all of them if the batch does not say, or has another length."""
    valid_BL = batch.valid.get(side)
    if valid_BL is None or valid_BL.shape[1] != length:
        return torch.ones(len(batch), length, dtype=torch.bool)
    return valid_BL


def token_at(valid_BL: Bool[Tensor, "B L"], position: int, what: str) -> Int[Tensor, " B"]:
    """The index of a token of each row among those that are no padding, from the end if negative.

    what: is read there. Raises UserError if a row does not have the position.
    """
    lengths_B = valid_BL.sum(1)
    place_B = torch.full_like(lengths_B, position) + (lengths_B if position < 0 else 0)
    for row, length in enumerate(lengths_B.tolist()):
        if not 0 <= place_B[row] < length:
            raise UserError(
                f"{what}, row {row + 1}: expected a position from {-length} to {length - 1}, got {position}; choose "
                "one that every row has"
            )
    return (valid_BL & (valid_BL.cumsum(1) - 1 == place_B[:, None])).int().argmax(1)
