"""One token through the layers as plain functions: the numbers of the modules, and these where somebody listens."""

import pytest
import torch
from torch import nn

import jarilab
from jarilab.attention.cache import LayerCache
from jarilab.models import one_token
from jarilab.models.decoder import LanguageModel, positions_after
from jarilab.models.decoding import beam, greedy
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.nn.sublayers import FeedForward
from jarilab.positions.coordinates import Positions, Tokens

VOCABULARY, TOKENS = 11, 8
WRITES = {"first": 1, "end": -1, "padding": 0, "longest": TOKENS}
OPTIONS = [
    {},
    {"norm": "post"},
    {"parallel": True},
    {"gated": True, "activation": "silu", "norm_kind": "rms", "bias": False},
    {"n_kv_heads": 1},
    {"scale": "none", "d_head": 6},
    {"window": 3},
    {"kernel": "explicit"},
    {"dropout": 0.5},
]
# Each hook, and what is turned anew at each token, remembered, or added by what is drawn once.
ENCODINGS = ["learned", "rotary", "alibi", "shaw", "rotary_dynamic", "forgetting", "rotary,none"]


def language_model(encoding="rotary", **options):
    return filled(LanguageModel(VOCABULARY, **small(encoding, options)))


def translator(encoding="rotary", **options):
    return filled(EncoderDecoder(VOCABULARY, VOCABULARY, **small(encoding, options)))


def small(encoding, options):
    return {"d_model": 24, "n_heads": 3, "d_ff": 20, "encoding": encoding, **options}


def filled(model):
    initialise(model, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def prompt(frame="target"):
    """Two rows, the second with padding before it."""
    keep = torch.tensor([[True] * 4, [False] * 2 + [True] * 2])
    return Tokens(torch.randint(VOCABULARY, (2, 4)), Positions.from_mask(keep, frame=frame), keep)


@pytest.fixture
def passed(monkeypatch):
    """Tokens that went past the modules."""
    steps, original = [], one_token.OneToken.__call__

    def counted(self, x, *of_layers):
        steps.append(x.shape[0])
        return original(self, x, *of_layers)

    monkeypatch.setattr(one_token.OneToken, "__call__", counted)
    return steps


def written(model, source, **options):
    places = {"places": positions_after(source)} if isinstance(model, LanguageModel) else {}
    return greedy(model, source, **WRITES, **places, **options)


def assert_as_by_modules(monkeypatch, write):
    """What is written is what the modules write, and its scores to the last bits."""
    fast = write()
    with monkeypatch.context() as patched:
        patched.setattr(one_token.OneToken, "is_unhooked", False)
        by_modules = write()
    assert torch.equal(fast.ids, by_modules.ids)
    torch.testing.assert_close(fast.log_probabilities, by_modules.log_probabilities, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_layers_are_kept(options, passed, monkeypatch):
    model, source = language_model(**options), prompt()
    assert_as_by_modules(monkeypatch, lambda: written(model, source))
    assert len(passed) == TOKENS - 1, "all but the prompt"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_have_their_say(encoding, passed, monkeypatch):
    model, alone = language_model(encoding), Tokens.of(torch.randint(VOCABULARY, (1, 3)), "target")
    for source in (prompt(), alone):
        assert_as_by_modules(monkeypatch, lambda source=source: written(model, source))
    assert len(passed) == 2 * (TOKENS - 1)


@pytest.mark.parametrize("encoding", ["rotary", "alibi", "shaw"])
def test_a_decoder_with_a_source(encoding, passed, monkeypatch):
    model, source = translator(encoding, cross_encoding="none"), prompt("source")
    assert_as_by_modules(monkeypatch, lambda: written(model, source))
    assert len(passed) == TOKENS - 1


def test_hypotheses_of_a_beam(passed, monkeypatch):
    model, source = translator("t5"), prompt("source")

    def best():
        return [one[0] for one in beam(model, source, beam_size=4, first=1, end=2, longest=TOKENS)]

    fast = best()
    assert 8 in passed, "two sources of four hypotheses"
    monkeypatch.setattr(one_token.OneToken, "is_unhooked", False)
    for one, other in zip(fast, best(), strict=True):
        assert torch.equal(one.ids, other.ids)
        assert one.score == pytest.approx(other.score, abs=1e-6)


def test_in_bfloat16(passed, monkeypatch):
    model, source = language_model(), prompt()
    with torch.autocast("cpu", torch.bfloat16):
        assert_as_by_modules(monkeypatch, lambda: written(model, source))
    assert passed


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("build", [language_model, translator])
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="weights are packed for oneDNN")
def test_packed_weights(build, precision, passed, monkeypatch):
    model, packed, pack = build(n_kv_heads=1, generator_bias=True), [], torch.ops.mkldnn._reorder_linear_weight
    source = Tokens.of(torch.randint(VOCABULARY, (one_token.MAX_PLAIN_ROWS + 1, 3)), "source")

    def counted(weight, rows):
        packed.append(weight.dtype)
        return pack(weight, rows)

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", counted)
    with torch.autocast("cpu", precision, enabled=precision is not None):
        assert_as_by_modules(monkeypatch, lambda: written(model, source))
    of_layer, readouts = 8 if build is translator else 6, 2  # by functions and by modules
    packs = precision is None or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert packed == [precision or torch.float32] * (2 * of_layer + readouts) * packs, "each weight once in an answer"
    assert passed


def test_a_hook_that_comes_in_the_middle_hears_the_rest(passed):
    model, calls = language_model(), []
    step = iter(jarilab.sample(model, torch.tensor([[1, 2]]), end=-1, longest=9, seed=1))
    for _ in range(3):
        next(step)
    assert len(passed) == 2
    feed_forward = next(part for part in model.modules() if isinstance(part, FeedForward))
    handle = feed_forward.register_forward_hook(lambda *_: calls.append(1))
    next(step)
    before = feed_forward.down.register_forward_pre_hook(lambda *_: calls.append(2))
    next(step)
    handle.remove()
    before.remove()
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(3))
    next(step)
    everywhere.remove()
    assert calls[:3] == [1, 2, 1]
    assert 3 in calls
    next(step)
    assert len(passed) == 3


def test_a_tape_hears_each_token():
    model = language_model()
    with jarilab.record(model) as tape:
        list(jarilab.sample(model, torch.tensor([[1, 2]]), end=-1, longest=5, seed=1))
    assert len(tape.calls["decoder.0.self"]) == 5


def own_forward(model):
    layer = model.decoder.layers[0]["self"]
    layer.feed_forward.forward = lambda x: torch.zeros_like(x)


def another_class(model):
    layer = model.decoder.layers[1]["self"]
    layer.attention.query = nn.Linear(24, 24).eval()


def trained(model):
    model.decoder.layers[0]["self"].attention.train()


@pytest.mark.parametrize("change", [own_forward, another_class, trained])
def test_modules_that_are_not_as_here_are_called(change, passed):
    model = language_model()
    change(model)
    written(model, prompt())
    assert not passed


def test_training_and_gradients_are_the_modules_own(passed):
    model = language_model()

    def step(cache, start):
        ids = torch.ones(2, 1, dtype=torch.long)
        positions = Positions.sequence(1, start, frame="target")
        return model.step(model.start(None), ids, positions, cache)

    assert step(model.new_cache(), 0).requires_grad
    with torch.no_grad():
        cache = model.new_cache()
        assert not step(cache, 0).is_inference()
        model.train()
        step(cache, 1)
        assert passed == [2]
        model.eval()
        step(cache, 2)
        assert passed == [2, 2]


def test_room_that_was_made_on_the_way_can_be_written_to_afterwards():
    cache = LayerCache()

    def append(number):
        return cache.append(torch.full((1, 1, 1, 2), number), torch.ones(1, 1, 1, 2))

    with torch.inference_mode():
        for number in (1.0, 2.0, 3.0):
            append(number)
    k, _ = append(4.0)  # there is room for four
    assert k[0, 0, :, 0].tolist() == [1, 2, 3, 4]
