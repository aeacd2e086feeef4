"""Edits of another library's model: several at once and their gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.intervene.interventions import HeadOff, Uniform, operate


def softmax(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


class Model(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.linear, self.out, self.attend = nn.Linear(8, 24), nn.Linear(8, 8), attend

    def forward(self, x):
        parts = self.linear(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(*parts).transpose(1, 2).flatten(2))


@pytest.fixture(params=[functional.scaled_dot_product_attention, softmax])
def model(request):
    return Model(request.param).eval()


def x():
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_edits_of_two_blocks_are_both_recorded(model):
    first, second = (operate(model, [HeadOff("attention", head)]) for head in (0, 1))
    with first, second, jarilab.record(model) as tape:
        model(x())
    assert not tape.weights("attention").any()
    assert tape.trust("attention").holds


@torch.no_grad()
def test_recorder_around_an_edit_sees_one_attention(model):
    with jarilab.record(model) as tape, operate(model, [HeadOff("attention", 0)]):
        model(x())
    assert len(tape.calls["attention"]) == 1
    torch.testing.assert_close(tape.weights("attention").sum(-1), torch.ones(2, 2, 5))


def test_head_off_keeps_the_gradient_of_other_heads(model):
    edited, expected = (x().requires_grad_() for _ in range(2))
    with operate(model, [HeadOff("attention", 1)]):
        model(edited).sum().backward()
    with torch.no_grad():
        model.out.weight[:, 4:] = 0.0  # the columns that read head 1
    model(expected).sum().backward()
    assert edited.grad.any()
    torch.testing.assert_close(edited.grad, expected.grad)


def test_gradient_of_changed_weights_is_refused(model):
    with operate(model, [Uniform("attention", 1)]):
        output = model(x().requires_grad_())
    with pytest.raises(UserError, match="no_grad"):
        output.sum().backward()


@torch.no_grad()
def test_no_tokens_have_nothing_to_edit(model):
    with operate(model, [HeadOff("attention", 0)]):
        assert model(torch.randn(2, 0, 8)).shape == (2, 0, 8)
