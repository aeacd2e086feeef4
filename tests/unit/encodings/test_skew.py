"""Rows of distances moved to rows of keys, and back, by the definition."""

import pytest
import torch

from jarilab.encodings.skew import skew, unskew


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (4, 1), (3, 4), (5, 2)])
def test_a_key_has_what_stands_at_its_distance(queries, keys):
    x_NQR = torch.randn(2, queries, keys + queries - 1, dtype=torch.float64, requires_grad=True)
    moved_NQK = skew(x_NQR, keys)
    assert moved_NQK.shape == (2, queries, keys)
    back_NQR = torch.zeros_like(x_NQR)
    for q in range(queries):
        for k in range(keys):
            assert torch.equal(moved_NQK[:, q, k], x_NQR[:, q, k - q + queries - 1])
            back_NQR[:, q, k - q + queries - 1] = moved_NQK[:, q, k].detach()
    assert torch.equal(unskew(moved_NQK.detach()), back_NQR)


def test_gradients_are_slopes():
    x_NQR = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: skew(x, 4), x_NQR)
    y_NQK = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unskew, y_NQK)
