"""Rotary encodings for longer texts, images and three axes at special points, and log_length."""

import math

import pytest
import torch

from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.core.errors import UserError
from jarilab.encodings.base import Encoding, registry
from jarilab.encodings.compose import build, canonical
from jarilab.encodings.formulas.rotary import rotate_rotary3d
from jarilab.models.decoder import LanguageModel, NoPrompt
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens

WIDTH, HEADS, HEAD_WIDTH = 48, 3, 16
FAR = 300
EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 0, "atol": 1e-6}

SCALED = ["rotary_linear", "rotary_ntk", "rotary_dynamic", "yarn", "longrope", "llama3", "prope"]


def encoding_of(spec: str, *, d_model: int = WIDTH, n_heads: int = HEADS, causal: bool = False) -> Encoding:
    return build(spec, site_of(d_model, n_heads, causal=causal))


def vectors(length: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(batch, HEADS, length, HEAD_WIDTH, generator=generator, dtype=torch.float64)


def rotate(spec: str, x: torch.Tensor, pos: Positions, keys: Positions | None = None) -> torch.Tensor:
    encoding = encoding_of(spec)
    return encoding.rotate(x, encoding.rotation_for(pos, "query", pos if keys is None else keys))


# Special points ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        "rotary_linear:factor=1",
        "rotary_ntk:factor=1",
        "rotary_dynamic:trained_length=1000",
        "yarn:factor=1",
        "longrope:long=1,factor=1",
        "llama3:factor=1,base=10000",
        "prope:fraction=1",
        "rotary3d",
        "rotary3d:layout=interleaved",
    ],
)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_without_scaling_it_is_plain_rotary(spec, pairing):
    x, pos = vectors(9), Positions.sequence(9, FAR)
    joint = "," if ":" in spec else ":"
    rotated = rotate(f"{spec}{joint}pairing={pairing}", x, pos)
    torch.testing.assert_close(rotated, rotate(f"rotary:pairing={pairing}", x, pos), **EXACT)


@pytest.mark.parametrize("spec", SCALED)
def test_with_scaling_it_is_not_plain_rotary(spec):
    """The test above would hold for an encoding that never scales."""
    x, pos = vectors(9), Positions.sequence(9, 6000)
    assert not torch.allclose(rotate(spec, x, pos), rotate("rotary", x, pos), rtol=0, atol=1e-2)


def test_linear_maps_a_longer_text_to_a_shorter_one():
    x = vectors(5)
    order = torch.arange(5)
    between = Positions(order[:, None] / 4, order)
    spaced = Positions(order[:, None], order)
    torch.testing.assert_close(rotate("rotary_linear", x, spaced), rotate("rotary", x, between), **CLOSE)


def test_ntk_slows_the_slowest_pair_by_the_factor_but_not_the_fastest():
    x = torch.zeros(1, HEADS, 1, HEAD_WIDTH, dtype=torch.float64)
    x[..., 0] = x[..., HEAD_WIDTH // 2 - 1] = 1.0
    at = torch.tensor([[500]])
    there = Positions(at, torch.arange(1))
    nearer = Positions(at / 4, torch.arange(1))
    rotated, plain, quarter = rotate("rotary_ntk", x, there), rotate("rotary", x, there), rotate("rotary", x, nearer)
    fastest, slowest = [0, HEAD_WIDTH // 2], [HEAD_WIDTH // 2 - 1, HEAD_WIDTH - 1]
    torch.testing.assert_close(rotated[..., fastest], plain[..., fastest], **CLOSE)
    torch.testing.assert_close(rotated[..., slowest], quarter[..., slowest], **CLOSE)


@pytest.mark.parametrize("name", ["rotary_ntk", "rotary_dynamic"])
def test_a_single_pair_is_refused(name):
    with pytest.raises(UserError, match=f"{name} slows the slowest pair .* use d_model=12"):
        encoding_of(name, d_model=6)


@pytest.mark.parametrize("spec", [f"{name}:fraction=0.5" for name in SCALED if name != "prope"])
def test_components_outside_the_fraction_do_not_change(spec):
    x = vectors(9)
    rotated = rotate(spec, x, Positions.sequence(9, 6000))
    torch.testing.assert_close(rotated[..., HEAD_WIDTH // 2 :], x[..., HEAD_WIDTH // 2 :], **EXACT)
    assert not torch.allclose(rotated[..., : HEAD_WIDTH // 2], x[..., : HEAD_WIDTH // 2])


def test_prope_rotates_only_the_fastest_pairs_as_rotary_does():
    x, pos = vectors(9), Positions.sequence(9, FAR)
    rotated, plain = rotate("prope:fraction=0.25", x, pos), rotate("rotary", x, pos)
    turning = [0, 1, 8, 9]
    still = [component for component in range(HEAD_WIDTH) if component not in turning]
    torch.testing.assert_close(rotated[..., turning], plain[..., turning], **EXACT)
    torch.testing.assert_close(rotated[..., still], x[..., still], **EXACT)
    assert not torch.allclose(rotated, rotate("rotary:fraction=0.25", x, pos))


@pytest.mark.parametrize(("dtype", "longest"), [(torch.float16, 6000), (torch.float32, 60_000)])
def test_xpos_refuses_powers_that_overflow(dtype, longest):
    encoding, x = encoding_of("xpos", causal=True), vectors(2).to(dtype)
    for last in (longest, 2 * longest):
        pos = Positions(torch.tensor([[0], [last]]), torch.arange(2))
        rotations = [encoding.rotation_for(pos, side, pos) for side in ("query", "key")]
        if last == longest:
            assert all(encoding.rotate(x, rotation).isfinite().all() for rotation in rotations)
            continue
        for rotation in rotations:
            with pytest.raises(UserError, match=f"or less in {dtype}, which overflows; use bfloat16, fewer keys"):
                encoding.rotate(x, rotation)


def test_prope_of_less_than_a_pair_is_refused():
    with pytest.raises(UserError, match=r"fraction=0\.1; use fraction=0\.125 or more"):
        encoding_of("prope:fraction=0.1")


# The length decides --------------------------------------------------------------------------------------------------

BY_LENGTH = ["rotary_dynamic:trained_length=8,factor=2", "longrope:trained_length=8,long=1/2/3/4/5/6/7/8"]
by_length = pytest.mark.parametrize("spec", BY_LENGTH)


@by_length
def test_a_long_text_does_not_change_a_later_short_one(spec):
    """Trap 24: in other libraries the base stays enlarged after a long input."""
    encoding, x = encoding_of(spec), vectors(6)
    short, long = Positions.sequence(6), Positions.sequence(40)
    alone = encoding.rotate(x, encoding.rotation_for(short, "query", short))
    encoding.rotation_for(long, "query", long)
    again = encoding.rotate(x, encoding.rotation_for(short, "query", short))
    torch.testing.assert_close(again, alone, **EXACT)
    assert not torch.allclose(encoding.rotate(x, encoding.rotation_for(short, "query", long)), alone)


@by_length
def test_each_row_has_its_own_length(spec):
    x, row_L = vectors(9), torch.arange(9)
    keep_BL = torch.stack((row_L < 9, row_L < 5))
    pos = Positions.from_mask(keep_BL)
    both = rotate(spec, x, pos)
    first, second = Positions.sequence(9), Positions.sequence(5)
    torch.testing.assert_close(both[:1], rotate(spec, x[:1], first), **CLOSE)
    torch.testing.assert_close(both[1:, :, :5], rotate(spec, x[1:, :, :5], second), **CLOSE)


@by_length
def test_tokens_without_a_position_do_not_count_as_length(spec):
    x, sequence = vectors(9), Positions.sequence(9)
    last_L = torch.arange(9) == 8
    marked = Positions(sequence.coordinates, sequence.order, unplaced=last_L)
    rotated = rotate(spec, x, marked)
    torch.testing.assert_close(rotated[:, :, 8], x[:, :, 8], **EXACT)
    torch.testing.assert_close(rotated[:, :, :8], rotate(spec, x[:, :, :8], sequence.slice(0, 8)), **EXACT)


@by_length
def test_no_keys_raise_no_error(spec):
    encoding = encoding_of(spec)
    nothing = Positions.sequence(0)
    assert geometry_of(encoding, Positions.sequence(3), nothing).q_rotation[0].shape[-2] == 3


@by_length
@torch.no_grad()
def test_cached_keys_are_rotated_again_beyond_the_trained_length(spec):
    """With one layer, whose keys depend on tokens only, generating beyond the trained length equals one forward."""
    model = LanguageModel(7, d_model=WIDTH, n_heads=HEADS, n_layers=1, encoding=spec).double()
    initialise(model, 1)
    ids, cache = torch.randint(7, (2, 14), generator=torch.Generator().manual_seed(0)), model.new_cache()
    for number in range(14):
        pos = Positions.sequence(1, number)
        rotated = model.step(NoPrompt(), ids[:, number : number + 1], pos, cache)
    at_once = model.step(NoPrompt(), ids, Positions.sequence(14), None)
    torch.testing.assert_close(rotated[:, -1], at_once[:, -1], rtol=0, atol=1e-9)


# YaRN's temperature (trap 25) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "temperature"),
    [
        ("yarn:factor=16", 0.1 * math.log(16) + 1),
        ("yarn:factor=16,attention_factor=1", 1.0),
        ("yarn:factor=16,attention_factor=0.7", 0.7),
        ("yarn:factor=1", 1.0),
        ("longrope:factor=32", math.sqrt(1 + math.log(32) / math.log(4096))),
        ("longrope:factor=32,attention_factor=1.19", 1.19),
    ],
)
def test_the_temperature_multiplies_queries_and_keys_once(spec, temperature):
    x = vectors(9)
    encoding = encoding_of(spec)
    rotated = rotate(spec, x, Positions.sequence(9, FAR))
    torch.testing.assert_close(rotated.norm(dim=-1), temperature * x.norm(dim=-1), rtol=1e-6, atol=0)
    assert encoding.keeps_norms == (temperature == 1)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones_by_the_factor():
    spec = "yarn:factor=4,trained_length=256,attention_factor=1"
    x, pos = vectors(9), Positions.sequence(9, FAR)
    quarter = Positions(pos.coordinates / 4, pos.order)
    rotated, plain, slowed = rotate(spec, x, pos), rotate("rotary", x, pos), rotate("rotary", x, quarter)
    fastest, slowest = [0, 8], [7, 15]
    torch.testing.assert_close(rotated[..., fastest], plain[..., fastest], **CLOSE)
    torch.testing.assert_close(rotated[..., slowest], slowed[..., slowest], **CLOSE)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("yarn:slow_turns=32", "expected slow_turns below fast_turns, got 32 and 32; the paper has"),
        ("llama3:low_frequency_factor=5", "got 5 and 4; Llama 3.1 has 1 and 4"),
        ("longrope:long=1/2", "a number for each of the 8 pairs, or one for all, got 2; write such as long=1/1/1"),
        ("longrope:short=1/x", "expected numbers between slashes, 1/1.2/2.5/4, got '1/x'"),
        ("longrope:short=0", "numbers above 0, got '0'; 1 slows nothing"),
        ("log_length:only_beyond=true", "write log_length:trained_length=512"),
        ("rotary3d:sections=4/4", "got '4/4'; write such as sections=3/3/2"),
        ("rotary3d:sections=4/4/4", "expected 8 pairs.*got 12 in 4/4/4; write such as sections=3/3/2"),
        ("rotary3d:sections=0/4/4,layout=interleaved", "at most 3 of the 8 pairs for axis 2"),
        ("pixtral:fraction=0.4", "pixtral rotates pairs by rows and pairs by columns"),
        ("rotary_linear:fraction=0.3", "rotary_linear rotates pairs, so an even number"),
    ],
)
def test_invalid_options_are_refused_with_a_suggestion(spec, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        encoding_of(spec)


# Log n ---------------------------------------------------------------------------------------------------------------


def test_causal_log_length_depends_on_the_position_of_the_query():
    encoding, pos = encoding_of("log_length", causal=True), Positions.sequence(5, 10)
    x = vectors(5)
    rotated = encoding.rotate(x, encoding.rotation_for(pos, "query", pos))
    factor = torch.arange(11, 16, dtype=torch.float64).log()
    torch.testing.assert_close(rotated, x * factor[:, None], rtol=1e-6, atol=0)
    torch.testing.assert_close(encoding.rotate(x, encoding.rotation_for(pos, "key", pos)), x, **EXACT)


def test_log_length_depends_on_the_number_of_keys_elsewhere():
    encoding, queries = encoding_of("log_length"), Positions.sequence(5)
    x = vectors(5)
    rotated = encoding.rotate(x, encoding.rotation_for(queries, "query", Positions.sequence(20)))
    torch.testing.assert_close(rotated, x * math.log(20), rtol=1e-6, atol=0)


def test_log_length_keeps_scores_at_the_trained_length():
    x, pos = vectors(20), Positions.sequence(20)
    torch.testing.assert_close(rotate("log_length:trained_length=20", x, pos), x, rtol=1e-6, atol=0)
    shorter = Positions.sequence(5)
    only_beyond = rotate("log_length:trained_length=20,only_beyond=true", x[:, :, :5], shorter)
    torch.testing.assert_close(only_beyond, x[:, :, :5], **EXACT)
    assert not torch.allclose(rotate("log_length:trained_length=20", x[:, :, :5], shorter), x[:, :, :5])


def test_log_length_uses_order_only_in_a_sum_or_a_decoder():
    assert not encoding_of("log_length").uses_order
    assert not encoding_of("none+log_length").uses_order
    assert encoding_of("rotary+log_length").uses_order
    assert encoding_of("log_length", causal=True).uses_order


# Images and three axes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["pixtral", "sinusoidal_mae", "continuous_bias2d"])
def test_rows_and_columns_differ_in_a_rectangular_grid(spec):
    encoding = encoding_of(spec)
    grid, turned_grid = Positions.grid(3, 5), Positions.grid(5, 3)
    transposed = Positions(turned_grid.coordinates.flip(-1), grid.order, grid.axes)
    order = torch.arange(15).view(5, 3).t().flatten()

    def answer(pos: Positions) -> torch.Tensor:
        if "bias" in encoding.hooks:
            return encoding.bias(pos, pos)
        if "embed" in encoding.hooks:
            return encoding.embed(torch.zeros(1, 15, WIDTH), pos)
        return encoding.rotate(vectors(15)[:1], encoding.rotation(pos))

    swapped = Positions(grid.coordinates.flip(-1), grid.order, grid.axes)
    assert not torch.allclose(answer(grid), answer(swapped), rtol=0, atol=1e-3)
    assert transposed.coordinates[order].equal(grid.coordinates)


@pytest.mark.parametrize("spec", ["pixtral", "rotary3d", *SCALED])
def test_a_class_token_is_not_rotated(spec):
    like = Positions.grid(2, 3) if 2 in registry.spec(spec).target.axes else Positions.sequence(6, FAR)
    pos = Positions.nowhere(1, like).concat(like)
    x = vectors(7)
    torch.testing.assert_close(rotate(spec, x, pos)[:, :, 0], x[:, :, 0], **EXACT)


def volume(times: int, rows: int, columns: int) -> Positions:
    spans = [torch.arange(count) for count in (times, rows, columns)]
    coordinates = torch.cartesian_prod(*spans)
    return Positions(coordinates, torch.arange(len(coordinates)), ("time", "row", "column"), "video")


@pytest.mark.parametrize("layout", ["sections", "interleaved", "axial"])
@pytest.mark.parametrize("options", ["", ",sections=4/2/2", ",pairing=interleaved"])
def test_three_axes_agree_with_the_formula(layout, options):
    spec, pos = f"rotary3d:layout={layout}{options}", volume(2, 3, 4)
    x = vectors(24, 1)
    rotated = rotate(spec, x, Positions(pos.coordinates + 500, pos.order, pos.axes, pos.frame))
    for token, place in enumerate(pos.coordinates.tolist()):
        wanted = rotate_rotary3d(encoding_of(spec), x[0, 1, token], tuple(coordinate + 500 for coordinate in place))
        torch.testing.assert_close(rotated[0, 1, token], torch.from_numpy(wanted), **CLOSE)


@pytest.mark.parametrize("layout", ["sections", "interleaved", "axial"])
def test_scores_of_three_axes_depend_on_distances_only(layout):
    spec, pos, x = f"rotary3d:layout={layout}", volume(2, 3, 4), vectors(24)
    for move in ((700, 0, 0), (0, 700, 0), (0, 0, 700), (5, 30, 700)):
        moved = Positions(pos.coordinates + torch.tensor(move), pos.order, pos.axes, pos.frame)
        here, there = rotate(spec, x, pos), rotate(spec, x, moved)
        assert not torch.allclose(here, there)
        torch.testing.assert_close(here @ here.mT, there @ there.mT, rtol=0, atol=1e-4)


def test_each_axis_rotates_only_its_pairs():
    spec, x = "rotary3d:sections=4/2/2", vectors(1, 1)
    pairs_of = {0: range(4), 1: range(4, 6), 2: range(6, 8)}
    for axis, pairs in pairs_of.items():
        place = torch.zeros(1, 3, dtype=torch.int64)
        place[0, axis] = FAR
        there = rotate(spec, x, Positions(place, torch.arange(1), ("time", "row", "column")))
        changed = (there != x)[0, 0, 0]
        assert changed.nonzero().flatten().tolist() == [*pairs, *(pair + 8 for pair in pairs)]


def test_tokens_of_captioned_images_are_rotated_by_their_axes():
    """-1 is no position and rotates nothing."""
    coordinates = torch.tensor([[5, -1, -1], [6, -1, -1], [-1, 0, 3], [-1, 2, 1]])
    pos = Positions(coordinates, torch.arange(4), ("text", "image.row", "image.column"))
    at_zero = Positions(coordinates.clamp_min(0), pos.order, ("time", "row", "column"))
    x = vectors(4)
    torch.testing.assert_close(rotate("rotary3d", x, pos), rotate("rotary3d", x, at_zero), **EXACT)


def test_rotary3d_supports_one_axis_or_three():
    with pytest.raises(UserError, match="one coordinate expected"):
        rotate("rotary3d", vectors(6), Positions.grid(2, 3))


def test_continuous_bias_supports_fractional_positions():
    """Integers as floating-point numbers take another path through the code."""
    encoding, grid = encoding_of("continuous_bias2d"), Positions.grid(3, 4)
    fractions = Positions(grid.coordinates.double(), grid.order, grid.axes)
    torch.testing.assert_close(encoding.bias(fractions, fractions), encoding.bias(grid, grid), **CLOSE)
    finer = Positions(grid.coordinates / 2, grid.order, grid.axes)
    assert encoding.bias(finer, finer).isfinite().all()


# What is learned, and scales -----------------------------------------------------------------------------------------


def test_the_scale_of_sinusoids_starts_at_that_of_the_source():
    x, pos = torch.zeros(1, 5, WIDTH), Positions.sequence(5, FAR)
    plain = encoding_of("sinusoidal:layout=concatenated").embed(x, pos)
    torch.testing.assert_close(encoding_of("scaled_sinusoidal").embed(x, pos), plain * WIDTH**-0.5)


def test_pope_separates_magnitude_and_position():
    """At distance 0 the score is the product of magnitudes; the sign of a component changes no angle."""
    encoding = encoding_of("pope").double()
    x, pos = vectors(5), Positions.sequence(5, FAR)
    product = x @ x.mT
    added = encoding.terms_for(x, x, encoding.relation(pos, pos), {"product": product})
    sizes = torch.nn.functional.softplus(x)
    same_place = (added + product).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(same_place, sizes.square().sum(-1), rtol=0, atol=1e-5)


def test_unscaled_t5_cancels_the_scale_of_the_attention():
    assert encoding_of("t5").scale_factor == 1
    assert encoding_of("t5:scaled=false").scale_factor == math.sqrt(HEAD_WIDTH)


def test_specs_with_lists_have_a_canonical_text():
    spec = "longrope:short=1/1.5/2/2/2/2/2/2,long=8"
    assert canonical(spec) == spec
    assert canonical(f"{spec},none") == f"{spec},none"
    assert canonical("mrope:sections=4/2/2+log_length") == "rotary3d:sections=4/2/2+log_length"


@pytest.mark.parametrize("spec", [*SCALED, "pope", "scaled_sinusoidal", "t5:scaled=false", "rotary3d"])
def test_a_padded_batch_equals_single_texts(spec):
    model = LanguageModel(9, d_model=WIDTH, n_heads=HEADS, n_layers=2, encoding=spec).double().eval()
    initialise(model, 1)
    ids = torch.randint(9, (2, 6), generator=torch.Generator().manual_seed(1))
    keep = torch.tensor([[True] * 6, [False, False, True, True, True, True]])
    both = model(Tokens(ids, Positions.from_mask(keep), keep))
    torch.testing.assert_close(both[1:, 2:], model(ids[1:, 2:]), rtol=0, atol=1e-6)
