"""Word alignments and their error rate, by hand."""

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.data.text.word_links import pharaoh
from jarilab.inspect.measure.alignment import alignment, alignment_error_rate


def test_alignment_error_rate_by_hand():
    weights = torch.tensor([[0.9, 0.1, 0], [0.2, 0.1, 0.7], [0, 0, 0], [0.3, 0.3, 0.4]])
    assert alignment(weights) == [(0, 0), (1, 2), (3, 2)]
    # A = {00, 12, 32}, S = {00, 21}, P = {00, 21, 12}: 1 - (1 + 2) / (3 + 2)
    assert alignment_error_rate(weights, {(0, 0), (2, 1)}, {(1, 2)}) == pytest.approx(0.4)
    everything = alignment(weights)
    assert alignment_error_rate(weights, everything, []) == 0.0
    assert alignment_error_rate(weights, [(2, 0)], []) == 1.0


def test_links_outside_of_the_map_raise():
    message = r"the map has 2 target and 3 source words, counted from 0, got the link 1-2 .*; cut special tokens"
    with pytest.raises(UserError, match=message):
        alignment_error_rate(torch.eye(2, 3), pharaoh("0-0 1-2"), [])
    with pytest.raises(UserError, match="got the link 3-0"):
        alignment_error_rate(torch.eye(2, 3), [], [(0, 3)])
    with pytest.raises(UserError, match="expected a query with a key or a sure link"):
        alignment_error_rate(torch.zeros(2, 3), [], [(0, 0)])
