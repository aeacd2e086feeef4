import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.measure.link import heads_of_link

TOKENS = ["it", "saw", "the", "animal", "and", "it", "slept"]


def tape_of(logits):
    """Two heads whose scores are these numbers, `(2, 7, 7)`."""

    class Given(torch.nn.Module):
        def forward(self):
            q = torch.zeros(1, 2, 7, 4)
            v = torch.randn(1, 2, 7, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, q, v, logits[None])

    model = Given()
    with jarilab.record(model) as tape:
        model()
    return tape


def test_a_head_that_looks_there_alone_comes_before_those_that_always_do():
    logits = torch.zeros(2, 7, 7)
    logits[0, 5, 3] = 2.0  # this link alone
    logits[1, :, 3] = 6.0  # this key, whoever asks
    first, second = heads_of_link(tape_of(logits), TOKENS, TOKENS, "it", "animal")
    assert (first.head, second.head) == (0, 1)
    assert second.weight > first.weight
    assert first.weight == pytest.approx(torch.zeros(7).index_fill(0, torch.tensor(3), 2.0).softmax(0)[3].item())
    assert first.usual == pytest.approx(1 / 7)
    assert second.usual == pytest.approx(second.weight)
    assert (first.row, first.column) == (5, 3)


def test_a_head_that_always_looks_two_back_has_no_more_for_this_link():
    logits = torch.zeros(2, 7, 7)
    logits[1].diagonal(-2).fill_(9.0)
    found = heads_of_link(tape_of(logits), TOKENS, TOKENS, "it", "animal")
    of_shift = next(one for one in found if one.head == 1)
    assert of_shift.weight > 0.99
    assert abs(of_shift.above) < 0.01


def test_a_token_that_is_not_there_and_a_link_that_is_hidden():
    logits = torch.zeros(2, 7, 7).masked_fill(torch.ones(7, 7).triu(1).bool(), -float("inf"))
    with pytest.raises(UserError, match="unknown token 'cat'"):
        heads_of_link(tape_of(logits), TOKENS, TOKENS, "cat", "animal")
    with pytest.raises(UserError, match=r"no attention of this model may look from 'animal' \(3\) to 'slept' \(6\)"):
        heads_of_link(tape_of(logits), TOKENS, TOKENS, "animal", "slept")
