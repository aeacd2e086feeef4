"""Requested arguments of hooks, parameters that layers share, and lists of encodings for layers."""

import copy

import pytest
import torch
from torch import nn

import jarilab
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.kernels import attend
from jarilab.core.errors import UserError
from jarilab.core.registry import split_specs
from jarilab.encodings.base import PROVIDED, Encoding, Site
from jarilab.encodings.compose import LayerEncodings, build, canonical
from jarilab.laws.fixtures import randomise
from jarilab.models.decoder import LanguageModel, NoPrompt
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

SITE = Site(d_model=24, n_heads=3, d_head=8, d_value=8, causal=True)


def layers_of(text: str, layers: int = 4) -> LayerEncodings:
    return LayerEncodings(text, SITE, layers)


# A spec for each layer -----------------------------------------------------------------------------------------------


def test_each_layer_has_its_encoding_of_the_list():
    layers = layers_of("rotary,rotary,rotary:base=500,fraction=0.5,none")
    assert [type(encoding).__name__ for encoding in layers.by_layer] == ["Rotary", "Rotary", "Rotary", "NoEncoding"]
    first, second, third, _ = layers.by_layer
    assert first is second
    assert (first.base, third.base, third.fraction) == (10000, 500, 0.5)
    assert not layers.shared


def test_separate_instances_know_their_layer():
    layers = layers_of("shaw,none,shaw,shaw")
    sites = [encoding.site for encoding in layers.by_layer]
    assert [site.layer for site in sites] == [0, 1, 2, 3]
    assert {site.n_layers for site in sites} == {4}
    assert len(list(layers.parameters())) == 6


def test_a_list_in_a_model_changes_only_its_layers():
    mixed = LanguageModel(7, d_model=24, n_heads=3, n_layers=2, encoding="rotary,none")
    alike = LanguageModel(7, d_model=24, n_heads=3, n_layers=2, encoding="rotary")
    for model in (mixed, alike):
        initialise(model, 0)
    with jarilab.record(mixed) as tape, torch.no_grad():
        mixed(torch.arange(6).view(1, -1))
    assert [tape.calls[site][0].call.geometry.encoding.hooks for site in tape.sites] == [{"rotate"}, set()]
    assert not torch.equal(mixed(torch.arange(6).view(1, -1)), alike(torch.arange(6).view(1, -1)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotary,none", "2 layers, and the stack has 4"),
        ("sinusoidal,none,none,none", "adds to the model's input"),
        ("[]", r"expected an encoding, got '\[\]'"),
        ("+".join(["rotary"] * 65), "expected a sum of at most 64 encodings, got 65; leave some out"),
    ],
)
def test_an_invalid_list_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        layers_of(text)


def test_one_attention_accepts_no_list():
    with pytest.raises(UserError, match="for the layers of a stack"):
        build("rotary,none", SITE)


def test_lists_are_split_at_names_and_nested_in_brackets():
    assert split_specs("none,rotary:base=500,fraction=0.5") == ["none", "rotary:base=500,fraction=0.5"]
    assert split_specs("none,[rotary,none],alibi") == ["none", "[rotary,none]", "alibi"]
    assert canonical("[rope, rotary:base=10000, none]") == "rotary,rotary,none"


# Requested arguments -------------------------------------------------------------------------------------------------


def test_an_unknown_argument_cannot_be_requested():
    with pytest.raises(TypeError, match=r"weather.*side, keys"):
        type("Mine", (Encoding,), {"rotation": lambda self, pos, *, weather: None})
    with pytest.raises(TypeError, match="remember"):
        type("Mine", (Encoding,), {"terms": lambda self, q, k, relation, *, state: None})


class Sided(Encoding):
    """Doubles queries and halves keys."""

    keeps_norms = False

    def rotation(self, pos, *, side=PROVIDED):
        return {"query": 2.0, "key": 0.5}[side]

    def rotate(self, x, rotation):
        return x * rotation


def test_queries_and_keys_can_have_different_rotations():
    pos = Positions.sequence(5)
    geometry = geometry_of(Sided(SITE), pos, pos)
    assert (geometry.q_rotation, geometry.k_rotation) == (2.0, 0.5)


class Counts(Encoding):
    """Multiplies queries by the number of keys: a rotation that depends on all of them."""

    keeps_norms = False

    def rotation(self, pos, *, keys=PROVIDED):
        return float(keys.length)

    def rotate(self, x, rotation):
        return x * rotation


def test_cached_keys_are_rotated_again_if_the_rotation_depends_on_all_keys():
    attention = jarilab.Attention(24, 3, encoding=None, causal=True)
    cache, encoding, x_BLD = jarilab.attention.cache.LayerCache(), Counts(SITE), torch.randn(1, 4, 24)
    recorded = []
    attention.attend.register_forward_hook(lambda module, inputs, output: recorded.append(inputs[0]))
    pos = Positions.sequence(4)
    for step in range(4):
        here = pos.slice(step, step + 1)
        geometry = geometry_of(encoding, here, pos.slice(0, step + 1), new_k_pos=here)
        attention(x_BLD[:, step : step + 1], geometry=geometry, cache=cache)
    keys = attention.key(x_BLD).unflatten(-1, (3, -1)).transpose(1, 2)
    torch.testing.assert_close(recorded[-1].k, 4 * keys)


@pytest.mark.parametrize("kernel", ["explicit", "fused", "definition"])
@pytest.mark.parametrize("spec", ["cope", "forgetting", "forgetting+cope", "rotary+forgetting"])
def test_chunked_decoding_equals_one_forward(spec, kernel):
    model = LanguageModel(7, d_model=24, n_heads=3, n_layers=2, encoding=spec, kernel=kernel).double()
    initialise(model, 0)
    randomise(model)
    ids, pos, cache = torch.randint(7, (2, 9)), Positions.sequence(9, frame="target"), model.new_cache()
    pieces = [model.step(NoPrompt(), ids[:, i:j], pos.slice(i, j), cache) for i, j in ((0, 1), (1, 4), (4, 9))]
    torch.testing.assert_close(torch.cat(pieces, 1), model.step(NoPrompt(), ids, pos, None), rtol=0, atol=1e-5)


def test_hidden_keys_change_no_output():
    """Padding between a key and a query, of any content, changes nothing."""
    for name in ("cope", "forgetting"):
        encoding = build(name, SITE)
        randomise(encoding)
        outputs = []
        for content in (0.0, 5.0):
            torch.manual_seed(0)
            q, k, v, x = (torch.randn(1, 3, 6, 8) for _ in range(4))
            k[:, :, 3] = x[:, :, 3] = v[:, :, 3] = content
            hidden = torch.arange(6) != 3
            pos = Positions.sequence(6)
            geometry = geometry_of(encoding, pos, pos, Mask(causal=True, keys=hidden[None]))
            states = encoding.key_states(x.transpose(1, 2).flatten(2))
            outputs.append(attend(AttentionCall(q, k, v, geometry, 0.3, states=states)))
        torch.testing.assert_close(outputs[0], outputs[1])


# Scale ---------------------------------------------------------------------------------------------------------------


class Halves(Encoding):
    scale_factor = 0.5


def test_the_scale_of_an_attention_has_the_encodings_factor():
    attention = jarilab.Attention(24, 3, encoding=None)
    x_BLD, pos = torch.randn(1, 4, 24), Positions.sequence(4)
    with jarilab.record(attention) as tape, torch.no_grad():
        attention(x_BLD, geometry=geometry_of(Halves(SITE), pos, pos))
        attention(x_BLD, geometry=geometry_of(build("none", SITE), pos, pos))
    halved, plain = tape.calls[tape.sites[0]]
    assert halved.call.scale == pytest.approx(plain.call.scale / 2)
    both = build("deberta+deberta", SITE)
    assert both.scale_factor == pytest.approx(1 / 3)


# Shared parameters ---------------------------------------------------------------------------------------------------


def test_the_first_layer_owns_shared_parameters():
    layers = layers_of("transformer_xl", 3)
    names = [name for name, _ in layers.named_parameters()]
    assert [name for name in names if name.endswith(".u")] == ["parts.0.0.u"]
    assert len([name for name in names if name.endswith("position.weight")]) == 3
    assert layers.by_layer[2].u is layers.by_layer[0].u


def test_shared_parameters_survive_a_copy_and_a_load():
    layers = layers_of("transformer_xl", 3)
    initialise(layers, 0)
    other = copy.deepcopy(layers)
    assert other.by_layer[2].u is other.by_layer[0].u is not layers.by_layer[0].u
    with torch.device("meta"):
        empty = layers_of("transformer_xl", 3)
    empty.to_empty(device="cpu").load_state_dict(layers.state_dict())
    assert torch.equal(empty.by_layer[2].u, layers.by_layer[0].u)
    assert empty.double().by_layer[1].u.dtype is torch.float64


def test_shared_parameters_get_gradients_of_all_layers():
    model = LanguageModel(7, d_model=24, n_heads=3, n_layers=2, encoding="transformer_xl")
    initialise(model, 0)
    model(torch.arange(6).view(1, -1)).sum().backward()
    owned = dict(model.named_parameters())["decoder.encoding.parts.0.0.u"]
    assert owned.grad is not None
    assert owned.grad.abs().max() > 0


def test_a_tape_notices_changed_shared_parameters():
    model = LanguageModel(7, d_model=24, n_heads=3, n_layers=2, encoding="transformer_xl")
    initialise(model, 0)
    with jarilab.record(model) as tape, torch.no_grad():
        model(torch.arange(6).view(1, -1))
    with torch.no_grad():
        model.decoder.encoding.by_layer[0].u.add_(1.0)
    with pytest.raises(UserError, match="have changed since"):
        tape.weights("decoder.1.self")


# Initial values ------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """An unknown module."""

    def __init__(self):
        super().__init__()
        self.strength = nn.Parameter(torch.full((3,), 7.0))


class Networked(Encoding):
    """Contains a network with a norm, and an unknown module."""

    def __init__(self, site):
        super().__init__(site)
        self.network = nn.Sequential(nn.Linear(24, 96), nn.LayerNorm(96), Scaled())
        self.own = nn.Parameter(torch.empty(5))

    def initial_value(self, name, parameter, generator):
        self.asked = [*getattr(self, "asked", []), name]
        super().initial_value(name, parameter, generator)


def test_an_encoding_initializes_all_its_parameters():
    encoding = Networked(SITE)
    initialise(nn.ModuleDict({"inside": encoding}), 0)
    assert set(encoding.asked) == set(dict(encoding.named_parameters()))
    linear, norm, unknown = encoding.network
    assert float(linear.weight.detach().std()) == pytest.approx(24**-0.5, rel=0.1)
    assert torch.equal(norm.weight, torch.ones(96))
    assert not linear.bias.any()
    assert torch.equal(unknown.strength, torch.full((3,), 7.0))
    assert float(encoding.own.detach().abs().max()) < 0.2


@pytest.mark.parametrize("module", [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), Scaled()])
def test_no_module_of_a_model_is_set_to_zero(module):
    initialise(nn.ModuleList([module]), 0)
    scale = next(iter(module.parameters()))
    assert bool((scale != 0).all())
