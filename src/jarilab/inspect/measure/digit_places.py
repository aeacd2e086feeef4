"""What each token of a sum is, digit by digit, and how much a head looks at the digits of its own place."""

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
class Place:
    """What a token of a sum is. place: of a digit, 0 for the ones. carry: of a digit of the answer, whether the places
    below carry into its place (or borrow from it) when the operands are added up (or the smaller is taken away)."""

    part: Part
    place: int | None = None
    carry: bool | None = None


def places_of(tokens: Sequence[str], *, ones_first: bool = False) -> list[Place]:
    """What each token of `21+211=232`, or of `21-211` alone, is; one character a token, others (`<s>`) are "other".

    To read a source and the answer to it: `places_of([*source, "=", *written])`. The answer is whatever stands after
    the `=`, right or wrong. ones_first: it is written from the ones up.
    Raises UserError where the tokens are no such expression.
    """
    left, operator, right, equals, answer = _expression(tokens)
    carries = _carries(left, operator, right)
    of_expression = [
        *_operand("left", left),
        Place("operator"),
        *_operand("right", right),
        *[Place("equals")] * len(equals),
        *_answer_places(answer, carries, ones_first),
    ]
    remaining = iter(of_expression)
    return [next(remaining) if token in CHARACTERS else Place("other") for token in tokens]


def _expression(tokens: Sequence[str]) -> tuple[str, ...]:
    """Left operand, operator, right operand, equals sign and answer; the last two may be empty."""
    text = "".join(token for token in tokens if token in CHARACTERS)
    found = re.fullmatch(r"([0-9]+)([+-])([0-9]+)(?:(=)([0-9+=-]*))?", text)
    if found is None or any(_holds_several(token) for token in tokens):
        raise UserError(
            f"expected an expression such as 21+211 or 21+211=232, a token for each character, got {list(tokens)}"
        )
    return found.groups("")


def _holds_several(token: str) -> bool:
    """Whether characters of an expression stand in one token. `<s>` and its like are none."""
    if len(token) == 1 or token.startswith("<"):
        return False
    return not CHARACTERS.isdisjoint(token)


def _operand(part: Part, digits: str) -> list[Place]:
    return [Place(part, place) for place in reversed(range(len(digits)))]


def _answer_places(answer: str, carries: list[bool], ones_first: bool) -> list[Place]:
    digits = sum(character.isdecimal() for character in answer)
    order = iter(range(digits) if ones_first else reversed(range(digits)))
    places = []
    for character in answer:
        if not character.isdecimal():
            places.append(Place("equals" if character == "=" else "sign"))
            continue
        place = next(order)
        carry = place < len(carries) and carries[place]
        places.append(Place("answer", place, carry))
    return places


def _carries(left: str, operator: str, right: str) -> list[bool]:
    """For each place, whether something is carried into it; one place more than the longer operand has."""
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


def place_share(map: Map, queries: Sequence[Place], keys: Sequence[Place]) -> Scored:
    """The weight that a digit puts on the operands' digits of its own place, itself left out; mean over the digits that
    may look at one.

    queries, keys: what each row and column stands for. In attention to a source, a row stands for what is written at
    it, so that the first row of `<s> 2 3 2` is the place of the first digit.
    Raises UserError where they are not as many as the map's.
    """
    got = len(queries), len(keys)
    expected = len(map.queries), len(map.keys)
    if got != expected:
        raise UserError(
            f"expected {expected[0]} and {expected[1]} places, one for each query and key of the map, "
            f"got {got[0]} and {got[1]}"
        )
    # Numbers that no place has keep what is no digit from being equal to anything.
    of_queries = [-1 if place.place is None else place.place for place in queries]
    of_keys = [_place_in_operand(place) for place in keys]
    query_Q1 = torch.tensor(of_queries).unsqueeze(-1)
    target_QK = query_Q1 == torch.tensor(of_keys)
    if map.same:
        target_QK = target_QK & (map.ahead != 0)
    return scored_mass(map, target_QK)


def _place_in_operand(place: Place) -> int:
    if place.place is None or place.part not in ("left", "right"):
        return -2
    return place.place
