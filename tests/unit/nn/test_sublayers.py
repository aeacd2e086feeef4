import math

import pytest
import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.nn.dropout import Dropout, dropout
from jarilab.nn.sublayers import FeedForward, Residual, TokenEmbedding

WIDTH = 8


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_rate_and_keeps_the_mean(rate):
    y = dropout(torch.ones(400_000), rate)
    assert (y == 0).double().mean().item() == pytest.approx(round(rate * 256) / 256, abs=4e-3)
    assert y.double().mean().item() == pytest.approx(1.0, abs=2e-2)
    assert y.unique().numel() == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_scales_the_other_elements_up(dtype):
    x = torch.rand(100_000).add(1).to(dtype)
    y = dropout(x, 0.1)
    nonzero = y != 0
    assert (y / x.double())[nonzero].mean().item() == pytest.approx(256 / (256 - 26), rel=3e-4)


def test_dropout_follows_the_global_generator():
    x = torch.randn(5, 7)

    def dropped(seed):
        torch.manual_seed(seed)
        return dropout(x, 0.5)

    assert torch.equal(dropped(1), dropped(1))
    assert not torch.equal(dropped(1), dropped(2))


def test_dropout_passes_no_gradient_through_zeroed_elements():
    x = torch.ones(1000, requires_grad=True)
    y = dropout(x, 0.25)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 0 < (x.grad == 0).sum() < 1000


def test_dropout_in_evaluation_is_the_identity():
    x = torch.randn(20)
    assert Dropout(0.5).eval()(x) is x
    assert dropout(x, 0.0) is x
    assert (Dropout(0.5).train()(x) == 0).any()


@pytest.mark.parametrize("rate", [-0.1, 1.0, 0.0001, 0.9999])
def test_a_rate_outside_1_to_255_bytes_is_refused(rate):
    with pytest.raises(UserError, match=f"dropout of 0, or from 1/256 to 255/256, got {rate:g}"):
        Dropout(rate)


def test_the_residual_connection_before_and_after_the_norm():
    x, double = torch.randn(2, 3, WIDTH), lambda y: 2 * y
    norm = nn.LayerNorm(WIDTH)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    for place, wanted in (("pre", x + 2 * norm(x)), ("post", norm(x + 2 * x))):
        residual = Residual(WIDTH, place)
        residual.norm.load_state_dict(norm.state_dict())
        torch.testing.assert_close(residual(x, double), wanted)


def test_dropout_of_the_residual_is_on_the_sublayer_only():
    x = torch.randn(2, 3, WIDTH)
    change = Residual(WIDTH, "pre", dropout=0.5).train()(x, torch.ones_like) - x
    assert sorted({round(c, 4) for c in change.flatten().tolist()}) == [0.0, 2.0]


def test_token_embeddings_are_scaled_by_the_root_of_the_width():
    embedding = TokenEmbedding(10, 16)
    ids = torch.tensor([[3, 9]])
    torch.testing.assert_close(embedding(ids)[0], 4.0 * embedding.weight[[3, 9]])


@pytest.mark.parametrize(
    ("activation", "function"),
    [("relu", lambda x: max(x, 0.0)), ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2)],
)
def test_feed_forward_is_two_linear_maps_with_the_activation_between(activation, function):
    layer, x = FeedForward(WIDTH, 12, activation), torch.randn(1, 2, WIDTH)
    between = layer.up(x).detach().apply_(function)
    torch.testing.assert_close(layer(x), layer.down(between))


def test_ids_outside_the_vocabulary_and_of_other_dtypes_are_refused(unchecked):
    embedding = TokenEmbedding(10, 16)
    assert embedding(torch.tensor([[0, 9]], dtype=torch.int32)).shape == (1, 2, 16)
    with pytest.raises(UserError, match=r"int64 or int32, got torch\.float32; convert"):
        embedding(torch.zeros(1, 2))
    for wrong in (-1, 10):
        with pytest.raises(UserError, match=rf"from 0 to 9, got {min(wrong, 3)} to {max(wrong, 3)}; build"):
            embedding(torch.tensor([[3, wrong]]))
