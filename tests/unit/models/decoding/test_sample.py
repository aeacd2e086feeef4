import itertools

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.models.decoder import LanguageModel
from jarilab.models.decoding import greedy, sample
from jarilab.models.decoding.sample import keep_min_p, keep_top_k, keep_top_p, penalise_repetition
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Tokens

FIRST, END = 1, 2


def language_model(spec="rotary"):
    model = LanguageModel(12, d_model=16, n_heads=2, encoding=spec, tied=False)
    initialise(model, 4)
    return model.eval()


def draw(model, prompt, **options):
    return list(sample(model, prompt, **{"end": -1, "longest": 6, "seed": 7} | options))


def ids_of(drawn):
    return torch.stack([one.ids for one in drawn], 1)


class Fixed:
    """A model whose scores are always the same; what it is told to read is written down."""

    def __init__(self, scores):
        self.scores, self.read = torch.tensor(scores), []

    def start(self, source):
        return self

    def select(self, rows, sources=None):
        return self

    def step(self, state, ids, positions, cache):
        self.read.append((ids.tolist(), positions.index().tolist(), positions.frame))
        return self.scores.expand(*ids.shape, -1)

    def new_cache(self):
        return self


def test_temperature_0_is_greedy():
    model = EncoderDecoder(10, 10, d_model=16, n_heads=2, encoding="t5")
    initialise(model, 4)
    source = Tokens.of(torch.randint(3, 10, (3, 6)), "source")
    wanted = greedy(model.eval(), source, first=FIRST, end=END, padding=0, longest=6)
    drawn = draw(model, torch.full((3, 1), FIRST), source=source, end=END, temperature=0.0)
    log_probabilities = torch.stack([one.log_probabilities for one in drawn], 1)
    assert torch.equal(ids_of(drawn).masked_fill(log_probabilities == 0, 0), wanted.ids)
    torch.testing.assert_close(log_probabilities, wanted.log_probabilities)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5, "top_k": 3, "repetition_penalty": 1.4}])
def test_log_probabilities_are_those_of_one_forward(options):
    model, prompt = language_model(), torch.randint(3, 12, (2, 3))
    drawn = draw(model, prompt, **options)
    ids = torch.cat((prompt, ids_of(drawn)), 1)
    wanted = model(ids).log_softmax(-1)[:, 2:-1].gather(-1, ids[:, 3:].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(torch.stack([one.log_probabilities for one in drawn], 1), wanted, rtol=1e-4, atol=1e-5)


def test_the_seed_alone_decides():
    model, prompt = language_model(), torch.randint(3, 12, (4, 3))
    first = ids_of(draw(model, prompt, seed=7))
    torch.randn(5)
    assert torch.equal(ids_of(draw(model, prompt, seed=7)), first)
    assert not torch.equal(ids_of(draw(model, prompt, seed=8)), first)


def test_tokens_are_drawn_as_often_as_their_scores_say():
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    for temperature in (1.0, 2.0):
        (drawn,) = draw(
            Fixed(probabilities.log().tolist()), torch.zeros(20000, 1).long(), longest=1, temperature=temperature
        )
        wanted = probabilities ** (1 / temperature)
        shares = drawn.ids.bincount(minlength=4) / 20000
        torch.testing.assert_close(shares, wanted / wanted.sum(), rtol=0, atol=0.015)


def test_each_token_is_given_as_soon_as_it_is_drawn():
    model = Fixed([0.0, 1.0])
    stream = sample(model, torch.zeros(1, 1).long(), end=-1, longest=50, seed=1)
    assert not model.read
    next(stream)
    next(stream)
    assert len(model.read) == 2


def test_a_row_that_has_ended_stays_so_and_the_last_one_ends_it_all():
    drawn = draw(Fixed([0.0, 0.0, 0.5, 0.0]), torch.zeros(5, 1).long(), end=END, longest=500)
    assert len(drawn) < 40
    for before, after in itertools.pairwise(drawn):
        assert (after.ids[before.ended] == END).all()
        assert (after.log_probabilities[before.ended] == 0).all()
        assert (after.log_probabilities[~before.ended] < 0).all()
        assert not before.ended.all()
    assert drawn[-1].ended.all()
    assert torch.equal(drawn[-1].ended, drawn[-1].ids == END)


def test_filters_come_one_after_another():
    """After the penalty token 0 is at 2.0 and 1 at 2.5; a temperature of 0.5 doubles both."""
    model = Fixed([4.0, 2.5, -1.0, -3.0])
    options = {"repetition_penalty": 2.0, "temperature": 0.5, "longest": 1}
    prompt = torch.zeros(20000, 1).long()
    (drawn,) = draw(model, prompt, **options)
    wanted = torch.tensor([4.0, 5.0, -2.0, -6.0]).softmax(-1)
    torch.testing.assert_close(drawn.ids.bincount(minlength=4) / 20000, wanted, rtol=0, atol=0.015)
    assert set(draw(model, prompt, **options, top_k=1)[0].ids.tolist()) == {1}
    # Of 0 and 1 alone, 1 has 0.731, so that 0.73 leaves it alone and 0.74 does not; of all it has 0.7305.
    assert set(draw(model, prompt, **options, top_k=2, top_p=0.7308)[0].ids.tolist()) == {1}
    assert set(draw(model, prompt, **options, top_p=0.7308)[0].ids.tolist()) == {0, 1}
    assert set(draw(model, prompt, **options, min_p=0.36)[0].ids.tolist()) == {0, 1}
    assert set(draw(model, prompt, **options, min_p=0.37)[0].ids.tolist()) == {1}


def test_filters_by_hand():
    scores = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()

    def kept(filtered):
        return filtered.isfinite().nonzero()[:, 1].tolist()

    assert kept(keep_top_k(scores, 2)) == [1, 3]
    assert kept(keep_top_p(scores, 0.5)) == [1]
    assert kept(keep_top_p(scores, 0.76)) == [1, 2, 3]
    assert kept(keep_top_p(scores, 1.0)) == [0, 1, 2, 3]
    assert kept(keep_min_p(scores, 0.4)) == [1, 3]
    repeated = penalise_repetition(torch.tensor([[2.0, -2.0, 3.0]]), torch.tensor([[0, 1, 0]]), 2.0)
    assert repeated.tolist() == [[1.0, -4.0, 3.0]]


def test_a_full_context_goes_on_from_its_newest_half():
    model, prompt = Fixed([0.0] * 10), torch.tensor([[5, 6, 7, 8, 9, 5]])
    drawn = ids_of(draw(model, prompt, longest=5, context=4))[0].tolist()
    text = prompt[0].tolist() + drawn
    assert model.read == [
        ([text[2:6]], [0, 1, 2, 3], "target"),
        ([text[5:7]], [0, 1], "target"),
        ([text[7:8]], [2], "target"),
        ([text[8:9]], [3], "target"),
        ([text[8:10]], [0, 1], "target"),
    ]


def test_a_text_may_be_longer_than_the_positions_of_its_model():
    model = language_model("learned:positions=8")
    prompt = torch.randint(3, 12, (2, 5))
    drawn = draw(model, prompt, longest=20, context=8, temperature=0.0)
    text = torch.cat((prompt, ids_of(drawn)), 1)
    assert torch.equal(model(text[:, 5:9])[:, -1].argmax(-1), text[:, 9])
    with pytest.raises(UserError, match="8"):
        draw(model, prompt, longest=20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature: expected 0 \(the likeliest always\), or 0.001 to 1000, got -1.0"),
        ({"temperature": 1e-38}, "temperature: expected .* got 1e-38"),
        ({"top_k": 0}, "top_k: expected 1 token or more, got 0; omit it to keep every token"),
        ({"top_p": 0.0}, "top_p: expected a probability above 0, 1 at most, got 0.0; omit it"),
        ({"top_p": 1.1}, "top_p: expected a probability above 0, 1 at most, got 1.1"),
        ({"min_p": 0.0}, "min_p: expected a share above 0, 1 at most, got 0.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: expected 0.01 to 100; 1 is none, 1.2 is usual, got 0.0"),
        ({"longest": 0}, "expected 1 token or more to draw, got longest 0"),
        ({"context": 0}, "expected a context of 1 token or more, got 0; omit it"),
        (
            {"prompt": torch.zeros(2, 0).long()},
            r"expected a prompt of 1 token or more for each row, \(B, L\), got \(2, 0\)",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_drawn(options, message):
    with pytest.raises(UserError, match=message):
        sample(Fixed([0.0]), **{"prompt": torch.zeros(2, 1).long(), "end": END, "longest": 6, "seed": 7} | options)
