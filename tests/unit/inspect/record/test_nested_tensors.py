"""Recording attention of nested tensors, whose inputs have different lengths."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.intervene.interventions import HeadOff, operate

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
LENGTHS = (3, 5)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (each.contiguous().unflatten(-1, (2, 8)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return functional.scaled_dot_product_attention(q, k, v)


def batch(layout):
    rows = [torch.randn(length, 16) for length in LENGTHS]
    return rows, torch.nested.nested_tensor(rows, layout=layout)


@torch.no_grad()
def test_jagged_inputs_have_the_maps_of_each_input_alone():
    model = Fused().eval()
    rows, x = batch(torch.jagged)
    with jarilab.record(model) as tape:
        output = model(x)
    assert output.is_nested
    (site,) = tape.sites
    weights = tape.weights(site)
    assert weights.shape == (2, 2, 5, 5)
    assert tape.trust(site).rebuild_error < 1e-6
    assert tape.site(site).kind == "encoder"
    for index, row in enumerate(rows):
        with jarilab.record(model) as alone:
            model(row[None])
        n = len(row)
        assert torch.allclose(weights[index, :, :n, :n], alone.weights(site)[0], atol=1e-6)
        assert weights[index, :, n:].abs().sum() == weights[index, :, :, n:].abs().sum() == 0


@torch.no_grad()
def test_nested_queries_of_other_lengths_than_keys_are_recorded():
    class Cross(nn.Module):
        def forward(self, x, y):
            q, k = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (x, y))
            return functional.scaled_dot_product_attention(q, k, k)

    x = torch.nested.nested_tensor([torch.randn(n, 16) for n in (2, 4)], layout=torch.jagged)
    _, y = batch(torch.jagged)
    model = Cross()
    with jarilab.record(model) as tape:
        model(x, y)
    (site,) = tape.sites
    assert tape.weights(site).shape == (2, 2, 4, 5)
    assert tape.site(site).kind == "cross"
    assert tape.trust(site).rebuild_error < 1e-6


@torch.no_grad()
def test_edit_of_nested_tensors_raises():
    model = Fused().eval()
    x = batch(torch.jagged)[1]
    with jarilab.record(model) as tape:
        model(x)
    with pytest.raises(UserError, match="nested"), operate(model, [HeadOff(tape.sites[0], 1)]):
        model(x)


@pytest.mark.parametrize(
    "model",
    [
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
    ],
)
@torch.no_grad()
def test_nested_input_of_a_fused_layer_is_refused(model):
    model.eval()
    x = batch(torch.strided)[1]
    assert model(x).is_nested
    with pytest.raises(UserError, match="to_padded_tensor"), jarilab.record(model):
        model(x)
    assert not model._forward_pre_hooks
    assert model(x).is_nested


@torch.no_grad()
def test_softmax_of_nested_tensors_is_missing():
    class Softmax(nn.Module):
        def forward(self, x):
            return x.unflatten(-1, (2, 8)).softmax(-1)

    with pytest.raises(UserError, match="softmax on nested tensors"), jarilab.record(model := Softmax()):
        model(batch(torch.jagged)[1])
