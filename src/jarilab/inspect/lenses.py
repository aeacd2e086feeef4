"""What maps say together, or held against something known: a repeated block, a reference alignment, a sum."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from jarilab.errors import UserError
from jarilab.inspect.maps import Map, Scored
from jarilab.inspect.measures import beside_even, mass
from jarilab.shapes import Float, Int, Tensor

# Induction -----------------------------------------------------------------------------------------------------------


def induction_ids(
    tokens: Sequence[int], block: int, *, copies: int = 2, first: int | None = None, seed: int = 0
) -> Int[Tensor, "1 L"]:
    """A random block of different tokens, again and again: what an induction head shows itself on (Olsson et al. 2022).

    tokens: the numbers to draw from. first: a number that goes before all, where the model expects one.
    Raises UserError where there are fewer tokens than the block is long, or nothing is repeated.
    """
    if not 2 <= block <= len(tokens):
        raise UserError(
            f"a block holds 2 to {len(tokens)} different tokens, as many as there are to draw from, got block={block}"
        )
    if copies < 2:
        raise UserError(
            f"expected a block and at least one copy of it, copies=2 or more, got copies={copies}"
        )
    drawn = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))[:block]
    repeated_L = torch.tensor(tokens, dtype=torch.int64)[drawn].repeat(copies)
    before = torch.tensor([] if first is None else [first], dtype=torch.int64)
    return torch.cat((before, repeated_L)).unsqueeze(0)


def induction_score(map: Map, block: int, *, first: bool = False) -> Scored:
    """Prefix matching on `induction_ids`: the weight on the token that followed the last time, `i - block + 1`, mean
    over the queries i of all copies but the first (Olsson et al. 2022). first: a token goes before the first block.

    Raises UserError where the map is not of such a sequence.
    """
    length = len(map.queries) - first
    if (
        not map.same
        or len(map.keys) != len(map.queries)
        or block < 1
        or length < 2 * block
        or length % block
    ):
        raise UserError(
            f"expected a map of a sequence with itself, copies of a block of {block} tokens, "
            f"got {len(map.queries)} queries and {len(map.keys)} keys; make the tokens with induction_ids"
        )
    i = torch.arange(len(map.queries)).unsqueeze(-1)
    target_QK = (torch.arange(len(map.keys)) == i - block + 1) & (i >= block + first)
    return beside_even(mass(lambda _: target_QK))(map)


# Layers and models ---------------------------------------------------------------------------------------------------


def rollout(maps: Sequence[Map]) -> Float[Tensor, "Q K"]:
    """What each place of an encoder's output is made of: `R_l = A_l R_(l-1)`, with A_l the mean over heads and the
    residual connection, `(A + I) / 2`, each row over its sum (Abnar & Zuidema 2020). The first layer comes first.

    Raises UserError for cross-attention and for causal attention, where the first tokens win by being in all rows.
    """
    if not maps:
        raise UserError("expected the maps of an encoder's layers, the first layer first, got none")
    rolled_QK = torch.eye(len(maps[0].keys), dtype=maps[0].weights.dtype)
    for layer, map in enumerate(maps):
        if not map.same:
            raise UserError(
                f"rollout is for encoders only, layer {layer} is cross-attention; leave it out"
            )
        if len(map.keys) > 1 and not bool((map.allowed & (map.ahead > 0)).any()):
            raise UserError(
                f"rollout is for encoders only, layer {layer} is causal: the first tokens would win whatever it learned"
            )
        if map.weights.shape[1:] != rolled_QK.shape:
            raise UserError(
                f"expected maps of one encoder, {tuple(rolled_QK.shape)} each, got {tuple(map.weights.shape[1:])} in "
                f"layer {layer}"
            )
        mixed_QK = (map.weights.mean(0) + torch.eye(len(map.keys), dtype=map.weights.dtype)) / 2
        rolled_QK = (mixed_QK / mixed_QK.sum(-1, keepdim=True)) @ rolled_QK
    return rolled_QK


@torch.no_grad()
def divergence(p: Float[Tensor, "H Q K"], q: Float[Tensor, "G Q K"]) -> Float[Tensor, "H G"]:
    """Jensen-Shannon divergence, in nats, of each head of one map from each of another: 0 to ln 2, mean over queries.

    Queries without keys are left out; NaN where there are no others. Raises UserError for maps of different shapes.
    """
    if p.shape[1:] != q.shape[1:]:
        raise UserError(
            f"expected maps of the same queries and keys, got {tuple(p.shape[1:])} and {tuple(q.shape[1:])}; "
            "give both models the same input"
        )
    rows_Q = (p.sum((0, -1)) > 0) & (q.sum((0, -1)) > 0)
    p, q = p[:, rows_Q].double(), q[:, rows_Q].double()
    own_GQ = torch.special.entr(q).sum(-1)
    of_heads = []
    for one_QK in p:  # one head against all of the other's at a time, to bound the memory
        between_GQ = torch.special.entr((one_QK + q) / 2).sum(-1)
        of_heads.append(
            (between_GQ - (torch.special.entr(one_QK).sum(-1) + own_GQ) / 2).clamp_min(0).mean(-1)
        )
    return torch.stack(of_heads)


@dataclass(frozen=True)
class Matching:
    """Which head of one model goes with which of another, and the mean divergence of the pairs."""

    pairs: list[tuple[int, int]]
    distance: float


def match_heads(divergence: Float[Tensor, "H G"]) -> Matching:
    """The pairs of heads with the least divergence in all; exact (scipy's `linear_sum_assignment`).

    A difference between models means something only beside that of two seeds of the same model.
    Of different numbers of heads, those left over stay alone. Raises UserError for NaN and infinity.
    """
    from scipy.optimize import linear_sum_assignment

    if not bool(divergence.isfinite().all()):
        raise UserError(
            "heads can be matched by finite divergences only; leave maps without any keys out"
        )
    cost_HG = divergence.detach().double().cpu().numpy()
    heads, others = linear_sum_assignment(cost_HG)
    distance = cost_HG[heads, others].sum() / max(1, len(heads))
    pairs = zip(heads.tolist(), others.tolist(), strict=True)
    return Matching(list(pairs), float(distance))


# Alignment -----------------------------------------------------------------------------------------------------------

Link = tuple[int, int]


def alignment(weights: Float[Tensor, "Q K"]) -> list[Link]:
    """Each query with the key it weighs most; none for a query without keys."""
    rows = zip(weights.sum(-1).tolist(), weights.argmax(-1).tolist(), strict=True)
    return [(query, key) for query, (total, key) in enumerate(rows) if total > 0]


def alignment_error_rate(
    weights: Float[Tensor, "Q K"], sure: Collection[Link], possible: Collection[Link]
) -> float:
    """`1 - (|A and S| + |A and P|) / (|A| + |S|)` of the links A in a map (Och & Ney 2003, equation 23); 0 is best.

    weights: a row for each target word that is written, a column for each source word, without first and last tokens.
    sure, possible: links (query, key); what is sure is possible as well.
    Raises UserError for links outside of the map, and where there are neither links nor sure ones.
    """
    rows, columns = weights.shape
    for query, key in (*sure, *possible):
        if not (0 <= query < rows and 0 <= key < columns):
            raise UserError(
                f"the map has {rows} target and {columns} source words, counted from 0, got the link {key}-{query} "
                "(source-target); cut first and last tokens off the map, and check that words and tokens are the same"
            )
    found, certain = set(alignment(weights)), set(sure)
    if not found and not certain:
        raise UserError("there is nothing to compare: no query has a key, and no link is sure")
    allowed = certain | set(possible)
    return 1 - (len(found & certain) + len(found & allowed)) / (len(found) + len(certain))


def pharaoh(line: str) -> list[Link]:
    """Links written as `0-0 1-2`, source word and target word counted from 0, as (query, key): (target, source).

    Raises UserError for anything else.
    """
    links = []
    for number, written in enumerate(line.split()):
        read = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", written)
        if read is None:
            raise UserError(
                f"expected links such as 0-0 1-2, source word and target word counted from 0, got {written!r} as link "
                f"{number + 1}; possible links go on a line of their own"
            )
        links.append((int(read[2]), int(read[1])))
    return links


# Digit places --------------------------------------------------------------------------------------------------------

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
    signs = [(i, token) for i, token in enumerate(tokens) if token in CHARACTERS]
    read = re.fullmatch(
        r"([0-9]+)([+-])([0-9]+)(?:(=)([0-9+=-]*))?", "".join(token for _, token in signs)
    )
    joined = any(
        len(token) > 1 and token[0] != "<" and not CHARACTERS.isdisjoint(token) for token in tokens
    )
    if read is None or joined:
        raise UserError(
            f"expected an expression such as 21+211 or 21+211=232, a token for each character, got {list(tokens)}"
        )
    left, operator, right, equals, answer = read.groups("")
    of_text = [Place("left", place) for place in reversed(range(len(left)))]
    of_text.append(Place("operator"))
    of_text += [Place("right", place) for place in reversed(range(len(right)))]
    of_text += [Place("equals")] * len(equals)
    of_text += _answer_places(answer, _carries(left, operator, right), ones_first)
    places = [Place("other")] * len(tokens)
    for (i, _), place in zip(signs, of_text, strict=True):
        places[i] = place
    return places


def _answer_places(answer: str, carries: list[bool], ones_first: bool) -> list[Place]:
    digits = sum(character.isdecimal() for character in answer)
    order = iter(range(digits) if ones_first else reversed(range(digits)))
    places = []
    for character in answer:
        if not character.isdecimal():
            places.append(Place("equals" if character == "=" else "sign"))
            continue
        place = next(order)
        places.append(Place("answer", place, carries[place] if place < len(carries) else False))
    return places


def _carries(left: str, operator: str, right: str) -> list[bool]:
    """For each place, whether something is carried into it; one place more than the longer operand has."""
    width = max(len(left), len(right))
    larger, smaller = left.zfill(width), right.zfill(width)
    if operator == "-" and larger < smaller:  # the answer is the other difference with a sign
        larger, smaller = smaller, larger
    carries = [False]
    for a, b in zip(reversed(larger), reversed(smaller), strict=True):
        into = carries[-1]
        carries.append(int(a) + int(b) + into > 9 if operator == "+" else int(a) < int(b) + into)
    return carries


def place_share(map: Map, queries: Sequence[Place], keys: Sequence[Place]) -> Scored:
    """The weight that a digit puts on the operands' digits of its own place, itself left out; mean over the digits that
    may look at one.

    queries, keys: what each row and column stands for. In attention to a source, a row stands for what is written at
    it, so that the first row of `<s> 2 3 2` is the place of the first digit.
    Raises UserError where they are not as many as the map's.
    """
    if (len(queries), len(keys)) != (len(map.queries), len(map.keys)):
        raise UserError(
            f"expected {len(map.queries)} and {len(map.keys)} places, one for each query and key of the map, "
            f"got {len(queries)} and {len(keys)}"
        )
    q = torch.tensor([-1 if p.place is None else p.place for p in queries]).unsqueeze(-1)
    k = torch.tensor(
        [-2 if p.place is None or p.part not in ("left", "right") else p.place for p in keys]
    )
    target_QK = q == k
    if map.same:
        target_QK = target_QK & (map.ahead != 0)
    return beside_even(mass(lambda _: target_QK))(map)
