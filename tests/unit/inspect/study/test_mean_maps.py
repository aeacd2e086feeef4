"""Mean maps against sums over lists of examples, cell by cell."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch

from helpers.head_maps import HEADS, head_maps
from jarilab.core.errors import UserError
from jarilab.inspect.study.example import Example
from jarilab.inspect.study.mean_maps import MeanMaps

SIZE = 4
LENGTHS = [(3, 3), (6, 6), (1, 1), (4, 4), (2, 2)]


def examples(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(4)
    for q, k in lengths:
        allowed = torch.ones(q, k, dtype=torch.bool).tril()
        allowed[0] = q != 4  # a query without keys
        yield torch.rand(6, q, k, generator=generator) * allowed, allowed


def accumulated(lengths=LENGTHS, size=SIZE, parts=(0, 2, 6)):
    maps = MeanMaps(HEADS, size)
    for index, (weights, allowed) in enumerate(examples(lengths)):
        for first, last in pairwise(parts):
            maps.add(Example(index, "", {}), [head_maps(weights[first:last], first, allowed=allowed)])
    return maps


def expected(alignment, lengths, size):
    """Lists of weights by cell."""
    cells = defaultdict(list)
    for weights, allowed in examples(lengths):
        _, q, k = weights.shape
        for i in range(q):
            for j in range(k):
                cell = {"left": (i, j), "right": (size + i - q, size + j - k), "offset": (j - i + size - 1,)}[alignment]
                limit = 2 * size - 1 if alignment == "offset" else size
                if allowed[i].any() and all(0 <= place < limit for place in cell):
                    cells[cell].append(weights[:, i, j])
    return cells


@pytest.mark.parametrize("alignment", ["left", "right", "offset"])
@pytest.mark.parametrize("lengths", [LENGTHS, [(3, 7), (5, 2), (1, 6)]])
@pytest.mark.parametrize("size", [1, 4, 9])
def test_means_are_divided_by_counts(alignment, lengths, size):
    maps, cells = accumulated(lengths, size).maps(alignment), expected(alignment, lengths, size)
    assert len(cells) > 0
    for cell in np.ndindex(maps.weights.shape[1:]):
        values, counts = maps.weights[(slice(None), *cell)], maps.counts[(slice(None), *cell)]
        assert counts.tolist() == [len(cells[cell])] * 6
        if cells[cell]:
            np.testing.assert_allclose(values, torch.stack(cells[cell]).double().mean(0), rtol=1e-6)
        else:
            assert np.isnan(values).all()


def test_rows():
    rows = accumulated([(3, 3), (2, 2)]).rows()
    left = accumulated([(3, 3), (2, 2)]).maps("left")
    mine = {(row["alignment"], row["query"]): row for row in rows if row["head"] == "L1H0"}
    assert list(mine) == [("left", 0), ("left", 1), ("left", 2), ("right", -3), ("right", -2), ("right", -1),
                          ("offset", None)]  # fmt: skip
    assert mine["left", 2]["first"] == 0
    assert mine["left", 2]["counts"] == [1, 1, 1]
    assert mine["left", 1]["counts"] == [2, 2, 1]
    assert mine["left", 1]["weights"] == pytest.approx(left.weights[3, 1, :3], abs=1e-6)
    assert (mine["right", -1]["first"], mine["right", -1]["counts"]) == (-3, [1, 2, 2])
    assert (mine["offset", None]["first"], mine["offset", None]["counts"]) == (-2, [1, 3, 5, 3, 1])


def test_state_continues_and_does_not_grow():
    through, first, second = accumulated(), accumulated(LENGTHS[:2]), MeanMaps(HEADS, SIZE)
    second.load(first.state())
    for index, (weights, allowed) in enumerate(list(examples())[2:]):
        second.add(Example(index, "", {}), [head_maps(weights, allowed=allowed)])
    sizes = [sum(array.nbytes for array in maps.state().values()) for maps in (through, first, second)]
    assert len({*sizes}) == 1
    assert second.rows() == through.rows()
    with pytest.raises(UserError, match="expected a size of 1 or more positions for mean maps, got 0"):
        MeanMaps(HEADS, 0)
