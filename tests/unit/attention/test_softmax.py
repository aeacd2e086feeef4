"""Softmax over few keys is softmax, forward and backward, whatever way is the fastest."""

import pytest
import torch

from jarilab.attention import softmax as module
from jarilab.attention.softmax import softmax

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 8e-3}


def scores_of(keys, dtype, queries=3):
    generator = torch.Generator().manual_seed(keys)
    scores = 3 * torch.randn(2, 2, queries, keys, generator=generator, dtype=torch.float64)
    scores[0, 0, 0, 1:] = -torch.inf
    return scores.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("keys", [1, 7, 15, 16, 17, 31, 32, 47, 48, 50, 63, 64, 80])
def test_output_and_gradient_are_those_in_float64(keys, dtype):
    scores = scores_of(keys, dtype)
    direction = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    precise = scores.detach().double().requires_grad_()
    found, expected = softmax(scores), precise.softmax(-1)
    found.backward(direction)
    expected.backward(direction.double())
    assert found.dtype is scores.grad.dtype is dtype
    torch.testing.assert_close(found.double(), expected, atol=BOUNDS[dtype], rtol=0)
    torch.testing.assert_close(scores.grad.double(), precise.grad, atol=2 * BOUNDS[dtype], rtol=0)


def test_it_goes_by_float32_where_most_of_a_vector_would_be_left():
    def way(keys, dtype=torch.bfloat16, queries=3):
        return softmax(scores_of(keys, dtype, queries)).grad_fn.name()

    own = module._SoftmaxInFloat32.__name__ + "Backward"
    assert [keys for keys in range(1, 130) if way(keys) == own] == [*range(16, 32), *range(48, 64)]
    assert own not in (way(17, torch.float32), way(17, queries=1))
