"""Inputs of other libraries' models that have no values, no tokens or no visible key."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.core.errors import UserError


class Attention(nn.Module):
    def __init__(self, uses_softmax):
        super().__init__()
        self.linear, self.uses_softmax = nn.Linear(8, 8), uses_softmax

    def forward(self, x):
        y = self.linear(x).unsqueeze(1)
        if self.uses_softmax:
            return (y @ y.mT).softmax(-1) @ y
        return functional.scaled_dot_product_attention(y, y, y)


@pytest.fixture(params=[False, True])
def model(request):
    return Attention(request.param).eval()


def assert_unchanged(model):
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert torch._C._len_torch_function_stack() == 0


def test_tensors_without_values_are_refused(model):
    with pytest.raises(UserError, match="meta"), jarilab.record(model.to("meta")):
        model(torch.randn(1, 3, 8, device="meta"))
    assert_unchanged(model)


@pytest.mark.parametrize("shape", [(0, 3, 8), (1, 0, 8)])
def test_empty_input_has_an_empty_map(model, shape):
    with jarilab.record(model) as tape:
        output = model(torch.randn(shape))
    weights = tape.weights(tape.sites[0])
    assert weights.shape == (*output.shape[:3], output.shape[2])
    with pytest.raises(UserError, match="empty"):
        tape.trust(tape.sites[0])
    assert_unchanged(model)


def test_nan_weights_are_refused(model):
    nn.init.constant_(model.linear.weight, torch.nan)
    with jarilab.record(model) as tape:
        model(torch.randn(1, 3, 8))
    with pytest.raises(UserError, match="NaN"):
        tape.trust(tape.sites[0])
    assert_unchanged(model)


@pytest.mark.parametrize("sites", [[], None])
@pytest.mark.parametrize("use", [jarilab.show, jarilab.preview, jarilab.measure_heads])
def test_empty_tape_is_refused(model, sites, use):
    with jarilab.record(model, sites) as tape:
        if sites is None:
            with pytest.raises(UserError, match="empty"):
                use(tape)
        model(torch.randn(1, 3, 8))
    if sites == []:
        with pytest.raises(UserError, match="at least one site"):
            use(tape)
        with pytest.raises(UserError, match="empty"):
            tape.row(0)


def test_batch_without_inputs_names_no_row(model):
    with jarilab.record(model) as tape:
        model(torch.randn(0, 3, 8))
    with pytest.raises(UserError, match="has tokens"):
        tape.measures()
    with pytest.raises(UserError, match="one of 0 inputs"):
        tape.row(0)
