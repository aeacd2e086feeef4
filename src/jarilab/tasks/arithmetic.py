"""Addition and subtraction, character by character: `21+211` -> `232`.

This task shows why attention needs positions. Without them the encoder sees a bag of characters, and `21+211` is the
same bag as `12+112`, `11+122` and many more with other answers. `ceiling` counts the consequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from jaxtyping import UInt8
from torch import Tensor

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int
from jarilab.data.text import FIRST, PADDING
from jarilab.data.text.spelling import CHARACTERS, STRIPPED, Reading, Spelling, Writing
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.base import (
    Batch,
    Learner,
    evenly,
    parts_of,
    registry,
    right_padded,
    without_padding,
)
from jarilab.tasks.ceiling import bag_ceiling
from jarilab.tasks.expressions import (
    DIGITS,
    PLUS,
    VOCABULARY,
    ZERO,
    Answers,
    answer_to,
    carries,
    digits,
    expression_tokens,
    expressions,
    hashes,
    longest_answer,
    operands,
    root_repeats,
    source_tokens,
    target_tokens,
)
from jarilab.tasks.policies.base import Numbers
from jarilab.tasks.token_task import TokenTask

LARGEST_DATA = 20_000_000
# Sums then fit into 64 bits, and an expression has at most 30 digits.
LARGEST_NUMBER = 10**15 - 1
HELD_OUT = 50  # one expression in fifty
SPLIT_FOR_SURE = 10_000  # expressions, of which the hash holds some out
AT_ONCE = 65536  # lines written out together
DRAWN = 1000  # expressions of each operator with more digits than in training
SAMPLES = ("21+211", "12+1", "101-11", "911-119")


@registry.register("arithmetic")
class Arithmetic(TokenTask):
    """All expressions i + j and i - j with minimum <= i, j <= maximum. A hash holds out one in fifty.

    minimum: the smallest number. maximum: the largest number. operators: `+`, `-` or `+-`. answers: plain (`232`),
    reversed (`232` written from the ones up), or padded with zeros to the longest answer (`0232`, `-0099`). operands:
    plain, or padded with zeros to the longest. balanced: train more on short numbers. Of all expressions, 81 in 100
    have two operands of three digits, and 1 in 10,000 has two of one. So a model with 99 % right answers may not know
    5+5. Balanced training (after Lee et al. 2023) repeats expressions of rare lengths, such that a length's share is
    proportional to the square root of its number. Held-out data do not change.
    """

    model_arguments = ("source_vocab_size", "target_vocab_size")
    joined_arguments = ("vocab_size",)
    asks_policy = True
    length_unit = "digits of each operand"
    _drawn: tuple[np.ndarray, np.ndarray] | None = None

    def __init__(
        self,
        *,
        minimum: Annotated[int, Ge(0)] = 0,
        maximum: Annotated[int, Ge(0), Le(LARGEST_NUMBER)] = 999,
        operators: Literal["+-", "+", "-"] = "+-",
        answers: Answers = "plain",
        operands: Literal["plain", "padded"] = "plain",
        balanced: bool = True,
    ):
        if maximum < minimum:
            raise UserError(
                f"arithmetic: expected minimum <= maximum, got minimum={minimum}, maximum={maximum}"
            )
        count = (maximum - minimum + 1) ** 2 * len(operators)
        if count > LARGEST_DATA:
            raise UserError(
                f"arithmetic: {count:,} expressions do not fit into memory; at most {LARGEST_DATA:,} do: "
                "lower maximum or use one operator"
            )
        self.minimum, self.maximum, self.operators = minimum, maximum, operators
        self.answers: Answers = answers
        self.operands, self.balanced, self.vocabulary = operands, balanced, VOCABULARY
        self.digits = len(str(maximum))
        self.answer_digits = len(str(2 * maximum)) if "+" in operators else self.digits
        self._longest_answer = longest_answer(
            minimum, maximum, operators, self.answer_digits, answers
        )
        # The data are computed on first use, since a prediction needs none. The hash splits any larger set.
        if count < SPLIT_FOR_SURE:
            _ = self._split

    @cached_property
    def _split(self) -> tuple[Int[Tensor, " N"], Int[Tensor, " M"]]:
        """Return the indices of training expressions, some several times, and of held-out ones. Raises UserError."""
        left, right, operator = expressions(self.minimum, self.maximum, self.operators)
        held_out = hashes(left, right, operator) % HELD_OUT == 0
        if not held_out.any() or held_out.all():
            raise UserError(
                f"arithmetic: {len(left)} expressions are too few to hold some out; widen minimum ... maximum"
            )
        training = torch.from_numpy(np.flatnonzero(~held_out))
        if self.balanced:
            shapes = digits(left) * 64 + digits(right)
            repeats = torch.from_numpy(root_repeats(shapes[~held_out]))
            training = training.repeat_interleave(repeats)
        return training, torch.from_numpy(np.flatnonzero(held_out))

    @cached_property
    def _training(self) -> Int[Tensor, " N"]:
        return self._split[0]

    @cached_property
    def _held_out(self) -> Int[Tensor, " M"]:
        return self._split[1]

    @cached_property
    def _source(self) -> UInt8[Tensor, "N K"]:
        which, padded = (self.minimum, self.maximum, self.operators), self.operands == "padded"
        return torch.from_numpy(source_tokens(*which, self.digits, padded=padded))

    @cached_property
    def _target(self) -> UInt8[Tensor, "N Q"]:
        which = (self.minimum, self.maximum, self.operators)
        return torch.from_numpy(target_tokens(*which, self.answer_digits, self.answers))

    @cached_property
    def _operator(self) -> Int[Tensor, " N"]:
        numbers = torch.tensor([ord(operator) for operator in self.operators])
        return numbers.repeat((self.maximum - self.minimum + 1) ** 2)

    def prepare(self) -> None:
        _ = self._split

    @property
    def trained_length(self) -> int:
        return self.digits

    def _set_length(self, length: int, stride: int | None) -> None:
        low, high = 10 ** (length - 1), 10**length - 1
        if high > LARGEST_NUMBER:
            limit = len(str(LARGEST_NUMBER))
            raise UserError(
                f"length: expected operands of {limit} digits at most, got {length}; give a smaller length"
            )
        if length > self.digits:
            self._draw(length, low, high)
            return
        pairs = self._operands(self._held_out)
        fits = np.logical_and(*((low <= side) & (side <= high) for side in pairs))
        if not fits.any():
            raise UserError(
                f"length: expected held-out expressions with operands of {length} digits, got none between "
                f"{self.minimum:,} and {self.maximum:,}; give another length"
            )
        self._held_out = self._held_out[torch.from_numpy(fits)]

    def _draw(self, length: int, low: int, high: int) -> None:
        """Replace all expressions by random ones with operands from `low` to `high`, of `length` digits."""
        chance = np.random.default_rng(length)
        operator = np.repeat([ord(operator) for operator in self.operators], DRAWN)
        left, right = chance.integers(low, high + 1, (2, len(operator)))
        self._drawn = left, right
        source, target = expression_tokens(left, right, operator, length, self.answers)
        self._source, self._target = torch.from_numpy(source), torch.from_numpy(target)
        self._operator, self._held_out = torch.from_numpy(operator), torch.arange(len(operator))
        self.digits = length
        self.answer_digits = length + ("+" in self.operators)
        self._longest_answer = target.shape[1]

    def _operands(self, numbers: Int[Tensor, " N"]) -> tuple[np.ndarray, np.ndarray]:
        """Return i and j of the expressions at these indices."""
        if self._drawn is not None:
            left, right = self._drawn
            return left[numbers.numpy()], right[numbers.numpy()]
        return operands(numbers.numpy(), self.minimum, self.maximum, len(self.operators))

    # For the model and the training loop -------------------------------------------------------------------------

    @property
    def ones_first(self) -> bool:  # type: ignore[override]
        return self.answers == "reversed"

    @property
    def groups(self) -> tuple[str, ...]:
        if len(self.operators) == 1:
            return ("all",)
        # In a very small task, no expression of an operator may be held out.
        held_out = set(self._operator[self._held_out].tolist())
        return ("all", *(operator for operator in self.operators if ord(operator) in held_out))

    @property
    def model_options(self) -> dict[str, Any]:
        sides = self.joined_arguments if self.one_sequence else self.model_arguments
        return dict.fromkeys(sides, len(self.vocabulary))

    @property
    def spelling(self) -> Spelling:
        rules = (STRIPPED, ("=$", ""), (" ", ""))
        return Spelling(Reading(CHARACTERS, rules=rules), Writing())

    def held_out_pairs(self, examples: int | None = None) -> list[tuple[str, str]]:
        numbers = self._held_out[evenly(len(self._held_out), examples)]
        rows = zip(self._source[numbers].tolist(), self._target[numbers].tolist(), strict=True)
        return [(self.write(source), self.write(target)) for source, target in rows]

    @property
    def longest(self) -> dict[str, int]:
        return {"source": 2 * self.digits + 1, "target": self._longest_answer}

    @property
    def training_size(self) -> int:
        return len(self._training)

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        numbers, seed = self._training[indices], self.policy.seed(generator)
        source_BK = self._source[numbers].long()
        labels_BQ = self._target[numbers].long()
        if self.one_sequence:
            return self.joined(source_BK, labels_BQ, seed)
        first_B1 = torch.full((len(numbers), 1), FIRST)
        target_BQ = torch.cat((first_B1, labels_BQ[:, :-1]), 1)
        source = self.tokens(source_BK, "source", keep=source_BK != PADDING, seed=seed)
        return Batch((source, self.tokens(target_BQ, "target", seed=seed)), labels_BQ)

    def numbers(self, frame: str) -> Numbers | None:
        if self.one_sequence:  # operands and answers are not written alike
            return None
        if frame == "source":
            return Numbers(DIGITS, width=self.digits if self.operands == "padded" else None)
        width = self.answer_digits if self.answers == "padded" else None
        return Numbers(DIGITS, self.ones_first, width)

    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        """Return exact match of freely written answers, in all and by operator, on the held-out expressions.

        On all of them, also `parts` by digits of the answer and by carries. `examples` are taken evenly from the hash's
        order, so they are not the smallest numbers.
        """
        numbers = self._held_out[evenly(len(self._held_out), examples)]
        right: list[bool] = []
        for some in numbers.split(4096):
            written = learner.write(self._sources(self._source[some].long()))
            expected = (without_padding(row, PADDING) for row in self._target[some].tolist())
            right += [answer == row for answer, row in zip(written, expected, strict=True)]
        exact = torch.tensor(right, dtype=torch.float64)
        metrics: dict[str, Any] = {
            "exact_match": float(exact.mean()),
            "examples": float(len(numbers)),
        }
        operators = self._operator[numbers]
        counts = {}
        for operator in self.groups[1:]:
            of_operator = exact[operators == ord(operator)]
            if len(of_operator):  # a few examples may hold none
                metrics[f"exact_match_{operator}"] = float(of_operator.mean())
                counts[operator] = len(of_operator)
        if examples is None:
            metrics |= {"group_examples": counts} if counts else {}
            metrics |= parts_of(exact.bool(), self._kinds(numbers)) | {"outcomes": exact.tolist()}
        return metrics

    def _kinds(self, numbers: Int[Tensor, " N"]) -> dict[str, Int[Tensor, " N"]]:
        """Return the properties of expressions for `parts`."""
        target_NQ = self._target[numbers]
        is_digit_NQ = (target_NQ >= ZERO) & (target_NQ < PLUS)
        left, right = self._operands(numbers)
        carried = carries(left, right, self._operator[numbers].numpy())
        return {
            "digits of the answer": is_digit_NQ.sum(1),
            "carries and borrows": torch.from_numpy(carried),
        }

    # Text and answers --------------------------------------------------------------------------------------------

    def read(self, line: str) -> list[int]:
        text = line.strip().removesuffix("=").replace(" ", "")
        if not text:
            raise UserError("the line is empty; write an expression such as 21+211")
        longest = self.longest["source"]
        if len(text) > longest:
            raise UserError(
                f"{len(text):,} characters are too many; expressions of this run have at most {longest}: shorten it"
            )
        return self.vocabulary.encode(text)

    def sources(self, lines: Sequence[list[int]]) -> Tokens:
        return self._sources(right_padded(lines))

    def _sources(self, ids: Int[Tensor, "B K"]) -> Tokens:
        if self.one_sequence:
            return self.prompts(ids)
        return self.tokens(ids, "source", keep=ids != PADDING)

    def write(self, numbers: Sequence[int]) -> str:
        return self.vocabulary.decode(numbers)

    def show_source(self, numbers: Sequence[int]) -> list[str]:
        return [self.vocabulary.tokens[number] for number in numbers]

    show_target = show_source

    def expected(self, line: str) -> str | None:
        """Return the right answer in this run's form, or None if the line is not an expression of this task."""
        text = line.strip().removesuffix("=").replace(" ", "")
        return answer_to(text, self.operators, self.answers, self.answer_digits)

    def sample_inputs(self) -> list[str]:
        """Return expressions in which a digit occurs several times in different places."""
        low, top = self.minimum, self.maximum
        width = self.digits if self.operands == "padded" else 0
        fitting = []
        for line in (*SAMPLES, f"{top}+{top}", f"{low}-{top}"):
            operator = "+" if "+" in line else "-"
            left, right = line.split(operator)
            smaller, larger = sorted((int(left), int(right)))
            if low <= smaller and larger <= top and operator in self.operators:
                fitting.append(left.zfill(width) + operator + right.zfill(width))
        return fitting[:4]

    def ceiling_sentence(self) -> str:
        return (
            "Without positions the encoder sees only which characters stand in an expression, not where. "
            "Expressions with the same characters then get the same answer, and at best the commonest one: counted "
            "over all expressions, this is the share of exact answers that no such model can pass on average."
        )

    def describe(self) -> str:
        signs = " and ".join(f"i{operator}j" for operator in self.operators)
        answers = "" if self.answers == "plain" else f", answers {self.answers}"
        operands = "" if self.operands == "plain" else f", operands {self.operands}"
        span = f"{self.minimum} <= i, j <= {self.maximum}"
        return f"{signs}, {span}{answers}{operands}: {len(self._source):,} expressions"

    def purpose(self) -> tuple[str, str]:
        english = {"+-": "Adds and subtracts", "+": "Adds", "-": "Subtracts"}[self.operators]
        korean = {"+-": "더하고 뺍니다", "+": "더합니다", "-": "뺍니다"}[self.operators]
        first, last = f"{self.minimum:,}", f"{self.maximum:,}"
        sentence = f"{english} two whole numbers from {first} to {last}."
        return sentence, f"{first}에서 {last}까지의 정수 둘을 {korean}."

    def lines(self) -> Iterator[str]:
        """Yield every expression with its answer, `21+211=232`, in order: for i, for j, `+` then `-`."""
        tokens = np.array(["", "", "", *self.vocabulary.tokens[3:]])
        for start in range(0, len(self._source), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            source = tokens[self._source[some].numpy()]
            target = tokens[self._target[some].numpy()]
            for left, right in zip(source, target, strict=True):
                yield "".join(left) + "=" + "".join(right)

    # Ceiling -------------------------------------------------------------------------------------------------------

    def ceiling(self) -> dict[str, float] | None:
        """Return the ceiling over all expressions. Holding out does not change it on average."""
        if self.one_sequence:  # the causal mask gives the order, too
            return None
        source, target = self._source.numpy(), self._target.numpy()
        shares = {"all": bag_ceiling(source, target)}
        if len(self.operators) > 1:
            for operator in self.operators:
                chosen = self._operator.numpy() == ord(operator)
                shares[operator] = bag_ceiling(source[chosen], target[chosen])
        return shares
