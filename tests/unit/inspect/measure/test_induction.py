"""Repeated blocks and the induction score, by hand."""

import pytest
import torch

from helpers.maps import causal, map_of
from jarilab.core.errors import UserError
from jarilab.inspect.measure.induction import induction_ids, induction_score
from jarilab.inspect.measure.measures import MEASURES


def test_induction_ids_repeat_a_random_block():
    ids = induction_ids(range(3, 40), 8, copies=3, first=1, seed=5)
    assert ids.shape == (1, 25)
    assert ids[0, 0] == 1
    blocks = ids[0, 1:].view(3, 8)
    assert torch.equal(blocks[0], blocks[1])
    assert torch.equal(blocks[0], blocks[2])
    assert len(blocks[0].unique()) == 8
    assert set(blocks[0].tolist()) <= set(range(3, 40))
    assert torch.equal(induction_ids(range(3, 40), 8, copies=3, first=1, seed=5), ids)
    assert not torch.equal(induction_ids(range(3, 40), 8, copies=3, first=1, seed=6), ids)


@pytest.mark.parametrize("first", [False, True])
def test_induction_score_is_one_for_an_induction_head_and_chance_for_even_weights(first):
    block, length = 4, 8 + first
    head = torch.zeros(length, length)
    head[:, 0] = 1
    for i in range(block + first, length):
        head[i] = torch.nn.functional.one_hot(torch.tensor(i - block + 1), length)
    allowed = causal(length)
    even = allowed.double() / allowed.sum(-1, keepdim=True)
    names = [str(number) for number in induction_ids(range(50), block, first=99 if first else None)[0].tolist()]
    map = map_of(torch.stack((head.double(), even)), allowed, names=names)
    scored = induction_score(map, block, first=first)
    wanted = sum(1 / (i + 1) for i in range(block + first, length)) / block
    assert scored.value.tolist() == pytest.approx([1.0, wanted])
    assert scored.chance.tolist() == pytest.approx([wanted, wanted])
    assert torch.equal(MEASURES["induction"].of(map).value, scored.value), "the same as on any other tokens"


def test_impossible_blocks_raise():
    with pytest.raises(UserError, match=r"2 to 5 different tokens, as many as there are to draw from, got block=6"):
        induction_ids(range(5), 6)
    with pytest.raises(UserError, match="a block and at least one copy of it, copies=2 or more, got copies=1"):
        induction_ids(range(5), 3, copies=1)
    message = "copies of a block of 3 tokens, got 7 queries and 7 keys; make the tokens with induction_ids"
    with pytest.raises(UserError, match=message):
        induction_score(map_of(torch.eye(7)), 3)
    with pytest.raises(UserError, match="expected a map of a sequence with itself"):
        induction_score(map_of(torch.eye(6), same=False), 3)
