"""The pairs of components that a rotation turns, and their angles, measured by rotating unit vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.pages.encodings.drawn_encoding import DrawnEncoding
from jarilab.positions.coordinates import Positions

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
    left = set(range(len(mixed_EE)))
    groups = []
    while left:
        group, new = set[int](), {min(left)}
        while new:
            group |= new
            reached = {i for one in new for i in mixed_EE[one].nonzero().flatten().tolist()}
            new = reached - group
        left -= group
        groups.append(tuple(sorted(group)))
    return groups
