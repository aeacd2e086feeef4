"""Biases of the distance at special points, and between frames."""

import math
from dataclasses import replace

import pytest
import torch

import jarilab
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.core.errors import UserError
from jarilab.encodings import compose
from jarilab.encodings.bias.distance_functions import alibi_slopes
from jarilab.encodings.formulas.absolute import sinusoidal_embed
from jarilab.encodings.numbers import bias_by_distance
from jarilab.laws.fixtures import randomise
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens, distance

HEADS, WIDTH, FAR = 4, 32, 300
BETWEEN_FRAMES = ["t5", "alibi", "alibi:slopes=sides", "kerple", "kerple:kernel=power", "sandwich", "dynamic_bias"]


def encoding_of(spec, **where):
    return compose.build(spec, site_of(WIDTH, HEADS, **where))


def places(length, start=0, frame="sequence"):
    return Positions.sequence(length, start, frame=frame)


@torch.no_grad()
def bias_of(encoding, queries=9, keys=9, start=0):
    return encoding.bias(places(queries, start), places(keys))


# Each by itself ------------------------------------------------------------------------------------------------------


def test_kerple_with_power_1_is_alibi():
    kerple = encoding_of("kerple:kernel=power")
    with torch.no_grad():
        kerple.free_r2.zero_()  # an exponent of 1
        kerple.free_r1.copy_(torch.tensor(alibi_slopes(HEADS)).expm1().log())
    torch.testing.assert_close(bias_of(kerple), bias_of(encoding_of("alibi")))


def test_kerple_follows_its_logarithm():
    kerple = encoding_of("kerple")
    r1, r2 = kerple.coefficients()
    bias_HQK = bias_of(kerple, start=FAR)
    wanted = [-a * math.log1p(b * (FAR - 3)) for a, b in zip(r1.tolist(), r2.tolist(), strict=True)]
    assert bias_HQK[:, 0, 3].tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("kernel", "highest"), [("log", (2, 1)), ("power", (1, 2))])
def test_kerple_parameters_stay_in_the_authors_ranges(kernel, highest):
    kerple = compose.build(f"kerple:kernel={kernel}", site_of(4096, 512))
    for values, top in zip(kerple.coefficients(), highest, strict=True):
        assert 0 < values.min() < 0.1 * top
        assert 0.9 * top < values.max() <= top
        assert values.mean().item() == pytest.approx(top / 2, rel=0.15)
    with torch.no_grad():
        kerple.free_r1.fill_(-30.0)
        kerple.free_r2.fill_(30.0)
    r1, r2 = kerple.coefficients()
    assert r1.min() > 0
    assert kernel == "log" or r2.max() <= 2


def test_the_gradient_of_a_power_is_finite_at_distance_0():
    encoding = encoding_of("kerple:kernel=power")
    place = torch.zeros(3, 1, requires_grad=True)
    here = Positions(place, torch.arange(3))
    encoding.bias(here, here).sum().backward()
    assert place.grad is not None
    assert place.grad.isfinite().all()


def test_sandwich_is_the_product_of_sinusoids_less_that_of_equal_positions():
    bias_HQK = bias_of(encoding_of("sandwich"), 1, 40, start=FAR)
    waves = compose.build("sinusoidal", site_of(128, HEADS))
    embedded = [sinusoidal_embed(waves, place) for place in (FAR, 0, 17, 39)]
    wanted = torch.tensor([float(embedded[0] @ key) for key in embedded[1:]]) - 64
    for head in range(HEADS):
        ratio = 8 * (head + 1) / HEADS
        torch.testing.assert_close(bias_HQK[head, 0, [0, 17, 39]], wanted / ratio, rtol=1e-5, atol=1e-5)


def test_fire_depends_on_distance_up_to_its_length_and_on_the_ratio_beyond():
    fire = randomise(encoding_of("fire:length=64", causal=True))
    length = fire.threshold().item()
    short = bias_of(fire, 20)
    at_distance_3 = short[:, 3:9].diagonal(0, 1, 2)
    torch.testing.assert_close(at_distance_3, at_distance_3[:, :1].expand(-1, 6))
    # The first key is as far as can be for every query from there on.
    beyond = bias_of(fire, 40, 1, start=math.ceil(length) + 1)
    torch.testing.assert_close(beyond, beyond[:, :1].expand_as(beyond))
    assert not torch.allclose(beyond[:, 0], short[:, 19, :1], atol=1e-3)


def test_fire_has_one_network_per_layer_or_one_for_all():
    for spec, count in (("fire", 3), ("fire:shared=true", 1)):
        layers = compose.LayerEncodings(spec, site_of(WIDTH, HEADS, causal=True), 3)
        assert len({id(encoding) for encoding in layers.by_layer}) == count


def test_learned_slopes_start_at_the_papers():
    fixed = bias_of(encoding_of("alibi"))
    for spec in ("alibi:slopes=learned", "alibi:slopes=sides"):
        torch.testing.assert_close(bias_of(encoding_of(spec)), fixed)
    sides = encoding_of("alibi:slopes=sides")
    with torch.no_grad():
        sides.logarithms[1].add_(math.log(2))
    bias_HQK = bias_of(sides)
    torch.testing.assert_close(bias_HQK.triu(1), 2 * fixed.triu(1))
    torch.testing.assert_close(bias_HQK.tril(), fixed.tril())
    assert encoding_of("alibi:slopes=sides", causal=True).logarithms.shape == (1, HEADS)


def test_dynamic_bias_supports_fractional_positions():
    encoding = randomise(encoding_of("dynamic_bias"))
    halves = Positions(torch.arange(10).unsqueeze(-1) / 2, torch.arange(10))
    torch.testing.assert_close(encoding.bias(halves, halves)[:, ::2, ::2], bias_of(encoding, 5, 5))


# Distances looked up -------------------------------------------------------------------------------------------------


def uncounted(places):
    return replace(places, coordinates=places.coordinates.double())


@pytest.mark.parametrize("spec", ["kerple", "kerple:kernel=power", "dynamic_bias", "alibi:slopes=sides"])
def test_bias_by_distance_equals_the_bias_of_pairs(spec):
    encoding = randomise(encoding_of(spec).double())
    results = []
    near, far = Positions.sequence(12), Positions.sequence(12, 40)
    for q_pos, k_pos in ((far, near), (uncounted(far), uncounted(near))):
        # Whole distances are looked up, others not.
        bias = bias_by_distance(q_pos, k_pos, encoding._bias_of)
        towards = torch.randn(bias.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        gradients = torch.autograd.grad((bias * towards).sum(), list(encoding.parameters()))
        results.append([bias.detach(), *gradients])
    torch.testing.assert_close(results[0], results[1])


def test_bias_is_evaluated_once_per_distance():
    asked = []

    def bias(ahead):
        asked.append(ahead.numel())
        return ahead.float().unsqueeze(0)

    near = Positions.sequence(20)
    far = replace(near, coordinates=1000 * near.coordinates)
    for places in (near, far):
        assert torch.equal(bias_by_distance(places, places, bias)[0], distance(places, places).float())
    assert asked == [39, 400]


@pytest.mark.parametrize("spec", ["kerple", "kerple:kernel=power", "dynamic_bias", "fire", "fire:length=9", "sandwich"])
def test_far_distances_differ_under_autocast_and_in_bfloat16(spec):
    encoding = randomise(encoding_of(spec, causal=True))
    with torch.autocast("cpu", torch.bfloat16):
        cast = bias_of(encoding, 1, 700, start=699)
    torch.testing.assert_close(cast, bias_of(encoding, 1, 700, start=699), rtol=0, atol=0)
    assert cast.dtype is torch.float32
    encoding.to(torch.bfloat16)
    assert (bias_of(encoding, 1, 700, start=699)[0, 0, :300].diff() != 0).all()


@pytest.mark.parametrize("spec", ["alibi", "kerple", "t5", "sandwich"])
@torch.no_grad()
def test_attention_with_a_bias_in_bfloat16_is_near_float32(spec):
    encoding = jarilab.PositionEncoding(spec, 16, 16, causal=True)
    q, k, v = torch.randn(3, 1, 16, 100, 16).bfloat16()
    exact = encoding.attention(q.float(), k.float(), v.float())
    torch.testing.assert_close(encoding.attention(q, k, v).float(), exact, rtol=0, atol=0.08)


# Between frames ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", BETWEEN_FRAMES)
def test_distance_between_frames_is_that_of_the_positions(spec):
    encoding = randomise(encoding_of(spec, cross=True))
    target, source = places(5, FAR, "target"), places(7, FAR - 3, "source")
    with torch.no_grad():
        between = geometry_of(encoding, target, source).bias[0]
        within = encoding_of(spec)
        within.load_state_dict(encoding.state_dict())
        bias = within.bias(places(12), places(12))
    # Query n stands where key n + 3 does.
    torch.testing.assert_close(between, bias[:, 3:8, :7])
    assert not torch.allclose(between, bias[:, :5, :7], atol=1e-3)


@pytest.mark.parametrize("spec", BETWEEN_FRAMES)
def test_cross_attention_uses_its_encoding(spec):
    model = EncoderDecoder(12, 12, d_model=WIDTH, n_heads=HEADS, encoding="none", cross_encoding=spec)
    initialise(model, seed=3)
    randomise(model)
    source = torch.randint(3, 12, (2, 7))
    target = torch.randint(3, 12, (2, 5))

    @torch.no_grad()
    def at(start, source_start):
        memory = model.start(Tokens(source, places(7, source_start, "source")))
        return model.step(memory, target, places(5, start, "target"), None)

    torch.testing.assert_close(at(FAR, FAR), at(0, 0), rtol=0, atol=1e-4)
    assert not torch.allclose(at(FAR + 4, FAR), at(FAR, FAR), atol=1e-4)


def test_fire_is_refused_in_cross_attention_and_encoders():
    with pytest.raises(UserError, match="fire cannot be the encoding of cross-attention"):
        encoding_of("fire", cross=True)
    with pytest.raises(UserError, match="fire works only where queries never see later keys"):
        encoding_of("fire")


def test_alibi_slopes_are_the_papers_and_those_of_its_code():
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    # For 12 heads, as Bloom and MPT: those of 8, then every other one of 16.
    assert alibi_slopes(12) == pytest.approx([*alibi_slopes(8), *alibi_slopes(16)[0:8:2]])
    assert alibi_slopes(16)[:3] == pytest.approx([2**-0.5, 2**-1, 2**-1.5])
