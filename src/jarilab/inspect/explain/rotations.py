"""Which components of queries and keys an encoding's rotation turns together."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import Encoding
from jarilab.positions.coordinates import Positions


def turned_together(
    encoding: Encoding, places: Positions, q: Float[Tensor, "B H Q E"], head: int
) -> dict[str, list[int]]:
    """The components of a head that the encoding's rotation mixes with one another, by name.

    Found by turning the unit vectors to the place 1, so that every encoding that rotates is understood. A pair's name
    says in how many places it comes round; components that stay as they are come last, together.
    """
    turned_EE = _unit_vectors_turned(encoding, places, q, head)
    named: dict[str, list[int]] = {}
    still = []
    for group in _groups((turned_EE != 0) | (turned_EE != 0).t()):
        if len(group) < 2:
            still += group
            continue
        name = f"components {', '.join(str(component) for component in group)}"
        if len(group) == 2 and len(places.axes) == 1:
            places_of_a_turn = _places_of_a_turn(turned_EE, group)
            name = f"pair {len(named)}, a turn in {places_of_a_turn:.4g}"
        named[name] = group
    if still:
        named["not turned"] = still
    return named


def _unit_vectors_turned(
    encoding: Encoding, places: Positions, q: Tensor, head: int
) -> Float[Tensor, "E E"]:
    """What becomes of each unit vector at the place 1."""
    first = places.coordinates.reshape(-1, len(places.axes))[:1]
    one = replace(
        places,
        coordinates=torch.ones_like(first),
        order=torch.zeros_like(places.order[:1]),
        unplaced=None,
        relations=None,
    )
    width = q.shape[3]
    units = torch.eye(width, dtype=q.dtype, device=q.device)
    units = units.view(width, 1, 1, width)
    of_heads = units.expand(-1, q.shape[1], -1, -1)
    turned = encoding.rotate(of_heads, encoding.rotation_for(one, "query", one))
    return turned[:, head, 0]


def _groups(reached: Bool[Tensor, "E E"]) -> list[list[int]]:
    """Until nothing new is reached: two rotations one after the other may pair components differently."""
    while True:
        further = reached | (reached.float() @ reached.float() > 0)
        if torch.equal(reached, further):
            break
        reached = further
    groups = [tuple(row.nonzero().flatten().tolist()) for row in reached]
    return [list(group) for group in dict.fromkeys(groups)]


def _places_of_a_turn(turned_EE: Tensor, pair: list[int]) -> float:
    first, second = pair
    sine = abs(float(turned_EE[first, second]))
    cosine = float(turned_EE[first, first])
    return 2 * math.pi / math.atan2(sine, cosine)
