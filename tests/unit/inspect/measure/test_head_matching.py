"""The divergence of maps, and the matching of heads."""

import itertools
import math

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.inspect.measure.head_matching import divergence, match_heads


def test_divergence_of_known_rows():
    p = torch.tensor([[[1.0, 0], [1, 0]], [[0.5, 0.5], [0.5, 0.5]]])
    q = torch.tensor([[[0.0, 1], [1, 0]]])
    between = divergence(p, q)
    half = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)  # of (1, 0) and (1/2, 1/2)
    assert between.shape == (2, 1)
    assert between[:, 0].tolist() == pytest.approx([math.log(2) / 2, half])
    assert divergence(p, p).diagonal().tolist() == [0.0, 0.0]
    torch.testing.assert_close(divergence(q, p), between.t())
    assert divergence(torch.eye(3)[None], torch.eye(3).roll(1, 0)[None]).item() == pytest.approx(math.log(2))


def test_queries_without_keys_are_left_out():
    p = torch.tensor([[[1.0, 0], [0, 0]]])
    q = torch.tensor([[[0.0, 1], [0, 0]]])
    assert divergence(p, q).item() == pytest.approx(math.log(2))
    assert divergence(p * 0, q * 0).isnan().all()


def test_maps_of_different_shapes_raise(unchecked):
    message = r"the same queries and keys, got \(2, 3\) and \(3, 3\); give both models the same input"
    with pytest.raises(UserError, match=message):
        divergence(torch.rand(1, 2, 3), torch.rand(1, 3, 3))


@pytest.mark.parametrize(("heads", "others"), [(1, 1), (4, 4), (5, 5), (3, 6), (6, 3)])
def test_matching_is_the_best_of_all(heads, others):
    for seed in range(20):
        cost = torch.rand(heads, others, generator=torch.Generator().manual_seed(seed)).double()
        wide = cost if heads <= others else cost.t()
        orders = itertools.permutations(range(wide.shape[1]), len(wide))
        best = min(sum(wide[h, g].item() for h, g in enumerate(order)) for order in orders)
        matching = match_heads(cost)
        assert len({h for h, _ in matching.pairs}) == len({g for _, g in matching.pairs}) == len(wide)
        assert sum(cost[pair].item() for pair in matching.pairs) == pytest.approx(best)
        assert matching.distance == pytest.approx(best / len(wide))


def test_best_matching_may_omit_the_nearest_pair():
    matching = match_heads(torch.tensor([[0.1, 0.2], [0.2, 0.9]]))
    assert matching.pairs == [(0, 1), (1, 0)]
    assert matching.distance == pytest.approx(0.2)


def test_permuted_heads_are_matched():
    maps = torch.randn(16, 5, 5).softmax(-1)
    order = torch.randperm(16)
    matching = match_heads(divergence(maps, maps[order]))
    assert [order[g].item() for _, g in matching.pairs] == list(range(16))
    assert matching.distance == pytest.approx(0, abs=1e-12)
    with pytest.raises(UserError, match="expected finite divergences, got NaN or infinity; omit"):
        match_heads(torch.tensor([[math.nan]]))
