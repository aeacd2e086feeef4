"""Steps on a cache of fixed capacity, as a GPU replays them: here each replay computes the step again."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import jarilab
from jarilab.attention import geometry
from jarilab.models.decoding import replay
from jarilab.models.decoding.greedy_search import greedy
from jarilab.models.decoding.sample import sample
from jarilab.nn.dropout import Dropout
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
    "fire",
    "rotary+t5",
]


class Dispatch(TorchDispatchMode):
    """Sees each operation."""

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        return operation(*arguments, **(options or {}))


class ReadsNothing(Dispatch):
    """Raises if a step reads a number from the device, which a CUDA graph cannot."""

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        assert operation is not torch.ops.aten._local_scalar_dense.default
        return super().__torch_dispatch__(operation, types, arguments, options)


class Graphs(list):
    """An entry for each capture. replays: how many steps were replays."""

    replays = 0


@pytest.fixture
def graphs(monkeypatch):
    """Pretend that the CPU is a GPU."""
    graphs = Graphs()

    def graph(warm_up, step):
        graphs.append(step)
        with pytest.MonkeyPatch.context() as gpu, ReadsNothing():
            gpu.setattr(geometry, "_on_cpu", lambda pos: False)
            warm_up()

        def replayed():
            graphs.replays += 1
            return step()

        return replayed

    monkeypatch.setattr(replay, "_graph", graph)
    monkeypatch.setattr(replay, "_on_gpu", lambda ids: True)
    monkeypatch.setattr(replay, "MIN_CAPACITY", 6)
    return graphs


def language_model(spec="rotary", **options):
    torch.manual_seed(1)
    return jarilab.LanguageModel(13, d_model=16, n_heads=2, n_layers=2, encoding=spec, **options).double().eval()


def padded_prompt():
    keep = torch.tensor([[False, False, True, True, True], [True] * 5, [False, True, True, True, True]])
    ids = torch.randint(13, (3, 5), generator=torch.Generator().manual_seed(2))
    return Tokens(ids, Positions.from_mask(keep), keep)


def written(model, prompt, end=13, longest=24, places=None):
    places = places or jarilab.positions_after(prompt)
    return greedy(model, prompt, first=0, end=end, padding=12, longest=longest, places=places)


def check_answers(graphs, *arguments, **options):
    """Check that replayed answers are those of single steps. Returns how many steps were replays."""
    before, found = graphs.replays, written(*arguments, **options)
    replays = graphs.replays - before
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(replay, "_on_gpu", lambda ids: False)
        expected = written(*arguments, **options)
    assert graphs.replays - before == replays
    assert found.ids.equal(expected.ids)
    assert torch.allclose(found.log_probabilities, expected.log_probabilities, atol=1e-12)
    return replays


@pytest.mark.parametrize(
    "options", [{}, {"window": 3}, {"token_before": True}], ids=["plain", "window", "token before"]
)
@pytest.mark.parametrize("spec", SPECS)
def test_replayed_answers_are_those_of_steps(spec, options, graphs):
    replays = check_answers(graphs, language_model(spec, **options), padded_prompt())
    assert len(graphs) == 2  # the capacity grew once
    assert replays >= 12


def test_finished_rows_stay_until_half_have_ended(graphs, monkeypatch):
    model, prompt = language_model(), padded_prompt()
    free = written(model, prompt).ids
    end = next(token for token in range(13) if 0 < (free == token).any(1).sum() < 3)
    assert check_answers(graphs, model, prompt, end)


def at_coordinates(first, after):
    """A prompt of 5 tokens with these coordinates, and `places` of what follows, with those that `after` returns."""
    order = torch.arange(5)
    prompt = Tokens(torch.tensor([[1, 2, 3, 4, 5]] * 2), Positions(first, order, frame="target"))

    def places(ids, start, rows):
        order = torch.arange(start + 5, ids.shape[1] + 5)
        coordinates = after(torch.arange(start, ids.shape[1]))
        bounds = int(coordinates.min()), int(coordinates.max()), coordinates
        return Positions(coordinates, order, frame="target", cached_bounds=bounds)

    return prompt, places


DIGITS = torch.tensor([90, 91, 92, 93, 0]).unsqueeze(-1)


@pytest.mark.parametrize(
    ("first", "after"),
    [
        (DIGITS, lambda at: at.unsqueeze(-1)),
        (DIGITS - 95, lambda at: at.unsqueeze(-1)),
        (DIGITS, lambda at: 40 - at.unsqueeze(-1)),
        (DIGITS[None], lambda at: at.expand(2, -1).unsqueeze(-1) * torch.tensor([1, 2]).view(2, 1, 1)),
        (DIGITS, lambda at: at.expand(1 + int(at[0]) // 12 % 2, -1).unsqueeze(-1)),
        (DIGITS.float(), lambda at: at.unsqueeze(-1)),
    ],
    ids=["restarting", "negative", "falling", "of rows", "of rows later", "float"],
)
@pytest.mark.parametrize("spec", ["rotary", "kerple", "dynamic_bias"])
def test_positions_that_do_not_count(first, after, spec, graphs):
    prompt, places = at_coordinates(first, after)
    check_answers(graphs, language_model(spec), prompt, longest=40, places=places)


def test_positions_far_from_0(graphs):
    prompt, places = at_coordinates(torch.arange(5).unsqueeze(-1) + 3000, lambda at: at.unsqueeze(-1) + 3005)
    model = language_model("xpos:decay=2").float()
    found = written(model, prompt, places=places)
    assert graphs
    assert found.log_probabilities.isfinite().all()


def test_no_replay_is_beyond_a_table(graphs, monkeypatch):
    monkeypatch.setattr(replay, "MIN_CAPACITY", 60)
    model, prompt = language_model("learned:positions=32"), torch.tensor([[1, 2]])
    drawn = sample(model, prompt, end=-1, longest=60, seed=1, context=30)
    assert len([*drawn]) == 60
    assert graphs


def test_a_window_bounds_the_cache(graphs):
    model, prompt = language_model(window=3), padded_prompt()
    steps, places = replay.Steps(model, 60), jarilab.positions_after(prompt)
    state, ids, rows = model.start(prompt), torch.randint(13, (3, 60)), torch.arange(3)
    for at in range(60):
        steps(state, ids[:, at : at + 1], places(ids[:, : at + 1], at, rows))
        assert steps.cache.positions.length <= 6 + 6
    assert graphs.replays > 30


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


def test_a_bias_between_sequences_is_not_replayed(graphs):
    model = jarilab.EncoderDecoder(11, 13, d_model=16, n_heads=2, cross_encoding="kerple").eval()
    source = Tokens(torch.tensor([[1, 2]]), Positions(torch.tensor([[3], [1]]), torch.arange(2), frame="source"))
    written(model, source, places=jarilab.models.base.in_order)
    assert not graphs


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


def replayed_steps(graphs, change=lambda model: None, context=nullcontext):
    """Whether each drawn token was of a replay. From the 7th on the model is changed; 12 are drawn within a context."""
    model = language_model().float()
    drawn = sample(model, torch.tensor([[1, 2]]), end=-1, longest=40, seed=1)
    counts = [graphs.replays]

    def draw(steps):
        for _ in range(steps):
            next(drawn)
            counts.append(graphs.replays)

    draw(6)
    change(model)
    with context():
        draw(12)
    draw(6)
    return [later > earlier for earlier, later in itertools.pairwise(counts)]


def watch(model):
    model.decoder.register_forward_hook(lambda *call: None)


def train_dropout(model):
    for module in model.modules():
        module.training = isinstance(module, Dropout)


def replace_weights(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5


@pytest.mark.parametrize("change", [watch, train_dropout])
def test_a_step_with_hooks_or_in_training_is_not_replayed(change, graphs):
    is_replay = replayed_steps(graphs, change)
    assert is_replay[5]
    assert not any(is_replay[6:])


@pytest.mark.parametrize("mode", [Dispatch, BaseTorchFunctionMode])
def test_a_step_under_a_mode_is_not_replayed(mode, graphs):
    is_replay = replayed_steps(graphs, context=mode)
    assert is_replay[5]
    assert not any(is_replay[6:18])
    assert is_replay[18]


@pytest.mark.parametrize(
    "later",
    [{"change": replace_weights}, {"context": lambda: torch.autocast("cpu", torch.bfloat16)}],
    ids=["weights", "precision"],
)
def test_replaced_weights_and_another_precision_need_a_new_graph(later, graphs):
    is_replay = replayed_steps(graphs, **later)
    assert is_replay[5:8] == [True, False, True]


def test_a_graph_outlives_inference_mode(graphs, monkeypatch):
    def drawn():
        model = language_model(token_before=True)
        tokens = sample(model, torch.tensor([[1, 2]]), end=-1, longest=40, seed=1)
        with torch.inference_mode():
            ids = [next(tokens).ids for _ in range(6)]
        return torch.stack([*ids, *(each.ids for each in tokens)])

    found = drawn()
    assert graphs
    monkeypatch.setattr(replay, "_on_gpu", lambda ids: False)
    assert found.equal(drawn())


class Foreign(jarilab.LanguageModel):
    max_positions = None  # which a search needs of no model


def test_models_from_elsewhere_are_not_replayed(graphs):
    model = Foreign(13, d_model=16, n_heads=2, encoding="rotary").eval()
    written(model, padded_prompt())
    assert not graphs
