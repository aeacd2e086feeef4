"""Drawings of two-dimensional encodings: maps from the middle patch to all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jarilab.pages.encodings.drawn_encoding import DrawnEncoding
from jarilab.pages.encodings.encoding_parts import MOST_MAPS, array, evenly, heads, small_maps
from jarilab.pages.encodings.rotating import pairs, turning
from jarilab.pages.encodings.scoring import added
from jarilab.pages.encodings.svg import Drawing, Words
from jarilab.positions.coordinates import Positions


class Plane:
    """The positions of a square image and its middle patch."""

    def __init__(self, subject: DrawnEncoding):
        self.positions, self.side = subject.plane()
        self.middle = self.side // 2

    @property
    def patch(self) -> Positions:
        number = self.middle * self.side + self.middle
        return self.positions.slice(number, number + 1)

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """The last axis, of patches, as rows and columns."""
        return values.reshape(*values.shape[:-1], self.side, self.side)

    def draw(
        self,
        name: str,
        title: Words,
        caption: Words,
        maps: Sequence[tuple[Words, np.ndarray]],
        *,
        framed: bool = True,
    ) -> Drawing:
        """Small maps of the plane. framed: mark the middle patch."""
        size = (
            f"{title[0]}, {self.side} × {self.side} patches",
            f"{title[1]}, {self.side} × {self.side} 패치",
        )
        return small_maps(name, size, caption, maps, (self.middle, self.middle) if framed else None)


def adding(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """Some dimensions of the added vectors, and their dot products with the middle patch's."""
    plane = Plane(subject)
    added_LD = array(subject.added(hook, plane.positions))
    width = added_LD.shape[1]
    middle = added_LD[plane.middle * plane.side + plane.middle]
    dimensions = [
        ((f"dim {d}", f"차원 {d}"), plane.shaped(added_LD[:, d])) for d in evenly(width, MOST_MAPS)
    ]
    title = ("Some dimensions of what is added", "더해지는 값의 몇 개 차원")
    caption = (
        "Each map is one dimension over the rows and columns of the image.",
        "각 맵은 이미지의 행과 열에 걸친 한 차원입니다.",
    )
    alike = ("Dot product with the patch in the middle", "가운데 패치와의 내적")
    products = [(("dot product", "내적"), plane.shaped(added_LD @ middle))]
    framed = (
        "Similarity of the framed patch's vector to that of every other patch.",
        "테두리가 있는 패치의 벡터와 다른 모든 패치의 벡터가 얼마나 비슷한지.",
    )
    return [
        plane.draw(f"{hook}-plane-dimensions", title, caption, dimensions, framed=False),
        plane.draw(f"{hook}-plane-products", alike, framed, products),
    ]


def rotating(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """The pairs, their angles at every patch, and the dot product of rotated vectors."""
    plane = Plane(subject)
    turned_pairs = turning(subject, plane.positions)
    summands = subject.summands(hook, plane.patch, plane.positions, ones=True)
    product_HK = array(summands.product[0, :, 0]) / subject.site.d_head
    title = ("q·k with the patch in the middle, after the rotation", "회전 뒤 가운데 패치와의 q·k")
    caption = (
        "Query and key are all ones. Divided by their product at the same place.",
        "성분이 모두 1인 쿼리와 키에 대해, 같은 위치에서의 곱으로 나눈 값입니다.",
    )
    drawn = [pairs(subject, turned_pairs)]
    if turned_pairs.pairs:
        drawn.append(
            _turned(
                plane,
                turned_pairs.pairs,
                [array(turned_pairs.angles[p]) for p in turned_pairs.pairs],
            )
        )
    products = _of_heads(plane, product_HK)
    return [*drawn, plane.draw(f"{hook}-plane-products", title, caption, products)]


def _turned(
    plane: Plane, numbered: Sequence[tuple[int, ...]], angles: Sequence[np.ndarray]
) -> Drawing:
    which, head = heads(np.stack(angles, 1), 1)[0]
    title = (f"Cosine of each pair's angle, {which[0]}", f"각 쌍의 각도의 코사인, {which[1]}")
    caption = (
        "Horizontal stripes: the pair rotates with the row. Vertical: with the column. Slanted: with both.",
        "가로 줄무늬는 행에 따라, 세로 줄무늬는 열에 따라, 비스듬한 줄무늬는 둘 다에 따라 회전하는 쌍입니다.",
    )
    maps = [
        ((f"pair {number}", f"쌍 {number}"), plane.shaped(np.cos(angles[number][head])))
        for number in evenly(len(numbered), MOST_MAPS)
    ]
    return plane.draw("rotate-plane-angles", title, caption, maps, framed=False)


def scoring(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """The numbers added to the scores of a query in the middle, in each head."""
    plane = Plane(subject)
    of_heads = array(added(subject, hook, plane.patch, plane.positions)[:, 0])
    title = ("Added to the score of the patch in the middle", "가운데 패치의 점수에 더해지는 값")
    by_place = (
        "The query is the framed patch; each cell is a key.",
        "쿼리는 테두리가 있는 패치이고, 각 칸은 키입니다.",
    )
    by_content = (
        "A random query at the framed patch; each cell is a key. Divided by √d like q·k. It depends on the query.",
        "무작위로 뽑은 쿼리가 테두리가 있는 패치에 있고, 각 칸은 키입니다. q·k처럼 √d로 나눈 값이며 쿼리에 "
        "따라 달라집니다.",
    )
    caption = by_content if hook == "terms" else by_place
    return [plane.draw(f"{hook}-plane", title, caption, _of_heads(plane, of_heads))]


def values(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """Some components of the vectors added to the output, for a key at every patch."""
    plane = Plane(subject)
    added_HKE = array(subject.values(plane.patch, plane.positions))
    which, head = heads(added_HKE, 1)[0]
    title = (f"Added to the output, {which[0]}", f"출력에 더해지는 값, {which[1]}")
    caption = (
        "Components of the vector added to the output of the framed patch if one key has all the weight.",
        "키 하나가 가중치를 모두 가질 때 테두리가 있는 패치의 출력에 더해지는 벡터의 성분들입니다.",
    )
    width = added_HKE.shape[-1]
    maps = [
        ((f"component {e}", f"성분 {e}"), plane.shaped(added_HKE[head, :, e]))
        for e in evenly(width, MOST_MAPS)
    ]
    return [plane.draw(f"{hook}-plane-vectors", title, caption, maps)]


def _of_heads(plane: Plane, values_HK: np.ndarray) -> list[tuple[Words, np.ndarray]]:
    return [
        (words, plane.shaped(values_HK[number])) for words, number in heads(values_HK, MOST_MAPS)
    ]
