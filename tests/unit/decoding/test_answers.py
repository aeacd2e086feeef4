"""Answers to a batch of sources, whatever a model writes."""

import torch

from helpers.decoding import Rows
from jarilab.attention.cache import KVCache
from jarilab.decoding.answers import answers
from jarilab.positions import Tokens
from jarilab.text import END, FIRST, PADDING

LIMIT = 4


class Scripted:
    """A model that writes what it is told: each row of the script is the answer to one source."""

    def __init__(self, script):
        self.script = torch.tensor(script)

    def start(self, source):
        return Rows(torch.arange(len(self.script)))

    def step(self, state, ids, positions, cache):
        scores = torch.zeros(len(ids), ids.shape[1], 10)
        return scores.scatter(-1, self.script[state.rows][:, positions.index()].unsqueeze(-1), 5.0)

    def new_cache(self):
        return KVCache(0)


def found(*script):
    source = Tokens.of(torch.full((len(script), 1), 5), "source")
    how = {"first": FIRST, "end": END, "padding": PADDING, "limit": LIMIT}
    return [row[0] for row in answers(Scripted(script), source, **how)]


def test_a_model_that_prefers_padding_has_an_answer_with_a_score():
    """As one that has learned nothing may: what it writes is no padding behind an answer."""
    (one,) = found([PADDING] * LIMIT)
    assert one.ids.tolist() == [PADDING] * LIMIT
    assert one.score == one.total / LIMIT < 0


def test_an_answer_goes_to_its_end_with_the_padding_that_was_written_in_it():
    inside, short, endless = found([5, PADDING, 6, END], [7, END, 8, 8], [7, 7, 7, 7])
    assert inside.ids.tolist() == [5, PADDING, 6, END]
    assert short.ids.tolist() == [7, END]
    assert endless.ids.tolist() == [7, 7, 7, 7]
