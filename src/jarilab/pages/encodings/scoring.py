"""Drawings of what an encoding adds to scores and to outputs."""

from __future__ import annotations

import numpy as np

from jarilab.core.shapes import Float, Tensor
from jarilab.pages.encodings.drawn_encoding import DrawnEncoding
from jarilab.pages.encodings.encoding_parts import (
    DISTANCE,
    LARGEST_MAP,
    NOTHING,
    array,
    both,
    eventful,
    heads,
    heat_map,
    pair_map,
    relative,
)
from jarilab.pages.encodings.heatmaps import HeatMap
from jarilab.pages.encodings.svg import Drawing, Words
from jarilab.positions.coordinates import Positions

UP: Words = ("added to the score", "점수에 더해지는 값")


def biases(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """The bias of each distance in each head, and of each pair of positions."""
    title = ("Bias against distance", "거리에 따른 편향")
    caption = (
        "The number that each head adds to the score of a key at this distance.",
        "이 거리에 있는 키의 점수에 각 헤드가 더하는 값입니다.",
    )
    of_pairs = ("Bias of all pairs of positions", "모든 위치 쌍의 편향")
    return _both_ways(subject, hook, title, caption, of_pairs, NOTHING)


def terms(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """The content-dependent term of the score, for one random query."""
    title = ("Added to the score against distance", "거리에 따라 점수에 더해지는 값")
    caption = (
        "Divided by √d like q·k, for one random query, the same at all positions. It depends on the query. "
        "Flat ends are distances that it does not distinguish.",
        "무작위로 뽑은 하나의 쿼리(모든 위치에서 같음)에 대해 q·k처럼 √d로 나눈 값입니다. 쿼리에 따라 "
        "달라지며, 평평한 끝은 구별하지 않는 거리입니다.",
    )
    of_pairs = ("The same for all pairs of positions", "모든 위치 쌍에 대해")
    same = ("The same query at every position.", "모든 위치에서 같은 쿼리입니다.")
    return _both_ways(subject, hook, title, caption, of_pairs, same)


def values(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """The vector added to the output, for a key at each distance."""
    positions, query = subject.around()
    one = positions.slice(query, query + 1)
    added_HKE = array(subject.values(one, positions))
    which, number = heads(added_HKE, 1)[0]
    title = (f"Added to the output, {which[0]}", f"출력에 더해지는 값, {which[1]}")
    caption = (
        "Each column is the vector added to the output if the key at this distance has all the weight. "
        "It stays the same beyond the drawing.",
        "한 열은 이 거리의 키 하나가 가중치를 모두 가질 때 출력에 더해지는 벡터입니다. "
        "그린 범위 밖에서는 달라지지 않습니다.",
    )
    shown, columns = _happening(added_HKE[number].T, query)
    component = ("component", "성분")
    drawn = HeatMap(shown, component, DISTANCE, (0, len(shown)), columns)
    return [heat_map(f"{hook}-vectors", title, caption, drawn)]


def _happening(values_EK: np.ndarray, query: int) -> tuple[np.ndarray, tuple[int, int]]:
    """The keys up to the distance beyond which nothing changes, and the range of distances."""
    distances = np.arange(values_EK.shape[1]) - query
    is_near = np.abs(distances) <= eventful(values_EK, distances)
    return values_EK[:, is_near], (int(distances[is_near][0]), int(distances[is_near][-1]) + 1)


def added(
    subject: DrawnEncoding, hook: str, q_pos: Positions, k_pos: Positions
) -> Float[Tensor, "H Q K"]:
    """The number that a hook adds to the scaled score."""
    summands = subject.summands(hook, q_pos, k_pos)
    part = summands.bias
    if hook == "terms":
        part = None if summands.terms is None else summands.scale * summands.terms
    zeros = summands.product.new_zeros(summands.product.shape)
    return zeros[0] if part is None else (zeros + part)[0]


def _both_ways(
    subject: DrawnEncoding, hook: str, title: Words, caption: Words, of_pairs: Words, same: Words
) -> list[Drawing]:
    positions, query = subject.around()
    one = positions.slice(query, query + 1)
    of_one_HK = added(subject, hook, one, positions)[:, 0]
    few = subject.line(_map_length(subject))
    all_HQK = array(added(subject, hook, few, few))
    scale = (
        "A row is a query, a column a key.",
        "행은 쿼리, 열은 키입니다.",
    )
    return [
        *relative(subject, f"{hook}-distance", title, caption, UP, of_one_HK),
        pair_map(subject, f"{hook}-map", of_pairs, both(scale, same), all_HQK),
    ]


def _map_length(subject: DrawnEncoding) -> int:
    """Positions of the map of all pairs."""
    farthest = subject.encoding.max_distance
    most = min(subject.length, LARGEST_MAP)
    return most if farthest is None else min(most, farthest + 1)
