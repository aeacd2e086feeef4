"""Searches ask where each token is, and what they wrote is read again at the same places."""

import pytest
import torch

from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.decoder import LanguageModel
from jarilab.models.decoding import beam, greedy, sample
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.policies.base import build

POLICIES = ["sequential", "offset:largest=9", "randomized:longest=40", "abacus:largest=9", "coupling:largest=9"]
ENCODINGS = ["sinusoidal", "learned:positions=64", "rotary", "t5"]
PAIRS = [(policy, encoding) for policy in POLICIES for encoding in ("sinusoidal", "t5")]
PAIRS += [("sequential", "learned:positions=64"), ("coupling:largest=9", "rotary")]
LAYERS = {"d_model": 32, "n_heads": 4}
LONGEST = 6


def task_by(policy):
    task = Arithmetic(maximum=99, answers="reversed")
    task.set_position_policy(build(policy))
    return task


def joined_by(policy):
    """Source and target as one sequence of a language model."""
    task = Arithmetic(maximum=99, answers="reversed")
    task.join()
    task.set_position_policy(build(policy))
    return task


def model_of(task, encoding):
    model = EncoderDecoder(
        **task.model_options, **LAYERS, encoding=encoding, cross_encoding=cross_of(encoding)
    ).double()
    initialise(model, 3)
    return model.eval()


def cross_of(encoding):
    """In cross-attention too, where an encoding can be there."""
    return encoding if encoding in ("rotary",) else "none"


class Logged:
    """A model that notes the place and the number of every token it is asked to read, of each row."""

    def __init__(self, model):
        self.model, self.read = model, []
        self.start, self.new_cache = model.start, model.new_cache

    def step(self, state, ids, positions, cache):
        index = positions.index().expand_as(ids)
        self.read.append((ids.tolist(), index.tolist()))
        return self.model.step(state, ids, positions, cache)


def again(model, task, source, ids):
    """The log-probabilities of an answer that is read at once, at the places that the task gives it."""
    inputs = task.answered(source, ids.tolist())
    logs = model(*inputs)[0, -len(ids) :].log_softmax(-1)
    return logs.gather(1, ids.unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize(("policy", "encoding"), PAIRS)
def test_what_searches_write_is_read_again_at_the_same_places(policy, encoding):
    task = task_by(policy)
    check_read_again(model_of(task, encoding), task)


@pytest.mark.parametrize("policy", ["sequential", "offset:largest=9", "randomized:longest=40"])
@pytest.mark.parametrize("encoding", ["sinusoidal", "none", "forgetting"])
def test_what_a_language_model_writes_behind_its_source_is_read_again_at_the_same_places(policy, encoding):
    task = joined_by(policy)
    model = initialised(LanguageModel(**task.model_options, **LAYERS, encoding=encoding)).double()
    check_read_again(model, task)


def check_read_again(model, task):
    lines = [task.read(line) for line in ("21+7", "5-98", "88+99")]
    source = task.sources(lines)
    tokens = {"first": FIRST, "end": END, "longest": LONGEST, "places": task.answer_places(source)}
    written = greedy(model, source, padding=PADDING, **tokens)
    slowly = greedy(model, source, padding=PADDING, cached=False, **tokens)
    assert torch.equal(written.ids, slowly.ids)
    hypotheses = beam(model, source, beam_size=3, best=2, **tokens)
    for row in range(3):
        alone = lines[row]
        # An untrained model may write the token of padding too.
        there = written.log_probabilities[row][written.log_probabilities[row] < 0].double()
        ids = written.ids[row, : len(there)]
        torch.testing.assert_close(there, again(model, task, alone, ids), rtol=0, atol=1e-5)
        for hypothesis in hypotheses[row]:
            logs = again(model, task, alone, hypothesis.ids)
            torch.testing.assert_close(hypothesis.log_probabilities.double(), logs, rtol=0, atol=1e-5)


def test_one_source_alone_has_as_many_hypotheses_as_are_asked_for():
    """Places of one row are those of all hypotheses until these part."""
    task = task_by("abacus")
    model, source = model_of(task, "rotary"), task.read("21+7")
    places = task.answer_places()
    (hypotheses,) = beam(
        model, task.sources([source]), beam_size=3, best=3, first=FIRST, end=END, longest=4, places=places
    )
    for hypothesis in hypotheses:
        logs = again(model, task, source, hypothesis.ids)
        torch.testing.assert_close(hypothesis.log_probabilities.double(), logs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_drawn_is_read_again_at_the_same_places(policy, encoding):
    task = task_by(policy)
    size = task.model_options["target_vocab_size"]
    model = LanguageModel(size, **LAYERS, encoding=encoding).double()
    initialise(model, 3)
    prompt = torch.tensor([[FIRST, 5, 6], [FIRST, 13, 7]])
    places = task.answer_places()
    drawn = list(sample(model.eval(), prompt, end=-1, longest=5, seed=2, places=places))
    ids = torch.cat((prompt, *(one.ids.unsqueeze(1) for one in drawn)), 1)
    logs = model(task.tokens(ids[:, :-1], "target"))[:, 2:].log_softmax(-1)
    expected = logs.gather(2, ids[:, 3:].unsqueeze(-1)).squeeze(-1)
    log_probabilities = torch.stack([one.log_probabilities for one in drawn], 1).double()
    torch.testing.assert_close(log_probabilities, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("search", ["greedy", "beam", "sample"])
def test_every_step_is_told_where_its_tokens_are(policy, search):
    """Trap 35: a wrapper around the forward of training hides the places of the steps of generating."""
    task = task_by(policy)
    logged = Logged(model_of(task, "sinusoidal"))
    source, places = task.sources([task.read("21+7"), task.read("5-98")]), task.answer_places()
    if search == "greedy":
        greedy(logged, source, first=FIRST, end=-1, padding=PADDING, longest=LONGEST, places=places)
    elif search == "beam":
        beam(logged, source, beam_size=1, first=FIRST, end=0, shortest=LONGEST, longest=LONGEST, places=places)
    else:
        first = torch.full((2, 1), FIRST)
        list(sample(logged, first, source=source, end=-1, longest=LONGEST, seed=1, places=places))
    assert len(logged.read) == LONGEST
    steps = [torch.tensor(ids) for ids, _ in logged.read]
    expected = task.tokens(torch.cat(steps, 1), "target").positions.index().expand(2, LONGEST)
    assert torch.cat([torch.tensor(index) for _, index in logged.read], 1).tolist() == expected.tolist()


def test_a_sample_whose_window_moves_on_begins_anew_where_the_policy_says():
    task = task_by("abacus")
    size = task.model_options["target_vocab_size"]
    logged = Logged(initialised(LanguageModel(size, **LAYERS, encoding="sinusoidal")))
    digits = torch.tensor([[FIRST, 5, 6, 7]])
    list(sample(logged, digits, end=-1, longest=2, seed=1, context=4, temperature=0.0, places=task.answer_places()))
    assert logged.read[0][1] == [[0, 1, 2, 3]]
    ids, places = logged.read[1]
    assert ids[0][0] == 7
    assert places[0][0] == 1


def initialised(model):
    initialise(model, 1)
    return model.eval()
