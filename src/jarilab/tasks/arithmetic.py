"""Addition and subtraction, character by character: `21+211` -> `232`.

The experiment that shows why attention needs positions. Without them the encoder sees a bag of characters, and
`21+211` is the same bag as `12+112`, `11+122` and many more with other answers: `ceiling` counts what that costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from jarilab.errors import UserError
from jarilab.positions import Positions, Tokens
from jarilab.shapes import Int
from jarilab.tasks.base import Batch, Learner, TokenTask, evenly, registry, right_padded
from jarilab.tasks.ceiling import bag_ceiling
from jarilab.text import END, FIRST, PADDING, CharacterVocabulary

Answers = Literal["plain", "reversed", "padded"]

LARGEST_DATA = 20_000_000
LARGEST_NUMBER = (
    10**15 - 1
)  # a sum of two is far from the end of 64 bits, a digit stands at most 30 times in a line
HELD_OUT = 50  # one expression in fifty


@registry.register("arithmetic")
class Arithmetic(TokenTask):
    """All expressions i + j and i - j with minimum <= i, j <= maximum; one in fifty is held out, by a hash of it.

    operators: `+`, `-` or `+-`. answers: plain (`232`), reversed (`232` written from the ones up), or padded with
    zeros to the longest answer (`0232`, `-0099`). operands: plain, or padded with zeros to the longest.
    balanced: of all expressions, 81 in 100 have two operands of three digits and 1 in 10,000 has two of one, so a model
    that answers 99 % of them may still not know 5+5. Balanced training (after Lee et al. 2023) repeats expressions of
    rarer lengths, so that each length's share goes with the square root of its number. Held-out data stay as they are.
    """

    model_arguments = ("source_vocabulary", "target_vocabulary")

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
        expressions = (maximum - minimum + 1) ** 2 * len(operators)
        if expressions > LARGEST_DATA:
            raise UserError(
                f"arithmetic: {expressions:,} expressions do not fit into memory; at most {LARGEST_DATA:,} do: "
                "lower maximum or use one operator"
            )
        self.minimum, self.maximum, self.operators = minimum, maximum, operators
        self.answers: Answers = answers
        self.operands, self.balanced = operands, balanced
        self.vocabulary = CharacterVocabulary("0123456789+-")
        self.digits = len(str(maximum))
        self.answer_digits = len(str(2 * maximum)) if "+" in operators else self.digits
        left, right, operator = self._numbers()
        held_out = _mix(left, right, operator) % HELD_OUT == 0
        # A task so small that the hash holds out nothing, or everything, still needs both.
        self._held_out = torch.from_numpy(np.flatnonzero(held_out))
        self._training = torch.from_numpy(np.flatnonzero(~held_out))
        if not len(self._held_out) or not len(self._training):
            raise UserError(
                f"arithmetic: {expressions} expressions are too few to hold some out; widen minimum ... maximum"
            )
        if balanced:
            shapes = _digits(left) * 64 + _digits(right)
            self._training = self._training.repeat_interleave(_repeats(shapes[~held_out]))
        self._source = torch.from_numpy(self._source_tokens(left, right, operator))
        self._target = torch.from_numpy(self._target_tokens(left, right, operator))
        self._operator = torch.from_numpy(operator)

    # What it is made of ------------------------------------------------------------------------------------------

    def _numbers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """i, j and the operator's number of every expression, in the order of the file: for i, for j, + then -."""
        span = np.arange(self.minimum, self.maximum + 1, dtype=np.int64)
        left, right, operator = np.meshgrid(
            span, span, np.array([ord(o) for o in self.operators]), indexing="ij"
        )
        return left.ravel(), right.ravel(), operator.ravel()

    def _source_tokens(
        self, left: np.ndarray, right: np.ndarray, operator: np.ndarray
    ) -> np.ndarray:
        characters = np.zeros((len(left), 2 * self.digits + 1), dtype=np.uint8)
        place = np.zeros(len(left), dtype=np.int64)
        pad = self.operands == "padded"
        self._write_number(characters, place, left, self.digits, pad)
        characters[np.arange(len(left)), place] = np.where(
            operator == ord("+"), self._token("+"), self._token("-")
        )
        place += 1
        self._write_number(characters, place, right, self.digits, pad)
        return characters

    def _target_tokens(
        self, left: np.ndarray, right: np.ndarray, operator: np.ndarray
    ) -> np.ndarray:
        value = np.where(operator == ord("+"), left + right, left - right)
        # Room for a sign, the digits and the end; a column that no answer needs is cut off below.
        characters = np.zeros((len(left), self.answer_digits + 2), dtype=np.uint8)
        place = np.zeros(len(left), dtype=np.int64)
        negative = np.flatnonzero(value < 0)
        characters[negative, 0] = self._token("-")
        place[negative] = 1
        self._write_number(
            characters, place, np.abs(value), self.answer_digits, self.answers == "padded"
        )
        if self.answers == "reversed":
            # Position t of the reversed answer is position length - 1 - t of the plain one.
            index = (
                (characters != PADDING).sum(1, keepdims=True) - 1 - np.arange(characters.shape[1])
            )
            reversed_ = np.take_along_axis(characters, np.maximum(index, 0), 1)
            characters = np.where(index >= 0, reversed_, PADDING).astype(np.uint8)
        length = (characters != PADDING).sum(1)
        characters[np.arange(len(left)), length] = END
        return characters[:, : int(length.max()) + 1]

    def _write_number(
        self, characters: np.ndarray, place: np.ndarray, number: np.ndarray, width: int, pad: bool
    ) -> None:
        """Write each number into its row of `characters` from `place` on, and move `place` behind it."""
        rows = np.arange(len(number))
        for power in range(width - 1, -1, -1):
            shown = rows if pad or power == 0 else np.flatnonzero(number >= 10**power)
            digit = number[shown] // 10**power % 10
            characters[shown, place[shown]] = self._token("0") + digit
            place[shown] += 1

    def _token(self, character: str) -> int:
        return self.vocabulary.number(character)

    # What a model and the training loop ask ----------------------------------------------------------------------

    @property
    def ones_first(self) -> bool:  # type: ignore[override]
        return self.answers == "reversed"

    @property
    def groups(self) -> tuple[str, ...]:
        if len(self.operators) == 1:
            return ("all",)
        # Of a very small task the hash may hold out no expression with one of the operators.
        held_out = self._operator[self._held_out]
        return (
            "all",
            *(operator for operator in self.operators if bool((held_out == ord(operator)).any())),
        )

    @property
    def model_options(self) -> dict[str, Any]:
        return {
            "source_vocabulary": len(self.vocabulary),
            "target_vocabulary": len(self.vocabulary),
        }

    @property
    def longest(self) -> dict[str, int]:
        return {"source": self._source.shape[1], "target": self._target.shape[1]}

    @property
    def training_size(self) -> int:
        return len(self._training)

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        return self._batch(self._training[indices])

    def _batch(self, numbers: Int[Tensor, " B"]) -> Batch:
        source, target = self._source[numbers].long(), self._target[numbers].long()
        start = torch.full((len(numbers), 1), FIRST)
        said = Tokens(
            torch.cat((start, target[:, :-1]), 1),
            Positions.sequence(target.shape[1], frame="target"),
        )
        return Batch((self._tokens(source), said), target)

    def _tokens(self, source: Int[Tensor, "B K"]) -> Tokens:
        return Tokens(
            source, Positions.sequence(source.shape[1], frame="source"), source != PADDING
        )

    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, float]:
        """Exact match of answers written freely, in all and per operator, on the held-out expressions.

        `examples` of them are taken evenly from the hash's order, so that they are not the smallest numbers.
        """
        numbers = self._held_out[evenly(len(self._held_out), examples)]
        right: list[bool] = []
        for some in numbers.split(4096):
            source, target = self._source[some].long(), self._target[some].tolist()
            answers = zip(learner.write(self._tokens(source)), target, strict=True)
            right += [
                answer == [token for token in row if token != PADDING] for answer, row in answers
            ]
        exact = torch.tensor(right, dtype=torch.float64)
        metrics = {"exact_match": float(exact.mean()), "examples": float(len(numbers))}
        for operator in self.groups[1:]:
            of_operator = exact[self._operator[numbers] == ord(operator)]
            if len(of_operator):  # a few examples may hold none
                metrics[f"exact_match_{operator}"] = float(of_operator.mean())
        return metrics

    # What a person sees ------------------------------------------------------------------------------------------

    def read(self, line: str) -> list[int]:
        text = line.strip().removesuffix("=").replace(" ", "")
        if not text:
            raise UserError("the line is empty; write an expression such as 21+211")
        longest = self.longest["source"]
        if len(text) > longest:
            raise UserError(
                f"{len(text):,} characters are too many; expressions of this run have at most {longest}"
            )
        return self.vocabulary.encode(text)

    def sources(self, lines: Sequence[list[int]]) -> Tokens:
        ids, keep = right_padded(lines, PADDING)
        return Tokens(ids, Positions.sequence(ids.shape[1], frame="source"), keep)

    def write(self, numbers: Sequence[int]) -> str:
        return self.vocabulary.decode(numbers)

    def show_source(self, numbers: Sequence[int]) -> list[str]:
        return [self.vocabulary.tokens[number] for number in numbers]

    show_target = show_source

    def expected(self, line: str) -> str | None:
        """The right answer as this run writes it, or None if the line is no expression of this task."""
        text = line.strip().removesuffix("=").replace(" ", "")
        operator = next((o for o in self.operators if o in text), None)
        if operator is None:
            return None
        left, _, right = text.partition(operator)
        if not (left.isdecimal() and right.isdecimal() and left.isascii() and right.isascii()):
            return None
        value = int(left) + int(right) if operator == "+" else int(left) - int(right)
        digits = str(abs(value))
        if self.answers == "padded":
            digits = digits.zfill(self.answer_digits)
        shown = "-" * (value < 0) + digits
        return shown[::-1] if self.answers == "reversed" else shown

    def sample_inputs(self) -> list[str]:
        """Expressions in which a digit stands several times, in different places."""
        top = str(self.maximum)
        candidates = [
            "21+211",
            "12+1",
            "101-11",
            "911-119",
            f"{top}+{top}",
            f"{self.minimum}-{top}",
        ]
        fitting = []
        for line in candidates:
            numbers = line.replace("-", "+").split("+")
            if all(self.minimum <= int(n) <= self.maximum for n in numbers) and any(
                o in line for o in self.operators
            ):
                width = self.digits if self.operands == "padded" else 0
                operator = "+" if "+" in line else "-"
                fitting.append(operator.join(n.zfill(width) for n in numbers))
        return fitting[:4]

    def ceiling_sentence(self) -> str:
        return (
            "Without positions the encoder sees only which characters stand in an expression, not where. "
            "Expressions with the same characters then get the same answer, and at best the commonest one: counted "
            "over all expressions, this is the share of exact answers that no such model can pass on average."
        )

    def describe(self) -> str:
        signs = " and ".join(f"i{operator}j" for operator in self.operators)
        extra = "".join(
            f", {what} {how}"
            for what, how in (("answers", self.answers), ("operands", self.operands))
            if how != "plain"
        )
        return f"{signs}, {self.minimum} <= i, j <= {self.maximum}{extra}: {len(self._source):,} expressions"

    def lines(self) -> Iterator[str]:
        """Every expression with its answer, `21+211=232`, in generation order: for i, for j, `+` then `-`."""
        tokens = np.array(["", "", "", *self.vocabulary.tokens[3:]])
        for start in range(0, len(self._source), 65536):
            source = tokens[self._source[start : start + 65536].numpy()]
            target = tokens[self._target[start : start + 65536].numpy()]
            for left, right in zip(source, target, strict=True):
                yield "".join(left) + "=" + "".join(right)

    # What no model without positions can pass ----------------------------------------------------------------------

    def ceiling(self) -> dict[str, float]:
        """Of all expressions: held out or not makes no difference on average."""
        source, target = self._source.numpy(), self._target.numpy()
        shares = {"all": bag_ceiling(source, target)}
        if len(self.operators) > 1:
            of_sign = {sign: self._operator.numpy() == ord(sign) for sign in self.operators}
            shares |= {
                sign: bag_ceiling(source[chosen], target[chosen])
                for sign, chosen in of_sign.items()
            }
        return shares


def _digits(number: np.ndarray) -> np.ndarray:
    """How many digits each number has."""
    powers = 10 ** np.arange(1, 19)
    return 1 + np.searchsorted(powers, number, side="right")


def _repeats(shapes: np.ndarray) -> Tensor:
    """How often to repeat each example, so that a shape's share goes with the square root of its number."""
    _, shape, counts = np.unique(shapes, return_inverse=True, return_counts=True)
    return torch.from_numpy(np.rint(np.sqrt(counts.max() / counts)).astype(np.int64)[shape])


def _mix(left: np.ndarray, right: np.ndarray, operator: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each expression (splitmix64 over i, j and the operator): the same whatever the options are."""
    with np.errstate(over="ignore"):
        z = np.zeros(len(left), dtype=np.uint64)
        for part in (left, right, operator):
            z = (z ^ part.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
    return z
