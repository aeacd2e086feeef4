"""Caches of keys and values: their order, their positions, and the selection of rows."""

import torch

from jarilab.attention.cache import KVCache, LayerCache
from jarilab.positions.coordinates import Positions


def test_a_cache_gives_back_all_keys_in_order_however_they_came():
    cache, keys, values = LayerCache(), torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 5)
    for start, stop in ((0, 1), (1, 2), (2, 7), (7, 9)):
        k, v = cache.append(keys[:, :, start:stop], values[:, :, start:stop])
        assert torch.equal(k, keys[:, :, :stop])
        assert torch.equal(v, values[:, :, :stop])
    assert cache.length == 9


def test_a_cache_keeps_the_positions_of_its_keys():
    cache = KVCache(1)
    cache.extend(Positions.sequence(3, 40))
    assert cache.extend(Positions.sequence(1, 77)).index().tolist() == [40, 41, 42, 77]
    assert cache.positions.order.tolist() == [40, 41, 42, 77]


def test_selecting_leaves_what_was_handed_out_as_it_is():
    cache = LayerCache()
    k, _ = cache.append(torch.randn(3, 1, 2, 4), torch.randn(3, 1, 2, 4))
    before = k.clone()
    cache.select(torch.tensor([2, 2, 0, 1]))
    cache.append(torch.randn(4, 1, 1, 4), torch.randn(4, 1, 1, 4))
    assert torch.equal(k, before)
    assert torch.equal(cache.filled()[0][:, :, :2], before[[2, 2, 0, 1]])


def test_selections_follow_each_other_before_the_next_key():
    cache, keys = LayerCache(), torch.randn(3, 1, 2, 4, requires_grad=True)
    cache.append(keys, keys)
    cache.select(torch.tensor([2, 0, 1, 1]))
    cache.select(torch.tensor([3, 0]))
    assert cache.rows == 2
    new = torch.randn(2, 1, 1, 4)
    k, _ = cache.append(new, new)
    assert torch.equal(k, torch.cat((keys[[1, 2]], new), 2))
    assert k.is_contiguous(), "bfloat16 products copy keys with gaps"
    k.sum().backward()
    assert keys.grad[:, 0, 0, 0].tolist() == [0, 1, 1]


def test_selected_rows_keep_their_own_positions():
    cache = KVCache(1)
    index_BL1 = torch.tensor([[3, 4], [50, 51], [7, 9]]).unsqueeze(-1)
    cache.extend(Positions(index_BL1, torch.arange(2)))
    cache.target[0].append(torch.randn(3, 1, 2, 4), torch.randn(3, 1, 2, 4))
    cache.select(torch.tensor([2, 0, 0]))
    assert cache.positions.index().tolist() == [[7, 9], [3, 4], [3, 4]]
    later = Positions(torch.tensor([[10], [5], [6]]).unsqueeze(-1), torch.arange(2, 3))
    assert cache.extend(later).index().tolist() == [[7, 9, 10], [3, 4, 5], [3, 4, 6]]
