"""The attention module: widths, hooks, frames, kernels, refusals."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention

from jarilab.attention.cache import KVCache, LayerCache
from jarilab.attention.definition import output, summands, weights
from jarilab.attention.geometry import geometry_of
from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.core.registry import trust_code
from jarilab.encodings import compose
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.sites import attentions_of
from jarilab.models.decoder import LanguageModel
from jarilab.models.detector import Detector
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.stacks import Decoder, Encoder
from jarilab.models.text_to_image import TextToImage
from jarilab.models.vision import VisionTransformer
from jarilab.nn.init import initialise
from jarilab.nn.norms import BatchNorm
from jarilab.nn.sublayers import Residual
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

WIDTH, HEADS = 16, 2
INSIDE = ["none", "rotary", "shaw:clip=2", "t5", "alibi"]
TOYS = Path(__file__).parents[2] / "helpers" / "toy_encodings.py"
WAVE, STEPS = f"{TOYS}:Wave", f"{TOYS}:Steps"
KERNELS = ["explicit", "fused", "definition"]


def randn(batch, length):
    return torch.randn(batch, length, WIDTH)


def started(module):
    initialise(module, 5)
    return module


# ------------------------------------------------------------------------------------------------ widths


@pytest.mark.parametrize("spec", ["none", "rotary", "shaw", "shaw:values=false", "t5", "alibi"])
def test_values_may_be_wider_than_keys(spec):
    attention = Attention(WIDTH, HEADS, encoding=spec, d_head=6, d_value=10)
    x = randn(3, 5)
    with record(attention) as tape:
        y = attention(x)
    call = tape.recorded("attention").call
    assert (call.q.shape, call.k.shape, call.v.shape) == ((3, 2, 5, 6), (3, 2, 5, 6), (3, 2, 5, 10))
    assert attention.scale == 6**-0.5
    assert y.shape == x.shape
    assert tape.trust("attention").rebuild_error < 1e-5


def test_a_mask_of_another_number_of_rows_is_refused():
    attention, mask = Attention(WIDTH, HEADS), Mask(keys=torch.ones(3, 4, dtype=torch.bool))
    for rows in (1, 2):
        with pytest.raises(UserError, match=f"as many rows as the input, {rows}, or of one row, got 3; select"):
            attention(randn(rows, 4), mask=mask)


@pytest.mark.parametrize(
    ("width", "heads", "message"),
    [
        (10, 4, "d_model must be divisible by n_heads; got d_model=10, n_heads=4; use d_model=8 or 12"),
        (3, 4, "d_model must be divisible by n_heads; got d_model=3, n_heads=4; use d_model=4"),
        (0, 4, "d_model and n_heads must be 1 or more, got d_model=0 and n_heads=4"),
    ],
)
def test_a_width_that_the_heads_do_not_divide(width, heads, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        Attention(width, heads)


@pytest.mark.parametrize(
    ("width", "heads", "spec", "message"),
    [
        (
            60,
            4,
            "rotary",
            "rotary needs an even head width; got 15 (d_model=60, n_heads=4); use d_model=64, or fraction=0.933333",
        ),
        (
            24,
            4,
            "rotary:fraction=0.5",
            "rotary rotates pairs, so an even number of components: fraction=0.5 of the head width 6 is 3; "
            "use fraction=0.666667",
        ),
        (2, 2, "rotary", "rotary needs an even head width; got 1 (d_model=2, n_heads=2); use d_model=4"),
        (2, 2, "rotary:fraction=0.9", "rotary needs an even head width; got 1 (d_model=2, n_heads=2); use d_model=4"),
    ],
)
def test_rotary_needs_pairs(width, heads, spec, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        Attention(width, heads, encoding=spec)


def test_what_rotary_suggests_works():
    refused = 0
    for heads, d_head, fraction in itertools.product((1, 3), range(1, 10), (1, 0.9, 0.5, 0.25, 0.01)):
        width, advice = d_head * heads, ""
        with torch.device("meta"):
            try:
                Attention(width, heads, encoding=f"rotary:fraction={fraction}")
            except UserError as error:
                advice = str(error)
            better_width = re.search(r"use d_model=(\d+)", advice)
            better_fraction = re.search(r"fraction=([\d.]+)$", advice)
            if better_width:
                Attention(int(better_width[1]), heads, encoding="rotary")
            if better_fraction:
                Attention(width, heads, encoding=f"rotary:fraction={better_fraction[1]}")
            assert bool(better_width or better_fraction) is bool(advice), advice
            refused += bool(advice)
    assert refused > 20


# ------------------------------------------------------------------------------------------------ what goes in


@pytest.mark.parametrize("spec", INSIDE)
def test_positions_are_0_1_2_unless_told(spec):
    attention, x, source = Attention(WIDTH, HEADS, encoding=spec, cross=True), randn(2, 4), randn(2, 6)
    explicit = attention(x, source, positions=Positions.sequence(4), source_positions=Positions.sequence(6))
    assert torch.equal(attention(x, source), explicit)


@pytest.mark.parametrize("spec", INSIDE)
def test_each_row_of_a_batch_may_have_its_own_positions(spec):
    attention, x = Attention(WIDTH, HEADS, encoding=spec), randn(2, 4)
    index = torch.tensor([[900, 903, 901, 950], [40, 41, 42, 43]])
    together = attention(x, positions=Positions(index.unsqueeze(-1), torch.arange(4)))
    alone = [attention(x[i : i + 1], positions=Positions(index[i].unsqueeze(-1), torch.arange(4))) for i in range(2)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("spec", INSIDE)
def test_cross_attention_to_the_same_sequence_is_self_attention(spec):
    attention, x = Attention(WIDTH, HEADS, encoding=spec), randn(2, 4)
    torch.testing.assert_close(attention(x, x), attention(x))


def test_distances_between_frames_are_refused_without_cross():
    places = {
        "positions": Positions.sequence(2, frame="target"),
        "source_positions": Positions.sequence(3, frame="source"),
    }
    x, source = randn(1, 2), randn(1, 3)
    with pytest.raises(
        UserError,
        match="one frame of positions, got 'target' and 'source'; build the attention with cross=True",
    ):
        Attention(WIDTH, HEADS, encoding="alibi")(x, source, **places)
    Attention(WIDTH, HEADS, encoding="alibi", cross=True)(x, source, **places)
    Attention(WIDTH, HEADS, encoding="none")(x, source, **places)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("spec", ["none", "t5", "rotary"])
def test_a_query_without_any_key_has_zero_output_and_finite_gradients(spec, kernel):
    attention, x = Attention(WIDTH, HEADS, encoding=spec, kernel=kernel), randn(2, 3).requires_grad_()
    keep = torch.tensor([[True, True, True], [False, True, True]])
    y = attention(x, mask=Mask(causal=True, keys=keep))
    torch.testing.assert_close(y[1, 0], attention.out.bias)
    assert not torch.allclose(y[0, 0], attention.out.bias)
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[1, 0].any()


def test_weights_are_dropped_only_in_training():
    attention, x = Attention(WIDTH, HEADS, dropout=0.5), randn(2, 6)
    assert not torch.allclose(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("spec", ["sinusoidal", "learned", "sinusoidal+rotary"])
def test_an_encoding_of_the_input_is_refused_by_a_lone_attention(spec):
    with pytest.raises(UserError, match=re.escape(f"{spec} is added to the input of a model")):
        Attention(WIDTH, HEADS, encoding=spec)


@pytest.mark.parametrize("spec", ["sinusoidal", "learned"])
def test_an_encoding_of_the_input_is_refused_in_cross_attention(spec):
    message = f"^{spec} cannot be the encoding of cross-attention; use it in the encoder and the decoder$"
    with pytest.raises(UserError, match=message):
        Decoder(WIDTH, HEADS, cross_encoding=spec)


def test_an_encoding_for_causal_attention_is_refused_elsewhere(tmp_path):
    path = tmp_path / "past.py"
    trust_code(path)
    path.write_text("from jarilab import Encoding\n\n\nclass Past(Encoding):\n    causal_only = True\n")
    with pytest.raises(UserError, match=r"works only where queries never see later keys; use it in a causal decoder"):
        Attention(WIDTH, HEADS, encoding=f"{path}:Past")
    Attention(WIDTH, HEADS, encoding=f"{path}:Past", causal=True)


def test_the_fused_kernel_is_refused_where_the_weights_are_needed():
    with pytest.raises(
        UserError,
        match=r"fused kernel .* attention weights, .*; use kernel=explicit or auto, or switch",
    ):
        Attention(WIDTH, HEADS, encoding="shaw", kernel="fused")
    Attention(WIDTH, HEADS, encoding="shaw:values=false", kernel="fused")


def test_a_cache_without_geometry_is_refused():
    message = r"expected a geometry, got none; pass geometry=jarilab.geometry_of\(encoding, q_pos, k_pos, "
    with pytest.raises(UserError, match=message):
        Attention(WIDTH, HEADS)(randn(1, 2), cache=LayerCache())
    with pytest.raises(UserError, match=message):
        Attention(WIDTH, HEADS, encoding=None)(randn(1, 2))


def test_cross_attention_without_a_source_is_refused():
    with pytest.raises(UserError, match="a source of keys, got none; pass it as the second argument"):
        Attention(WIDTH, HEADS, cross=True)(randn(1, 2))


# ------------------------------------------------------------------------------------------------ hooks of one's own


def test_inject_reaches_queries_and_keys_but_not_values():
    attention, x, positions = Attention(WIDTH, HEADS, encoding=WAVE), randn(2, 5), Positions.sequence(5, 300)
    with record(attention) as tape:
        attention(x, positions=positions)
    call, injected = tape.recorded("attention").call, attention.encoding.inject(x, positions)

    def heads_of(y):
        return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    torch.testing.assert_close(call.q, heads_of(attention.query(injected)))
    torch.testing.assert_close(call.k, heads_of(attention.key(injected)))
    torch.testing.assert_close(call.v, heads_of(attention.value(x)))
    assert not torch.allclose(injected, x)


def test_inject_in_cross_attention_places_each_side_by_its_own_positions():
    attention, x, source = Attention(WIDTH, HEADS, encoding=WAVE, cross=True), randn(1, 3), randn(1, 5)

    def at(q_start, k_start):
        with record(attention) as tape:
            attention(
                x, source, positions=Positions.sequence(3, q_start), source_positions=Positions.sequence(5, k_start)
            )
        return tape.recorded("attention").call

    here = at(300, 700)
    assert torch.equal(at(301, 700).k, here.k)
    assert torch.equal(at(300, 701).q, here.q)
    assert not torch.allclose(at(301, 700).q, here.q)
    assert not torch.allclose(at(300, 701).k, here.k)
    assert torch.equal(at(300, 701).v, here.v)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "spec", [WAVE, STEPS, f"rotary+{STEPS}+shaw:clip=2"], ids=["Wave", "Steps", "rotary+Steps+shaw"]
)
def test_hooks_of_ones_own_carry_a_decoder_with_cross_attention_and_cache(spec, norm):
    decoder = started(Decoder(WIDTH, HEADS, encoding=spec, cross_encoding=spec, norm=norm))
    x, memory = randn(2, 6), randn(2, 4)
    at_once = decoder(x, memory, positions=Positions.sequence(6, 300, frame="target"))
    cache, steps = KVCache(2), []
    for start, stop in ((0, 1), (1, 2), (2, 5), (5, 6)):
        places = Positions.sequence(stop - start, 300 + start, frame="target")
        steps.append(decoder(x[:, start:stop], memory, positions=places, cache=cache))
    torch.testing.assert_close(torch.cat(steps, 1), at_once)


@pytest.mark.parametrize("spec", [WAVE, STEPS], ids=["Wave", "Steps"])
def test_hooks_of_ones_own_carry_a_grid(spec):
    """An image and its transpose give the same only where rows and columns cost the same, which here they do not."""
    encoder, x = started(Encoder(WIDTH, HEADS, n_layers=1, encoding=spec)), randn(1, 6)
    grid = Positions.grid(2, 3)
    turned = Positions(grid.coordinates.flip(-1), grid.order, grid.axes, grid.frame)
    assert not torch.allclose(encoder(x, positions=grid), encoder(x, positions=turned), atol=1e-3)

    order = torch.tensor([4, 0, 5, 2, 1, 3])
    shuffled = Positions(grid.coordinates[order], grid.order, grid.axes, grid.frame)
    torch.testing.assert_close(encoder(x[:, order], positions=shuffled), encoder(x, positions=grid)[:, order])


def test_a_bias_on_a_grid_is_that_of_each_pair_of_cells():
    encoding, grid = compose.build(STEPS, Attention(WIDTH, HEADS).site), Positions.grid(2, 3)
    assert geometry_of(encoding, grid, grid).bias[0, 1, 0].tolist() == [0, -10, -20, -1, -11, -21]


# ------------------------------------------------------------------------------------------------ sums and stacks


def test_a_sum_adds_what_its_parts_add():
    site, pos = Attention(WIDTH, HEADS).site, Positions.sequence(4, 300)
    both, t5, alibi = (compose.build(text, site) for text in ("t5+alibi", "t5", "alibi"))
    with torch.no_grad():
        t5.table.copy_(both.parts[0].table)
    torch.testing.assert_close(both.bias(pos, pos), t5.bias(pos, pos) + alibi.bias(pos, pos))
    assert both.hooks == {"bias"}


def test_the_longest_of_a_sum_is_that_of_its_shortest_part():
    assert Encoder(WIDTH, HEADS, encoding="learned:positions=9+rotary+learned:positions=7").encoding.max_positions == 7
    assert Encoder(WIDTH, HEADS, encoding="rotary+t5").encoding.max_positions is None


def test_layers_share_what_is_shared_and_own_the_rest():
    encodings = Encoder(WIDTH, HEADS, n_layers=3, encoding="t5+shaw").encoding
    assert [len(parts) for parts in encodings.parts] == [1, 3]
    first, second, _ = encodings.by_layer
    assert first.parts[0] is second.parts[0]
    assert first.parts[1] is not second.parts[1]
    assert not encodings.shared
    assert Encoder(WIDTH, HEADS, n_layers=3, encoding="t5+rotary").encoding.shared


def test_every_layer_uses_the_tables_it_owns():
    encoder = started(Encoder(WIDTH, HEADS, n_layers=2, encoding="shaw:clip=1,values=false"))
    with record(encoder) as tape:
        encoder(randn(1, 4))
    for site in tape.sites:
        call = tape.recorded(site).call
        expected = encoder.encoding.parts[0][int(site[-1])]
        assert call.geometry.encoding is expected
    first, second = (tape.recorded(site).call for site in tape.sites)
    assert not torch.allclose(
        first.geometry.encoding.terms(first.q, first.k, first.geometry.relation),
        second.geometry.encoding.terms(first.q, first.k, first.geometry.relation),
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_gives_back_weights_times_values(kernel):
    attention, x = Attention(WIDTH, HEADS, encoding="alibi", kernel=kernel), randn(2, 5)
    with record(attention) as tape:
        y = attention(x)
    call = tape.recorded("attention").call
    torch.testing.assert_close(y, attention.out((weights(call) @ call.v).transpose(1, 2).flatten(-2)))


@pytest.mark.parametrize("encoding", ["none", "rotary", "t5", "alibi", "shaw:clip=2"])
@pytest.mark.parametrize("shape", [(0, 5, 16), (3, 0, 16)])
def test_nothing_in_gives_nothing_out(encoding, shape):
    encoder = Encoder(16, n_heads=2, n_layers=1, encoding=encoding)
    assert encoder(torch.zeros(shape)).shape == shape


@pytest.mark.parametrize("length", [1, 7])
def test_each_token_needs_its_position(length):
    encoder = Encoder(16, n_heads=2, n_layers=1, encoding="rotary")
    expected = f"positions of 2 rows of 10 tokens, got 2 of {length}"
    with pytest.raises(UserError, match=expected):
        encoder(torch.zeros(2, 10, 16), positions=Positions.sequence(length))


def test_a_stack_refuses_what_it_cannot_be():
    with pytest.raises(UserError, match="a stack has 1 layer or more, got 0"):
        Encoder(16, n_heads=2, n_layers=0)
    with pytest.raises(UserError, match="a stack has 1 layer or more, got 0"):
        Decoder(16, n_heads=2, n_layers=0)


def test_a_plain_tensor_is_no_mask(unchecked):
    attention = Attention(16, n_heads=2)
    with pytest.raises(UserError, match=r"wrap a boolean tensor, True = may attend: jarilab.Mask\(pairs=...\)"):
        attention(torch.zeros(1, 3, 16), mask=torch.ones(3, 3, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(1, 3, 8), (3, 16), (1, 1, 3, 16)])
def test_inputs_of_another_shape_are_refused(shape, unchecked):
    wrong, right = torch.zeros(shape), torch.zeros(1, 3, 16)
    attention, encoder, decoder = Attention(16, 2, cross=True), Encoder(16, 2), Decoder(16, 2)
    message = r"expected an input \(B, L, 16\), got " + re.escape(str(shape))
    calls = [(attention, wrong), (attention, right, wrong), (encoder, wrong), (decoder, wrong, right)]
    for module, *inputs in [*calls, (decoder, right, wrong)]:
        with pytest.raises(UserError, match=message):
            module(*inputs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_inputs_of_another_dtype_are_refused_without_autocast(dtype, unchecked):
    x = torch.zeros(1, 3, 16)
    with pytest.raises(UserError, match=rf"torch\.float32.*, got {dtype}; convert with \.to\("):
        Encoder(16, 2)(x.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert Encoder(16, 2)(x.bfloat16()).shape == (1, 3, 16)


# ------------------------------------------------------------------------------------------------ the divisor


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("spec", INSIDE)
def test_unscaled_scores_are_larger_by_the_root_of_the_head_width(spec, kernel):
    if kernel == "fused" and spec.startswith("shaw"):
        spec += ",values=false"
    divided = started(Attention(WIDTH, HEADS, encoding=spec, kernel=kernel))
    plain = started(Attention(WIDTH, HEADS, encoding=spec, kernel=kernel, scale="none"))
    x = randn(2, 5)
    with record(divided) as tape:
        divided(x)
    with record(plain) as undivided:
        y = plain(x)
    unscaled_call, scaled_call = undivided.recorded("attention").call, tape.recorded("attention").call
    unscaled, scaled = summands(unscaled_call), summands(scaled_call)
    torch.testing.assert_close(unscaled.scaled, scaled.scaled * (WIDTH // HEADS) ** 0.5)
    if scaled.bias is not None:
        torch.testing.assert_close(unscaled.bias, scaled.bias)
    assert undivided.trust("attention").rebuild_error < 1e-5
    torch.testing.assert_close(undivided.recorded("attention").output, output(unscaled_call))
    assert y.isfinite().all()


def test_another_scale_is_refused(unchecked):
    with pytest.raises(UserError, match="unknown scale 'root'; Known: none, sqrt"):
        Attention(WIDTH, HEADS, scale="root")


@pytest.mark.parametrize("make", [
    lambda **o: LanguageModel(9, d_model=16, n_heads=2, **o),
    lambda **o: EncoderDecoder(9, 9, d_model=16, n_heads=2, **o),
    lambda **o: VisionTransformer((1, 8, 8), 3, d_model=16, n_heads=2, **o),
    lambda **o: Detector(1, 3, d_model=16, n_heads=2, **o),
    lambda **o: TextToImage(9, 9, 4, 2, 2, d_model=16, n_heads=2, **o),
])  # fmt: skip
def test_the_option_reaches_every_attention_and_norm_of_a_model(make):
    model = make(scale="none", norm_kind="batch")
    placed = attentions_of(model)
    assert placed
    assert {one.owner.scale for one in placed.values()} == {1.0}
    residuals = [part for part in model.modules() if isinstance(part, Residual)]
    assert {type(residual.norm) for residual in residuals} == {BatchNorm}


@pytest.mark.parametrize("rows", [1, 257])
def test_queries_keys_and_values_are_equal_by_three_products_and_by_one(rows):
    """Without gradients, few rows are multiplied by each weight separately."""
    attention, x = started(Attention(WIDTH, HEADS)), randn(rows, 1)
    with torch.no_grad():
        separate = attention._project_together(x)
    for one, other in zip(separate, attention._project_together(x), strict=True):
        assert (one.untyped_storage().nbytes() > one.nbytes) is (rows == 257)
        torch.testing.assert_close(one, other)


def test_a_mask_that_hides_nothing_from_the_one_query_is_left_out():
    encoding, keys = compose.build("none", Attention(WIDTH, HEADS).site), Positions.sequence(4)
    last, third = Positions.sequence(1, 3), Positions.sequence(1, 2)
    assert geometry_of(encoding, last, keys, Mask(causal=True)).allowed is None
    assert geometry_of(encoding, third, keys, Mask(causal=True)).allowed.tolist() == [[[[True, True, True, False]]]]
    assert geometry_of(encoding, keys, keys, Mask(keys=torch.ones(2, 4, dtype=torch.bool))).allowed is None


# ------------------------------------------------------------------------------------------------ queries without a key


@pytest.mark.parametrize("encoding", ["rotary", "alibi", "shaw:clip=2"])
@pytest.mark.parametrize("batch", [1, 200])  # of which the second is computed as many short sequences
@pytest.mark.parametrize("kernel", ["auto", "definition", "explicit", "fused", "blocks", "flex"])
def test_a_query_before_all_keys_gives_the_output_bias_alone(monkeypatch, kernel, batch, encoding):
    """Between two sequences: queries at 0, 1, 2 and keys at 2, 3, 4, 5."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    if (kernel, encoding) in {("fused", "shaw:clip=2"), ("flex", "shaw:clip=2")}:
        pytest.skip("the kernel is refused when the module is built")
    attention = Attention(WIDTH, HEADS, encoding=encoding, causal=True, cross=True, kernel=kernel)
    x, source = randn(batch, 3), randn(batch, 4).requires_grad_(kernel != "flex")
    places = {"positions": Positions.sequence(3), "source_positions": Positions.sequence(4, 2)}
    with torch.set_grad_enabled(kernel != "flex"):
        y = attention(x, source, mask=Mask(causal=True), **places)
    assert torch.equal(y[:, :2], attention.out.bias.expand(batch, 2, -1))
    assert not torch.equal(y[:, 2], attention.out.bias.expand(batch, -1))
    if kernel != "flex":
        y.sum().backward()
        assert source.grad is not None
        assert source.grad.isfinite().all()
        assert source.grad[:, 0].abs().min() > 0
        assert (source.grad[:, 1:] == 0).all()
