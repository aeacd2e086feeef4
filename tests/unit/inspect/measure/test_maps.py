"""Rollout, by hand."""

import pytest
import torch

from helpers.maps import causal, map_of
from jarilab.core.errors import UserError
from jarilab.inspect.measure.maps import rollout


def test_rollout_of_two_layers_by_hand():
    swap, even = torch.tensor([[0.0, 1], [1, 0]]), torch.full((2, 2), 0.5)
    first = map_of(torch.stack((swap, torch.eye(2))))  # on the mean of heads: half itself, half the other
    assert torch.equal(rollout([first]), torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double())
    layers = [map_of(swap), map_of([[1.0, 0], [0.5, 0.5]])]
    # ((A_2 + I) / 2) ((A_1 + I) / 2) = [[1, 0], [1/4, 3/4]] [[1/2, 1/2], [1/2, 1/2]]
    torch.testing.assert_close(rollout(layers), even.double())
    backwards = rollout(layers[::-1])
    torch.testing.assert_close(backwards, torch.tensor([[0.625, 0.375], [0.625, 0.375]]).double())


def test_rollout_is_for_encoders():
    with pytest.raises(UserError, match="rollout is for encoders only, layer 1 is causal"):
        rollout([map_of(torch.eye(3)), map_of(torch.eye(3), causal(3))])
    with pytest.raises(UserError, match="rollout is for encoders only, layer 0 is cross-attention; omit it"):
        rollout([map_of(torch.eye(3), same=False)])
    with pytest.raises(UserError, match="expected the maps of an encoder's layers, the first layer first, got none"):
        rollout([])
    with pytest.raises(UserError, match=r"maps of one encoder, \(3, 3\) each, got \(2, 2\) in layer 1"):
        rollout([map_of(torch.eye(3)), map_of(torch.eye(2))])
    assert rollout([map_of([[1.0]])]).tolist() == [[1.0]]
