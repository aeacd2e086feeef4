"""Answers to a batch of sources, whatever a model writes."""

import pytest
import torch

from helpers.decoding import Rows
from jarilab.attention.cache import KVCache
from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.decoding.answers import Decoding, answers
from jarilab.positions.coordinates import Tokens

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


class Listening(Scripted):
    """It tells in which precision it is asked to multiply."""

    def step(self, state, ids, positions, cache):
        halved = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
        self.heard = "bfloat16" if halved else "float32"
        return super().step(state, ids, positions, cache)


@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_search_runs_in_the_precision_that_was_asked_for_and_what_follows_does_not(beam, precision):
    model, source = Listening([[5, 6, 7, END]]), Tokens.of(torch.full((1, 1), 5), "source")
    how = Decoding(beam_size=beam, precision=precision)
    best = answers(model, source, how, first=FIRST, end=END, padding=PADDING, limit=LIMIT)
    assert model.heard == precision
    assert not torch.is_autocast_enabled("cpu")
    assert best[0][0].ids.tolist() == [5, 6, 7, END]
    assert best[0][0].log_probabilities.dtype is torch.float32


def test_a_layer_that_the_device_has_not_in_bfloat16_is_told_and_other_faults_stay_what_they_are():
    class Unable(Scripted):
        def step(self, state, ids, positions, cache):
            raise RuntimeError("no such layer")

    source = Tokens.of(torch.full((1, 1), 5), "source")
    rest = {"first": FIRST, "end": END, "padding": PADDING, "limit": LIMIT}
    with pytest.raises(
        UserError, match=r"^this processor cannot compute Unable in bfloat16: no such layer; use --prec"
    ):
        answers(Unable([[5]]), source, Decoding(precision="bfloat16"), **rest)
    with pytest.raises(RuntimeError, match=r"^no such layer$"):
        answers(Unable([[5]]), source, **rest)
