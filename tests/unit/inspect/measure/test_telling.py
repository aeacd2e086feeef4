"""How much there is to say of a head."""

import pytest
import torch

from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.telling import above_chance


def test_a_head_that_does_one_thing_is_far_from_chance_and_an_even_one_is_not() -> None:
    length = 5
    before = torch.eye(length, dtype=torch.float64).roll(-1, 1)
    before[0] = 1 / length
    even = torch.full((length, length), 1 / length, dtype=torch.float64)
    weights = torch.stack([even, before])
    order = torch.arange(length)
    place = order.unsqueeze(-1).double()
    names = list("abcde")
    allowed = torch.ones(length, length, dtype=torch.bool)
    shown = Map(weights, torch.zeros_like(weights), allowed, names, names, place, place, order, order, True)
    nothing, much = above_chance(shown).tolist()
    assert nothing == pytest.approx(0, abs=1e-12)
    assert much == pytest.approx(1 - 1 / length), "all weight on the token before, where chance is a fifth"
