"""How much there is to say of a head whose effect was not measured: its distance from chance."""

from __future__ import annotations

import torch

from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.measures import MEASURES

TELLING = ("previous", "duplicate", "induction", "sink", "self", "confidence")
"""Measures with a chance, from 0 to 1, by which a head is told apart."""


def above_chance(map: Map) -> Float[Tensor, " H"]:
    """How far the measure of `TELLING` that is farthest above its chance is above it; 0 where none is."""
    found = [torch.zeros(len(map.weights), dtype=torch.float64)]
    for name in TELLING:
        scored = MEASURES[name].of(map)
        found.append((scored.value - scored.chance).nan_to_num(0.0))
    return torch.stack(found).amax(0)
