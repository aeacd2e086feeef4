"""The role of each token of a sum, and the weight that a head puts on digits of the same place value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from jarilab.core.errors import UserError
from jarilab.inspect.measure.maps import Map, Scored
from jarilab.inspect.measure.measures import scored_mass

CHARACTERS = frozenset("0123456789+-=")
Part = Literal["left", "operator", "right", "equals", "sign", "answer", "other"]


@dataclass(frozen=True)
class DigitPlace:
    """The role of a token of a sum.

    place: place value of a digit, 0 for the ones. carry: for a digit of the answer, whether a carry comes into its
    place, or a borrow is taken from it.
    """

    part: Part
    place: int | None = None
    carry: bool | None = None


def places_of(tokens: Sequence[str], *, ones_first: bool = False) -> list[DigitPlace]:
    """The role of each token of `21+211=232`, or of `21-211`.

    tokens: one character each; other tokens (`<s>`) get the role "other". For a source and its answer:
    `places_of([*source, "=", *written])`. ones_first: the answer starts with its ones.
    Raises UserError if the tokens are no such expression.
    """
    text = "".join(token for token in tokens if token in CHARACTERS)
    match = re.fullmatch(r"([0-9]+)([+-])([0-9]+)(?:(=)([0-9+=-]*))?", text)
    # Special tokens such as `<s>` have no characters of an expression.
    plain = (token for token in tokens if len(token) > 1 and not token.startswith("<"))
    if match is None or any(not CHARACTERS.isdisjoint(token) for token in plain):
        raise UserError(
            f"expected an expression such as 21+211 or 21+211=232, a token for each character, got {list(tokens)}"
        )
    left, operator, right, equals, answer = match.groups("")
    carries = _carries(left, operator, right)
    roles = [
        *_operand("left", left),
        DigitPlace("operator"),
        *_operand("right", right),
        *[DigitPlace("equals")] * len(equals),
        *_answer_places(answer, carries, ones_first),
    ]
    remaining = iter(roles)
    return [next(remaining) if token in CHARACTERS else DigitPlace("other") for token in tokens]


def _operand(part: Part, digits: str) -> list[DigitPlace]:
    return [DigitPlace(part, place) for place in reversed(range(len(digits)))]


def _answer_places(answer: str, carries: list[bool], ones_first: bool) -> list[DigitPlace]:
    digits = sum(character.isdecimal() for character in answer)
    order = iter(range(digits) if ones_first else reversed(range(digits)))
    places = []
    for character in answer:
        if not character.isdecimal():
            places.append(DigitPlace("equals" if character == "=" else "sign"))
            continue
        place = next(order)
        carry = place < len(carries) and carries[place]
        places.append(DigitPlace("answer", place, carry))
    return places


def _carries(left: str, operator: str, right: str) -> list[bool]:
    """Whether there is a carry into each place, one more than the longer operand has."""
    width = max(len(left), len(right))
    larger, smaller = left.zfill(width), right.zfill(width)
    if operator == "-" and larger < smaller:  # the answer is the other difference with a sign
        larger, smaller = smaller, larger
    carries = [False]
    for a, b in zip(reversed(larger), reversed(smaller), strict=True):
        upper = int(a)
        lower = int(b) + carries[-1]
        carries.append(upper + lower > 9 if operator == "+" else upper < lower)
    return carries


def place_share(map: Map, queries: Sequence[DigitPlace], keys: Sequence[DigitPlace]) -> Scored:
    """The weight of a digit on the operands' digits of the same place value, mean over digits that may attend to one.

    queries, keys: the role of each row and column. In cross-attention, the role of a row is that of the token written
    after it: the first row of `<s> 2 3 2` has the role of the first digit. A digit's weight on itself does not count.
    Raises UserError if their numbers do not match the map.
    """
    if (len(queries), len(keys)) != (len(map.queries), len(map.keys)):
        raise UserError(
            f"expected {len(map.queries)} and {len(map.keys)} places, one for each query and key of the map, "
            f"got {len(queries)} and {len(keys)}"
        )
    # -1 and -2 are no place values, so that other tokens match nothing.
    query_values = [-1 if role.place is None else role.place for role in queries]
    key_values = [
        role.place if role.place is not None and role.part in ("left", "right") else -2
        for role in keys
    ]
    query_Q1 = torch.tensor(query_values).unsqueeze(-1)
    target_QK = query_Q1 == torch.tensor(key_values)
    if map.same:
        target_QK = target_QK & (map.ahead != 0)
    return scored_mass(map, target_QK)
