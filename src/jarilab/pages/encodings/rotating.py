"""Drawings of a rotation: its pairs, their angles, and the dot product of rotated vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.pages.encodings.colours import css, is_dark, ranked
from jarilab.pages.encodings.drawn_encoding import DrawnEncoding
from jarilab.pages.encodings.encoding_parts import (
    POSITION,
    array,
    evenly,
    heads,
    heat_map,
    relative,
    rounded,
)
from jarilab.pages.encodings.heatmaps import WIDTH, HeatMap
from jarilab.pages.encodings.svg import Drawing, Number, Words, element, figure, line, text
from jarilab.positions.coordinates import Positions

CELLS = 16
"""Components in a row."""
CELL = (WIDTH - 40) / CELLS
FANS, FANS_IN_ROW, HANDS = 8, 4, 8
"""Pairs that are drawn as a fan, those of them in a row, and positions in each."""
RADIUS = 38


def drawings(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """The pairs, fans, angles and dot products."""
    positions = subject.line(subject.length)
    turning_pairs = turning(subject, positions)
    drawn = [pairs(subject, turning_pairs)]
    if turning_pairs.pairs:
        drawn += [_fans(turning_pairs), _angles(turning_pairs)]
    return [*drawn, *_products(subject, hook)]


def pairs(subject: DrawnEncoding, turning_pairs: Turning) -> Drawing:
    """A cell for each component of a head, with the number of its pair."""
    width, groups = subject.site.d_head, turning_pairs.groups
    group_of = {}
    for number, group in enumerate(groups):
        group_of |= dict.fromkeys(group, number)
    parts = []
    for component in range(width):
        row, column = divmod(component, CELLS)
        x = 36 + column * CELL
        y = 16 + row * (CELL + 4)
        if column == 0:
            last = min(component + CELLS, width) - 1
            parts.append(text(32, y + CELL / 2 + 4, f"{component}–{last}", "end small"))
        parts.append(_cell(x, y, group_of.get(component), len(groups)))
    title = ("Components of a head and their pairs", "헤드의 성분과 쌍")
    caption = (
        "Cells with the same number and colour rotate together. Cells without a number do not change.",
        "번호와 색이 같은 칸은 함께 회전하고, 번호가 없는 칸은 그대로입니다.",
    )
    rows = math.ceil(width / CELLS)
    height = 16 + rows * (CELL + 4) + 4
    data = {"components": width, "groups": [list(group) for group in groups]}
    return Drawing("rotate-pairs", title, caption, WIDTH, height, "".join(parts), data)


def _cell(x: Number, y: Number, group: int | None, groups: int) -> str:
    box = {"x": x, "y": y, "width": CELL - 1, "height": CELL}
    if group is None:
        return element("rect", {**box, "kind": "still"})
    colour = ranked(group, groups)
    shade = "on-dark" if is_dark(colour) else "on-light"
    number = text(x + CELL / 2, y + CELL / 2 + 4, str(group), f"middle {shade}")
    return element("rect", {**box, "fill": css(colour)}) + number


def _fans(turning_pairs: Turning) -> Drawing:
    chosen = evenly(len(turning_pairs.pairs), FANS)
    parts, fans = [], []
    for place, number in enumerate(chosen):
        pair = turning_pairs.pairs[number]
        angles_L = turning_pairs.angles[pair][0, :HANDS].tolist()
        row, column = divmod(place, FANS_IN_ROW)
        x = 52 + column * 105
        y = 60 + row * 118
        name = (f"pair {number}", f"쌍 {number}")
        parts.append(_fan(x, y, angles_L))
        parts.append(text(x, y - RADIUS - 8, name, "middle"))
        parts.append(text(x, y + RADIUS + 15, _turn_of(pair, angles_L), "middle small"))
        fans.append({"pair": list(pair), "angles": rounded(np.array(angles_L))})
    positions = turning_pairs.angles[turning_pairs.pairs[0]].shape[-1]
    count = min(HANDS, positions)
    title = (
        f"Rotation of the pairs from position 0 to {count - 1}",
        f"위치 0부터 {count - 1}까지 쌍의 회전",
    )
    caption = (
        "The thick hand is position 0; paler hands are later positions. Below each pair: its two components "
        "and the angle from position 0 to 1.",
        "굵은 바늘이 위치 0이고, 옅을수록 뒤의 위치입니다. 아래는 두 성분과 위치 0에서 1까지의 각도입니다.",
    )
    rows = math.ceil(len(chosen) / FANS_IN_ROW)
    height = 118 * rows + 4
    return Drawing("rotate-fans", title, caption, WIDTH, height, "".join(parts), {"fans": fans})


def _turn_of(pair: tuple[int, ...], angles_L: list[float]) -> str:
    """The components of a pair, and its angle from position 0 to 1 in degrees."""
    degrees = math.degrees(angles_L[1] - angles_L[0]) if len(angles_L) > 1 else 0.0
    short = float(f"{degrees:.3g}")
    first, second = pair
    return f"{first}, {second}: {figure(short)}°"


def _fan(x: Number, y: Number, angles: list[Number]) -> str:
    parts = [element("circle", {"cx": x, "cy": y, "r": RADIUS, "kind": "frame"})]
    for place in reversed(range(len(angles))):  # the first position lies on top
        # As in a textbook: angles grow against the clock, from the right.
        across, up = math.cos(angles[place]), math.sin(angles[place])
        end = x + RADIUS * across, y - RADIUS * up
        opacity = 1 - 0.8 * place / HANDS
        tone, hand = ("t0", "hand") if place else ("t1", "hand first")
        drawn = line((x, y), end, hand)
        parts.append(element("g", {"opacity": opacity, "kind": tone}, drawn))
    return "".join(parts)


def _angles(turning_pairs: Turning) -> Drawing:
    all_HFL = np.stack([array(turning_pairs.angles[pair]) for pair in turning_pairs.pairs], 1)
    which, number = heads(all_HFL, 1)[0]
    shown = np.cos(all_HFL[number])
    title = (f"Cosine of each pair's angle, {which[0]}", f"각 쌍의 각도의 코사인, {which[1]}")
    caption = (
        "Each row is a pair. Fast pairs rotate several times within the length, slow pairs hardly at all.",
        "한 행이 한 쌍입니다. 빠른 쌍은 길이 안에서 여러 번 돌고, 느린 쌍은 거의 움직이지 않습니다.",
    )
    drawn = HeatMap(shown, ("pair", "쌍"), POSITION, (0, len(shown)), (0, shown.shape[1]))
    return heat_map("rotate-angles", title, caption, drawn)


def _products(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    positions, query = subject.around()
    one = positions.slice(query, query + 1)
    summands = subject.summands(hook, one, positions, ones=True)
    product_HK = summands.product[0, :, 0] / subject.site.d_head
    title = ("q·k against distance, after the rotation", "회전 뒤 거리에 따른 q·k")
    caption: Words = (
        "Query and key are all ones. Divided by their product at the same place: the mean over the pairs of "
        "the cosine of their angle.",
        "성분이 모두 1인 쿼리와 키에 대해, 같은 위치에서의 곱으로 나눈 값: 쌍마다 벌어진 각도의 코사인의 "
        "평균입니다.",
    )
    up = ("q·k", "q·k")
    return relative(subject, f"{hook}-products", title, caption, up, product_HK)


NOTHING = 1e-9
"""Tolerance below which a component counts as zero."""


@dataclass(frozen=True, eq=False)
class Turning:
    """The effect of `rotate` at some positions.

    groups: components that are mixed with each other, ordered by the first. Unchanged components are in no group.
    angles: the angle of each group of two at each position in each head, in radians from -pi to pi.
    """

    groups: Sequence[tuple[int, ...]]
    angles: dict[tuple[int, ...], Float[Tensor, "H L"]]

    @property
    def pairs(self) -> list[tuple[int, ...]]:
        """The groups of two."""
        return list(self.angles)


def turning(subject: DrawnEncoding, positions: Positions) -> Turning:
    """The effect of `rotate` at these positions, measured by rotating the unit vector of every component."""
    width = subject.site.d_head
    mixed_EE = torch.zeros(width, width, dtype=torch.bool)
    changed_E = torch.zeros(width, dtype=torch.bool)
    for component in range(width):
        turned_HLE = subject.turned(positions, component)
        mixed_EE[component] = turned_HLE.abs().amax((0, 1)) > NOTHING
        away_HL = (turned_HLE[..., component] - 1).abs()
        changed_E[component] = away_HL.max() > NOTHING
    mixed_EE |= mixed_EE.T.clone()  # a copy, since the transpose shares the memory that is written
    groups = [group for group in _groups(mixed_EE) if bool(changed_E[list(group)].any())]
    pairs = [group for group in groups if len(group) == 2]
    return Turning(groups, {pair: _angle(subject, positions, *pair) for pair in pairs})


def _angle(subject: DrawnEncoding, positions: Positions, first: int, second: int) -> Tensor:
    turned_HLE = subject.turned(positions, first)
    return torch.atan2(turned_HLE[..., second], turned_HLE[..., first])


def _groups(mixed_EE: Bool[Tensor, "E E"]) -> list[tuple[int, ...]]:
    """The connected components of a graph."""
    from scipy.sparse.csgraph import connected_components

    count, numbers = connected_components(mixed_EE.numpy(), directed=False)
    return [tuple(np.flatnonzero(numbers == number).tolist()) for number in range(count)]
