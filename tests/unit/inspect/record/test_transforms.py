"""Recording forwards under `torch.vmap` and the gradients of `torch.func`."""

import pytest
import torch
from torch import nn

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.intervene.interventions import HeadOff, operate

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


class Softmax(nn.Module):
    """An attention that computes its softmax itself."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def fused():
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)


TRANSFORMS = {
    "vmap": lambda f: torch.vmap(lambda y: f(y[None])[0]),
    "nested vmap": lambda f: lambda x: torch.vmap(torch.vmap(f))(x[:, None, None])[:, 0, 0],
    "inner axis": lambda f: lambda x: torch.vmap(lambda y: f(y[None])[0], in_dims=1)(x.transpose(0, 1).contiguous()),
    "grad": lambda f: torch.func.grad(lambda y: f(y).square().sum()),
    "grad per sample": lambda f: torch.vmap(torch.func.grad(lambda y: f(y[None]).sum())),
    "jacrev": lambda f: torch.func.jacrev(lambda y: f(y).sum((1, 2))),
    "functional_call": lambda f: lambda x: torch.func.functional_call(f, dict(f.named_parameters()), (x,)),
}


@pytest.mark.parametrize("build", [fused, Softmax])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_maps_under_a_transform_equal_those_of_the_batch(name, build):
    model, x = build().eval(), torch.randn(3, 5, 16)
    call = TRANSFORMS[name](model)
    expected = call(x)
    with jarilab.record(model) as plain:
        model(x)
    with jarilab.record(model) as tape:
        output = call(x)
    (site,) = tape.sites
    assert torch.equal(output, expected)
    assert tape.weights(site).shape == (3, 2, 5, 5)
    assert torch.allclose(tape.weights(site), plain.weights(site), atol=1e-6)
    assert tape.trust(site).rebuild_error < 1e-6


def test_mask_shared_by_all_inputs_is_recorded_under_vmap():
    model, x = fused().eval(), torch.randn(3, 5, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with jarilab.record(model) as tape:
        torch.vmap(lambda y: model(y[None], mask)[0])(x)
    weights = tape.weights(tape.sites[0])
    assert weights.shape == (3, 2, 5, 5)
    assert weights.triu(1).abs().max() == 0


def test_edit_under_a_transform_raises():
    model, x = fused().eval(), torch.randn(3, 5, 16)
    with pytest.raises(UserError, match="vmap"), operate(model, [HeadOff("self_attn", 1)]):
        torch.vmap(lambda y: model(y[None])[0])(x)
