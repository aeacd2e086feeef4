"""Attentions written with keyword arguments, other names of functions, and outputs in place."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import jarilab


def of_keywords(q, k, v):
    k, v = torch.cat(tensors=[k, k], dim=2), torch.cat(tensors=(v, v), dim=2)
    q = q.movedim(source=1, destination=2).movedim(source=2, destination=1)
    weights = torch.softmax(dim=-1, input=torch.matmul(other=k.mT, input=q))
    return torch.matmul(other=v, input=weights), weights


def of_special(q, k, v):
    weights = torch.special.softmax(torch.linalg.matmul(q, k.mT), -1)
    return torch.linalg.matmul(weights, v), weights


def of_softmin(q, k, v):
    weights = functional.softmin(-(q @ k.mT), dim=-1)
    return weights @ v, weights


def in_place(q, k, v):
    weights = q @ k.mT
    torch.softmax(weights, -1, out=weights)
    return weights @ v, weights


class Attention(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.linear, self.attend = nn.Linear(8, 24), attend

    def forward(self, x):
        parts = self.linear(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        output, self.weights = self.attend(*parts)
        return output


@pytest.mark.parametrize("attend", [of_keywords, of_special, of_softmin, in_place])
@torch.no_grad()
def test_map_is_the_models_own(attend):
    model, x = Attention(attend).eval(), torch.randn(2, 5, 8)
    plain = model(x)
    with jarilab.record(model) as tape:
        output = model(x)
    assert torch.equal(output, plain)
    (site,) = tape.sites
    torch.testing.assert_close(tape.weights(site), model.weights)
    assert tape.trust(site).holds
    assert not tape.missing


@torch.no_grad()
def test_autocast_leaves_float64():
    model = Attention(lambda *parts: (functional.scaled_dot_product_attention(*parts), None))
    model.eval().double()
    with torch.autocast("cpu", dtype=torch.bfloat16), jarilab.record(model) as tape:
        model(torch.randn(2, 5, 8, dtype=torch.float64))
    assert tape.trust(tape.sites[0]).holds
