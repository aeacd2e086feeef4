"""Steps on a cache of fixed capacity, as a GPU replays them: here each replay computes the step again."""

import pytest
import torch

import jarilab
from jarilab.models.decoding import replay
from jarilab.models.decoding.greedy_search import greedy
from jarilab.models.decoding.sample import sample
from jarilab.positions.coordinates import Positions, Tokens

SPECS = [
    "none",
    "sinusoidal",
    "learned:positions=64",
    "rotary",
    "alibi",
    "alibi:slopes=learned",
    "t5",
    "kerple",
    "xpos",
]


@pytest.fixture
def graphs(monkeypatch):
    """Pretend that the CPU is a GPU. The list has an entry for each capture."""
    captured = []

    def graph(warm_up, step):
        captured.append(step)
        warm_up()
        return step

    monkeypatch.setattr(replay, "_graph", graph)
    monkeypatch.setattr(replay, "_on_gpu", lambda ids: True)
    monkeypatch.setattr(replay, "MIN_CAPACITY", 6)
    return captured


def language_model(spec="rotary", **options):
    torch.manual_seed(1)
    return jarilab.LanguageModel(13, d_model=16, n_heads=2, n_layers=2, encoding=spec, **options).double().eval()


def padded_prompt():
    keep = torch.tensor([[False, False, True, True, True], [True] * 5, [False, True, True, True, True]])
    ids = torch.randint(13, (3, 5), generator=torch.Generator().manual_seed(2))
    return Tokens(ids, Positions.from_mask(keep), keep)


def written(model, prompt, end=13, longest=24):
    places = jarilab.positions_after(prompt)
    return greedy(model, prompt, first=0, end=end, padding=12, longest=longest, places=places)


@pytest.mark.parametrize(
    "options", [{}, {"window": 3}, {"token_before": True}], ids=["plain", "window", "token before"]
)
@pytest.mark.parametrize("spec", SPECS)
def test_replayed_answers_are_those_of_steps(spec, options, graphs):
    model, prompt = language_model(spec, **options), padded_prompt()
    found = written(model, prompt)
    assert len(graphs) == 3  # the capacity grew twice
    graphs.clear()
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(replay, "_on_gpu", lambda ids: False)
        expected = written(model, prompt)
    assert not graphs
    assert found.ids.equal(expected.ids)
    assert torch.allclose(found.log_probabilities, expected.log_probabilities, atol=1e-12)


def test_finished_rows_stay_until_half_have_ended(graphs, monkeypatch):
    model, prompt = language_model(), padded_prompt()
    free = written(model, prompt).ids
    end = next(token for token in range(13) if 0 < (free == token).any(1).sum() < 3)
    graphs.clear()
    found = written(model, prompt, end)
    assert graphs
    monkeypatch.setattr(replay, "_on_gpu", lambda ids: False)
    expected = written(model, prompt, end)
    assert found.ids.equal(expected.ids)
    assert torch.allclose(found.log_probabilities, expected.log_probabilities, atol=1e-12)


def test_a_translation_is_replayed_too(graphs, monkeypatch):
    torch.manual_seed(1)
    model = (
        jarilab.EncoderDecoder(11, 13, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1).double().eval()
    )
    keep = torch.tensor([[True] * 4, [True, True, False, False]])
    source = Tokens(torch.randint(11, (2, 4)), Positions.sequence(4, frame="source"), keep)
    options = {"first": 0, "end": 13, "padding": 12, "longest": 24, "places": jarilab.models.base.in_order}
    found = greedy(model, source, **options)
    assert graphs
    monkeypatch.setattr(replay, "_on_gpu", lambda ids: False)
    assert found.ids.equal(greedy(model, source, **options).ids)


def test_a_sample_is_replayed_and_read_again_when_the_context_is_full(graphs, monkeypatch):
    model, prompt = language_model("learned:positions=20"), torch.tensor([[1, 2], [3, 4]])
    options = {"end": -1, "longest": 40, "seed": 3, "context": 20}
    found = [drawn.ids for drawn in sample(model, prompt, **options)]
    assert graphs
    monkeypatch.setattr(replay, "_on_gpu", lambda ids: False)
    assert torch.stack(found).equal(torch.stack([drawn.ids for drawn in sample(model, prompt, **options)]))


@pytest.mark.parametrize("spec", ["rotary_dynamic", "log_length", "cope", "shaw"])
def test_what_depends_on_the_number_of_keys_is_not_replayed(spec, graphs):
    written(language_model(spec), padded_prompt())
    assert not graphs


def test_a_step_with_hooks_is_not_replayed(graphs):
    model, prompt = language_model(), torch.tensor([[1, 2]])
    seen = []
    drawn = sample(model, prompt, end=-1, longest=30, seed=1)
    for _ in range(5):
        next(drawn)
    model.decoder.register_forward_hook(lambda *call: seen.append(call))
    for _ in range(5):
        next(drawn)
    assert len(seen) == 5
