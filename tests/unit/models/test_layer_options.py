"""Options of layers: what each does, and that everything else still holds with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import jarilab
from jarilab.attention.cache import KVCache
from jarilab.models.layers import EncoderLayer, LayerOptions
from jarilab.nn.init import initialise
from jarilab.nn.sublayers import FeedForward

LLAMA = {"norm_kind": "rms", "gated": True, "bias": False, "activation": "silu", "n_kv_heads": 2}
OPTIONS: list[dict[str, Any]] = [
    LLAMA,
    {"d_head": 6, "norm_eps": 0.1, "activation": "gelu_tanh"},
    {"embedding_norm": True, "embedding_scale": "none", "generator_bias": True, "norm": "post"},
]
ENCODINGS = ["rotary", "pope", "t5+learned", "shaw"]


def drawn(model: nn.Module) -> Any:
    """With biases and gains that are not 0 and 1."""
    initialise(model, 1)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 0.5, generator=torch.Generator().manual_seed(len(name)))
    return model.double().eval()


def ids_of(length: int) -> Tensor:
    return torch.randint(1, 20, (2, length), generator=torch.Generator().manual_seed(2))


def by_steps(model: Any, state: Any, ids: Tensor) -> Tensor:
    """Scores after each token, read one by one with a cache."""
    cache: KVCache = model.new_cache()
    places = jarilab.Positions.sequence(ids.shape[1], frame="target")
    scores = [model.step(state, ids[:, at : at + 1], places.slice(at, at + 1), cache) for at in range(ids.shape[1])]
    return torch.cat(scores, 1)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("options", [*OPTIONS, {"parallel": True, **LLAMA}], ids=str)
@torch.no_grad()
def test_a_language_model_with_them_reads_with_a_cache_as_without(encoding: str, options: dict[str, Any]) -> None:
    model = drawn(jarilab.LanguageModel(20, d_model=16, n_heads=4, encoding=encoding, **options))
    ids = ids_of(7)
    torch.testing.assert_close(by_steps(model, model.start(None), ids), model(ids))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_an_encoder_decoder_with_them_reads_with_a_cache_as_without(options: dict[str, Any]) -> None:
    model = drawn(jarilab.EncoderDecoder(20, 20, d_model=16, n_heads=4, encoding="rotary", **options))
    source, target = ids_of(5), ids_of(7)
    state = model.start(jarilab.Tokens.of(source, "source"))
    torch.testing.assert_close(by_steps(model, state, target), model(source, target))


@pytest.mark.parametrize("options", [LLAMA, {"parallel": True}, {"embedding_norm": True}], ids=str)
def test_what_is_trained_with_them_learns_every_weight(options: dict[str, Any]) -> None:
    model = drawn(jarilab.LanguageModel(20, d_model=16, n_heads=4, encoding="rotary", **options))
    model(ids_of(7)).square().mean().backward()
    for name, parameter in model.named_parameters():
        if not name.endswith("key.bias") or options.get("bias") is False:
            assert parameter.grad.abs().max() > 0, name


# Each alone -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_head_of_keys_serves_its_neighbours() -> None:
    grouped = drawn(jarilab.LanguageModel(20, d_model=16, n_heads=4, encoding="rotary", n_kv_heads=2))
    full = jarilab.LanguageModel(20, d_model=16, n_heads=4, encoding="rotary").double().eval()
    weights = grouped.state_dict()
    for name, weight in weights.items():
        if ".key." in name or ".value." in name:
            of_heads = weight.unflatten(0, (2, -1))
            weights[name] = of_heads[[0, 0, 1, 1]].flatten(0, 1)
    full.load_state_dict(weights)
    torch.testing.assert_close(grouped(ids_of(7)), full(ids_of(7)))


@pytest.mark.parametrize("number", [0, 3, 5])
def test_heads_of_keys_that_do_not_divide_are_refused(number: int) -> None:
    with pytest.raises(jarilab.UserError, match=f"n_heads=4, got n_kv_heads={number}; use 1, 2, 4"):
        jarilab.Attention(16, n_heads=4, n_kv_heads=number)


@torch.no_grad()
def test_a_gate_is_multiplied_with_what_comes_up() -> None:
    gated = FeedForward(4, 6, "silu", gated=True, bias=False)
    x = torch.randn(2, 3, 4)
    assert gated.gate is not None
    expected = functional.silu(x @ gated.gate.weight.t()) * (x @ gated.up.weight.t())
    torch.testing.assert_close(gated(x), expected @ gated.down.weight.t())
    assert all(linear.bias is None for linear in (gated.up, gated.gate, gated.down))


@torch.no_grad()
def test_parallel_sublayers_read_the_same_input() -> None:
    layer = EncoderLayer(LayerOptions(16, 4, parallel=True)).eval()
    one, other = layer.attention_residual.norm, layer.feed_forward_residual.norm
    nn.init.normal_(other.weight)  # type: ignore[arg-type]
    from jarilab.attention.geometry import geometry_of
    from jarilab.encodings.compose import build

    x, places = torch.randn(2, 5, 16), jarilab.Positions.sequence(5)
    geometry = geometry_of(build("none", layer.attention.site), places, places)
    attended = layer.attention(one(x), geometry=geometry)
    torch.testing.assert_close(layer(x, geometry), x + attended + layer.feed_forward(other(x)))


def test_parallel_sublayers_with_norms_behind_are_refused() -> None:
    with pytest.raises(jarilab.UserError, match="expected norm=pre, got post"):
        jarilab.LanguageModel(20, d_model=16, n_heads=4, parallel=True, norm="post")


@torch.no_grad()
def test_norms_of_size_alone_and_their_epsilon() -> None:
    norm = LayerOptions(4, 1, norm_kind="rms", norm_eps=0.5).one_norm()
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt())


@torch.no_grad()
def test_a_bias_of_the_generator_is_added_to_scores() -> None:
    model = drawn(jarilab.LanguageModel(20, d_model=16, n_heads=4, generator_bias=True))
    before = model(ids_of(3))
    model.generator_bias[5] += 2
    added = torch.zeros(20, dtype=torch.float64)
    added[5] = 2
    torch.testing.assert_close(model(ids_of(3)), before + added)


@torch.no_grad()
def test_a_text_encoder_gives_vectors_or_scores_of_words() -> None:
    vectors = jarilab.TextEncoder(20, d_model=16, n_heads=4, segments=2)
    words = jarilab.TextEncoder(20, d_model=16, n_heads=4, words=True)
    assert vectors(ids_of(5)).shape == (2, 5, 16)
    assert words(ids_of(5)).shape == (2, 5, 20)
