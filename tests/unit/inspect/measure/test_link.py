import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.measure.link import heads_of_link

TOKENS = ["it", "saw", "the", "animal", "and", "it", "slept"]


def tape_of(logits):
    """A tape of two heads with these scores, `(2, 7, 7)`."""

    class Given(torch.nn.Module):
        def forward(self):
            q = torch.zeros(1, 2, 7, 4)
            v = torch.randn(1, 2, 7, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, q, v, logits[None])

    model = Given()
    with jarilab.record(model) as tape:
        model()
    return tape


def test_head_specific_to_a_link_ranks_first():
    logits = torch.zeros(2, 7, 7)
    logits[0, 5, 3] = 2.0  # this link only
    logits[1, :, 3] = 6.0  # this key, from all queries
    first, second = heads_of_link(tape_of(logits), TOKENS, TOKENS, "it", "animal")
    assert (first.head, second.head) == (0, 1)
    assert second.weight > first.weight
    assert first.weight == pytest.approx(torch.zeros(7).index_fill(0, torch.tensor(3), 2.0).softmax(0)[3].item())
    assert first.usual == pytest.approx(1 / 7)
    assert second.usual == pytest.approx(second.weight)
    assert (first.row, first.column) == (5, 3)


def test_head_with_a_fixed_offset_has_its_usual_weight():
    logits = torch.zeros(2, 7, 7)
    logits[1].diagonal(-2).fill_(9.0)
    heads = heads_of_link(tape_of(logits), TOKENS, TOKENS, "it", "animal")
    of_shift = next(one for one in heads if one.head == 1)
    assert of_shift.weight > 0.99
    assert abs(of_shift.above) < 0.01


def test_unknown_token_and_hidden_link_raise():
    logits = torch.zeros(2, 7, 7).masked_fill(torch.ones(7, 7).triu(1).bool(), -float("inf"))
    with pytest.raises(UserError, match="unknown token 'cat'"):
        heads_of_link(tape_of(logits), TOKENS, TOKENS, "cat", "animal")
    with pytest.raises(UserError, match=r"no attention of this model may look from 'animal' \(3\) to 'slept' \(6\)"):
        heads_of_link(tape_of(logits), TOKENS, TOKENS, "animal", "slept")
