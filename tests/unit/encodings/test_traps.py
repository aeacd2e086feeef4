"""Faults of positional encodings in other libraries, one test each, far from position 0, where most of them look
right. The numbers are those of the list the project was designed against; where a fault has a well-known wrong variant
the test shows that it would have caught it.

Numbers without a test here, and why:

 24  dynamic NTK's base, 25  the temperature of YaRN: in test_rotaries.py
 30  no table of patches is resized: images or places are (models/test_vision.py)
 31  rows and columns that a learned table has not are refused by number (test_encodings2d.py)
"""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import jarilab
from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of, geometry_of_layers
from jarilab.attention.heads import site_of
from jarilab.attention.kernels import attend
from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.encodings import compose
from jarilab.encodings.bias.distance_functions import alibi_slopes
from jarilab.encodings.formulas import bias as bias_formulas
from jarilab.encodings.formulas.bias import t5_bucket
from jarilab.inspect.measure.heads import measure
from jarilab.inspect.measure.maps import Map, rollout
from jarilab.inspect.record.capture import record
from jarilab.models.decoding import greedy
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.masks import Mask

WIDTH, HEADS, HEAD_WIDTH = 16, 2, 8
FAR = 300
EVERY = [
    "none",
    "sinusoidal",
    "learned",
    "rotary",
    "rotary:pairing=interleaved,fraction=0.5",
    "shaw:clip=2",
    "t5",
    "alibi",
    "alibi:slopes=sides",
    "kerple",
    "sandwich",
    "dynamic_bias",
    "transformer_xl",
    "deberta:clip=2",
]
"""Encodings that work in an encoder; causal ones are tested in test_path_attention.py."""
BIASES = ["alibi", "alibi:slopes=sides", "t5", "kerple", "kerple:kernel=power", "sandwich", "dynamic_bias"]
LEARNED = ("learned", "shaw", "t5", "alibi:slopes=sides", "kerple", "dynamic_bias", "transformer_xl", "deberta")
INSIDE = [spec for spec in EVERY if spec not in ("sinusoidal", "learned")]
SOME = ["learned", "rotary:pairing=interleaved,fraction=0.5", "shaw:clip=2", "alibi:slopes=sides"]
some_encodings = pytest.mark.parametrize("spec", SOME)  # where the laws ask the same of all


def encoding_of(spec, *, d_model=WIDTH, n_heads=HEADS, **where):
    return compose.build(spec, site_of(d_model, n_heads, **where))


def model_of(spec, **options):
    model = EncoderDecoder(12, 12, d_model=WIDTH, n_heads=HEADS, encoding=spec, **options)
    initialise(model, seed=3)
    return model.eval()


def ids(batch, length):
    return torch.randint(3, 12, (batch, length))


def far(length, start=FAR):
    return Positions.sequence(length, start)


@torch.no_grad()
def permute_rows(attention, order):
    """Reorder the rows of the query and key projections within each head."""
    for projection in (attention.query, attention.key):
        for parameter in (projection.weight, projection.bias):
            parameter.copy_(parameter.unflatten(0, (HEADS, HEAD_WIDTH))[:, order].flatten(0, 1))


FROM_HALF_TO_INTERLEAVED = torch.arange(HEAD_WIDTH).view(2, -1).t().flatten()  # 0 4 1 5 2 6 3 7


def test_trap_01_pairings_agree_after_a_permutation_of_rows():
    half, interleaved = (Attention(WIDTH, HEADS, encoding=f"rotary:pairing={p}") for p in ("half", "interleaved"))
    interleaved.load_state_dict(half.state_dict())
    x_BLD = torch.randn(2, 6, WIDTH)
    wanted = half(x_BLD, positions=far(6))
    assert not torch.allclose(interleaved(x_BLD, positions=far(6)), wanted, atol=1e-4), "the layouts are not told apart"
    permute_rows(interleaved, FROM_HALF_TO_INTERLEAVED)
    torch.testing.assert_close(interleaved(x_BLD, positions=far(6)), wanted)


def test_trap_02_only_a_rotated_layer_shows_a_wrong_permutation_of_rows():
    x_BLD = torch.randn(2, 6, WIDTH)
    change = {}
    for spec in ("none", "rotary"):
        attention = Attention(WIDTH, HEADS, encoding=spec)
        before = attention(x_BLD, positions=far(6))
        permute_rows(attention, FROM_HALF_TO_INTERLEAVED)
        change[spec] = (attention(x_BLD, positions=far(6)) - before).abs().max().item()
    assert change["none"] < 1e-6
    assert change["rotary"] > 1e-3


def test_trap_03_angles_do_not_depend_on_the_dtype_of_the_model():
    encoding, wave = encoding_of("rotary", d_model=128), encoding_of("sinusoidal")
    precise, precise_wave = encoding.rotation(far(2, 4096)), wave.embed(torch.zeros(1, 2, WIDTH), far(2, 4096))
    for dtype in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(encoding.to(dtype).rotation(far(2, 4096)), precise, rtol=0, atol=0)
        rounded = wave.to(dtype).embed(torch.zeros(1, 2, WIDTH, dtype=dtype), far(2, 4096))
        assert torch.equal(rounded, precise_wave.to(dtype))

    exact = 10000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    assert (4096 * (exact.to(torch.bfloat16).double() - exact)).abs().max() > 1.5, (
        "radians a cast table would be off by"
    )


def test_trap_04_positions_in_half_precision_are_refused():
    assert torch.arange(2048, dtype=torch.bfloat16).unique().numel() < 1000
    with pytest.raises(
        UserError, match=r"positions must be int64, float32 or float64, got torch.bfloat16; half precision"
    ):
        Positions(torch.arange(300, dtype=torch.bfloat16).unsqueeze(-1), torch.arange(300))
    assert Positions.sequence(3).coordinates.dtype == torch.int64
    assert Positions.from_mask(torch.ones(2, 3, dtype=torch.bool)).coordinates.dtype == torch.int64


@some_encodings
def test_trap_05_a_model_on_the_meta_device_loads_from_parameters(spec):
    model = model_of(spec)
    with torch.device("meta"):
        empty = EncoderDecoder(12, 12, d_model=WIDTH, n_heads=HEADS, encoding=spec)
    loaded = empty.to_empty(device="cpu")
    loaded.load_state_dict(model.state_dict())
    assert not list(loaded.buffers())
    source, target = ids(2, 7), ids(2, 5)
    assert torch.equal(loaded.eval()(source, target), model(source, target))


def test_trap_05_the_first_frequency_is_1():
    cosine, _ = encoding_of("rotary").rotation(far(1))
    assert cosine[0, 0, 0, 0].item() == pytest.approx(math.cos(FAR), abs=1e-6)


@some_encodings
def test_trap_06_left_padding_changes_no_real_token(spec):
    model, real = model_of(spec), ids(1, 6)
    alone = model.start(Tokens.of(real, "source")).x
    keep = torch.tensor([[False] * 4 + [True] * 6])
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), real), 1)
    in_batch = model.start(Tokens(padded, Positions.from_mask(keep, frame="source"), keep)).x[:, 4:]
    torch.testing.assert_close(in_batch, alone)

    counted_from_the_padding = model.start(Tokens(padded, Positions.sequence(10, frame="source"), keep)).x[:, 4:]
    absolute = spec in ("sinusoidal", "learned")
    assert torch.allclose(counted_from_the_padding, alone, atol=1e-4) is not absolute


@pytest.mark.parametrize("spec", ["sinusoidal", "learned", "rotary"])
def test_trap_07_outputs_depend_on_the_offset(spec):
    encoding = encoding_of(spec)

    def applied(start):
        x = torch.ones(1, HEADS, 5, HEAD_WIDTH)
        if spec == "rotary":
            return encoding.rotate(x, encoding.rotation(far(5, start)))
        return encoding.embed(torch.ones(1, 5, WIDTH), far(5, start))

    first = applied(FAR)
    assert not torch.allclose(applied(FAR + 50), first, atol=1e-2)
    assert torch.equal(applied(FAR), first)


@some_encodings
def test_trap_08_stepwise_decoding_with_a_cache_equals_the_full_forward(spec):
    model, source, target = model_of(spec), ids(2, 7), ids(2, 9)
    state = model.start(Tokens.of(source, "source"))
    wanted = model.step(state, target, Positions.sequence(9, FAR, frame="target"), None)
    cache = model.new_cache()
    steps = [
        model.step(state, target[:, i : i + 1], Positions.sequence(1, FAR + i, frame="target"), cache) for i in range(9)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), wanted)


@pytest.mark.parametrize("spec", [*BIASES, "fire", "fire:length=9"])
def test_trap_09_a_shorter_step_after_a_longer_call_has_its_own_row(spec):
    encoding = encoding_of(spec, causal=True)
    all_HQK = encoding.bias(far(9), far(9))
    last_HQK = encoding.bias(far(1, FAR + 6), far(7))
    torch.testing.assert_close(last_HQK, all_HQK[:, 6:7, :7], rtol=0, atol=1e-6)
    assert not torch.allclose(last_HQK, all_HQK[:, :1, :7], atol=1e-4), "the first row would have done"


@pytest.mark.parametrize("kernel", ["explicit", "fused", "definition"])
@pytest.mark.parametrize("spec", BIASES)
def test_trap_10_the_bias_is_applied_in_evaluation_too(spec, kernel):
    attention = Attention(WIDTH, HEADS, encoding=spec, kernel=kernel)
    without = Attention(WIDTH, HEADS, encoding="none", kernel=kernel)
    without.load_state_dict(attention.state_dict(), strict=False)
    x_BLD = torch.randn(2, 6, WIDTH)
    training = attention.train()(x_BLD)
    with torch.no_grad():
        torch.testing.assert_close(attention.eval()(x_BLD), training)
        assert not torch.allclose(attention(x_BLD), without.eval()(x_BLD), atol=1e-3)


def test_trap_11_alibi_without_a_causal_mask_is_symmetric():
    bias_HQK = encoding_of("alibi").bias(far(6), far(6))
    assert torch.equal(bias_HQK, bias_HQK.mT)
    assert not bias_HQK.diagonal(dim1=-2, dim2=-1).any()
    assert (bias_HQK[:, 0, 1:] < bias_HQK[:, 0, :-1]).all()
    causal_shortcut = bias_HQK[:, -1:].expand_as(bias_HQK)  # one row of slope * key index for all queries
    assert not torch.equal(causal_shortcut, causal_shortcut.mT)


@pytest.mark.parametrize("heads", [6, 12, 40])
def test_trap_12_slopes_for_head_counts_that_are_no_power_of_two(heads):
    got = alibi_slopes(heads)
    assert got == pytest.approx(bias_formulas.alibi_slopes(heads))
    assert got != sorted(got, reverse=True), "the authors' code is not monotone"
    papers_formula = [2 ** (-8 * (h + 1) / heads) for h in range(heads)]
    assert max(abs(a - b) for a, b in zip(got, papers_formula, strict=True)) > 0.05


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "back only"])
def test_trap_13_t5_buckets_of_all_distances(causal):
    encoding = encoding_of("t5", causal=causal)
    ahead = torch.arange(-256, 257)
    wanted = torch.tensor([[t5_bucket(d, 32, 128, both_ways=not causal) for d in ahead.tolist()]])
    assert torch.equal(encoding.bucket(ahead[None]), wanted)
    assert not torch.equal(encoding.bucket(-ahead[None]), wanted), "the sign does not matter"
    assert wanted.max() == 31


@pytest.mark.parametrize(("buckets", "farthest", "causal"), [(32, 128, False), (64, 128, True), (128, 512, True)])
def test_trap_14_the_logarithm_of_t5_is_taken_in_float64(buckets, farthest, causal):
    away = torch.arange(1, 2 * farthest)
    exact = torch.tensor([t5_bucket(-d, buckets, farthest, both_ways=not causal) for d in away.tolist()])
    encoding = encoding_of(f"t5:buckets={buckets},distance={farthest}", causal=causal).to(torch.bfloat16)
    assert torch.equal(encoding.bucket(-away[None])[0], exact)

    one_way = buckets if causal else buckets // 2
    half = one_way // 2
    ratio = (away.to(torch.bfloat16) / half).log() / math.log(farthest / half)
    in_bfloat16 = torch.where(away < half, away, (half + (ratio * half).long()).clamp_max(one_way - 1))
    assert (in_bfloat16 != exact).sum() >= 2, "distances that bfloat16 puts into the wrong bucket"


def test_trap_15_t5_is_not_in_cross_attention_by_default():
    def biases(**options):
        with record(model := model_of("t5", **options)) as tape:
            model(ids(1, 5), ids(1, 4))
        return {site: tape.recorded(site).call.geometry.bias is not None for site in tape.sites}

    assert biases()["decoder.0.self"]
    assert not biases()["decoder.0.cross"]
    assert biases(cross_encoding="t5")["decoder.0.cross"]


def test_trap_15_t5_refuses_more_buckets_than_distances():
    with pytest.raises(UserError, match="got buckets=64, distance=16"):
        encoding_of("t5:buckets=64,distance=16")


@pytest.mark.parametrize("spec", BIASES)
def test_trap_15_the_bias_is_added_after_scaling(spec):
    encoding = encoding_of(spec)
    geometry = geometry_of(encoding, far(5), far(5))
    q, k, v = torch.randn(3, 1, HEADS, 5, HEAD_WIDTH)
    content = AttentionCall(q, k, v, geometry_of(encoding_of("none"), far(5), far(5)), scale=0.25)
    added = definition.scores(AttentionCall(q, k, v, geometry, scale=0.25)) - definition.scores(content)
    torch.testing.assert_close(added, geometry.bias, rtol=0, atol=1e-6)


def test_trap_16_shaw_clips_distances_to_its_table():
    encoding = encoding_of("shaw:clip=3")
    assert encoding.key_table.shape == (7, HEAD_WIDTH)
    row_QK = encoding.relation(far(20), far(20)).rows
    assert row_QK.min() == 0
    assert row_QK.max() == 6
    assert row_QK[0, 3] == row_QK[0, 4] != row_QK[0, 2], "distances k and k + 1 are one"
    assert row_QK[9, 6] == row_QK[9, 5] != row_QK[9, 7]


@torch.no_grad()
def test_trap_17_the_sign_of_the_distance_matters():
    """Each encoding prefers the next token; with the wrong sign the previous one would win."""
    shaw, t5 = encoding_of("shaw:clip=2,values=false"), encoding_of("t5")
    shaw.key_table.zero_()[2 + 1] = 1.0
    t5.table.zero_()[t5_bucket(1, 32, 128, both_ways=True)] = 8.0
    q = torch.ones(1, HEADS, 6, HEAD_WIDTH)
    for encoding in (shaw, t5):
        weights = definition.weights(
            AttentionCall(q, torch.zeros_like(q), q, geometry_of(encoding, far(6), far(6)), scale=1.0)
        )
        assert weights[0, 0, :5].argmax(-1).tolist() == [1, 2, 3, 4, 5]


@torch.no_grad()
def test_trap_17_the_key_to_position_term_is_not_transposed():
    """DeBERTa's third term, of the key's content with the query's place: in other libraries query and key
    were exchanged. With a preference for the next token in this term alone, each query attends to it."""
    deberta = encoding_of("deberta:clip=2")
    for made, value in ((deberta.key, 0.0), (deberta.query, 1.0)):
        made.weight.fill_(value)
    deberta.table.zero_()[-1 + 2] = 1.0  # of a key one ahead: i - j = -1
    k = torch.ones(1, HEADS, 6, HEAD_WIDTH)
    geometry = geometry_of(deberta, far(6), far(6))
    weights = definition.weights(AttentionCall(torch.zeros_like(k), k, k, geometry, scale=1.0))
    assert weights[0, 0, :5].argmax(-1).tolist() == [1, 2, 3, 4, 5]


@torch.no_grad()
def test_trap_18_transformer_xl_equals_the_sinusoid_of_each_pair():
    """In other libraries rows are shifted, which is wrong for fewer queries than keys and without a mask."""
    encoding = encoding_of("transformer_xl")
    q, k = torch.randn(2, HEADS, 3, HEAD_WIDTH), torch.randn(2, HEADS, 7, HEAD_WIDTH)
    got = encoding.terms(q, k, encoding.relation(far(3, FAR + 2), far(7)))
    apart_QK = (torch.arange(3) + 2).unsqueeze(-1) - torch.arange(7)
    phase_QKF = apart_QK.unsqueeze(-1) * 10000.0 ** (-torch.arange(WIDTH // 2) / (WIDTH // 2))
    waves_QKD = torch.cat((phase_QKF.sin(), phase_QKF.cos()), -1)
    of_place = encoding.position(waves_QKD).unflatten(-1, (HEADS, HEAD_WIDTH))
    by_place = torch.einsum("bhqe,qkhe->bhqk", q + encoding.v.unsqueeze(1), of_place)
    wanted = by_place + encoding.u.unsqueeze(1) @ k.mT
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    assert not torch.allclose(got.roll(1, -1), wanted, atol=1e-2)


def test_trap_19_positions_beyond_the_learned_table_raise_an_error():
    encoding, x = encoding_of("learned:positions=310"), torch.zeros(1, 10, WIDTH)
    assert torch.equal(encoding.embed(x, far(10))[0], encoding.table[300:310])
    with pytest.raises(UserError, match="learned knows the positions 0 to 309, got 310; use learned:positions=311"):
        encoding.embed(x, far(10, 301))
    with pytest.raises(UserError, match="learned knows the positions 0 to 309, got -1"):
        encoding.embed(x, far(10, -1))


def test_trap_19_the_first_position_is_row_0():
    encoding = encoding_of("learned")
    keep = torch.tensor([[False, False, True, True]])
    rows = encoding.embed(torch.zeros(1, 4, WIDTH), Positions.from_mask(keep))
    assert torch.equal(rows[0, 2:], encoding.table[:2])


@pytest.mark.parametrize(
    ("layout", "width", "wanted"),
    [
        # sines and cosines of 100 * 10000^(-2i/4) = 100 and 1, and of 100 * 10000^(-i/1) = 100 and 0.01
        ("interleaved", 4, [math.sin(100), math.cos(100), math.sin(1), math.cos(1)]),
        ("concatenated", 4, [math.sin(100), math.sin(1), math.cos(100), math.cos(1)]),
        ("tensor2tensor", 4, [math.sin(100), math.sin(0.01), math.cos(100), math.cos(0.01)]),
        ("interleaved", 3, [math.sin(100), math.cos(100), math.sin(100 / 10000 ** (2 / 3))]),
        ("concatenated", 3, [math.sin(100), math.sin(100 / 10000 ** (2 / 3)), math.cos(100)]),
        ("tensor2tensor", 5, [math.sin(100), math.sin(0.01), math.cos(100), math.cos(0.01), 0.0]),
    ],
)
def test_trap_20_the_three_layouts_of_sinusoids(layout, width, wanted):
    encoding = encoding_of(f"sinusoidal:layout={layout}", d_model=width, n_heads=1)
    assert encoding.embed(torch.zeros(1, 1, width), far(1, 100)).flatten().tolist() == pytest.approx(wanted, abs=1e-6)


@some_encodings
def test_trap_21_a_sample_does_not_depend_on_its_row_in_the_batch(spec):
    model, source, target = model_of(spec), ids(3, 7), ids(3, 5)
    torch.testing.assert_close(model(source.flip(0), target.flip(0)), model(source, target).flip(0))


@pytest.mark.parametrize("spec", ["sinusoidal", "learned"])
def test_trap_21_positions_run_along_the_length(spec):
    added = encoding_of(spec).embed(torch.zeros(3, 5, WIDTH), far(5))
    assert torch.equal(added[0], added[2])
    assert not torch.allclose(added[:, 0], added[:, 4])


@some_encodings
def test_trap_22_token_embeddings_have_unit_variance_with_any_encoding(spec):
    token_ids = ids(20, 50)
    tokens = model_of(spec).source_embedding(token_ids)
    assert tokens.square().mean().sqrt().item() == pytest.approx(1.0, rel=0.1)
    assert torch.equal(tokens, model_of("none").source_embedding(token_ids))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_trap_23_partial_rotary_keeps_the_other_components(pairing):
    partial = encoding_of(f"rotary:fraction=0.5,pairing={pairing}", d_model=32)
    full = encoding_of(f"rotary:pairing={pairing}", d_model=16)  # a head as wide as the part that turns
    x = torch.randn(1, HEADS, 4, 16)
    turned = partial.rotate(x, partial.rotation(far(4)))
    assert torch.equal(turned[..., 8:], x[..., 8:])
    torch.testing.assert_close(turned[..., :8], full.rotate(x[..., :8], full.rotation(far(4))))


def test_trap_26_all_layers_are_rotated_and_the_model_lists_them():
    model = model_of("rotary", n_encoder_layers=3)
    assert "base=10000.0, fraction=1.0, pairing=half" in repr(model.encoder)
    geometries = geometry_of_layers(model.encoder.encoding, far(4), far(4))
    assert [g.q_rotation is not None for g in geometries] == [True] * 3


def test_trap_27_rotary_in_cross_attention_rotates_queries_and_keys():
    assert not model_of("rotary").decoder.cross_encoding.by_layer[0].hooks, "none unless asked for"
    attention = Attention(WIDTH, HEADS, encoding="rotary", cross=True)
    x, source = torch.randn(2, 4, WIDTH), torch.randn(2, 6, WIDTH)

    def at(q_start, k_start):
        return attention(x, source, positions=far(4, q_start), source_positions=far(6, k_start))

    torch.testing.assert_close(at(FAR + 9, FAR + 9), at(FAR, FAR), rtol=0, atol=1e-5)
    assert not torch.allclose(at(FAR + 9, FAR), at(FAR, FAR), atol=1e-3), "the queries' positions do nothing"
    assert not torch.allclose(at(FAR, FAR + 9), at(FAR, FAR), atol=1e-3), "the keys' positions do nothing"


def test_trap_28_rotation_runs_along_the_length_not_the_heads():
    encoding = encoding_of("rotary", d_model=24, n_heads=3)
    turned = encoding.rotate(torch.ones(2, 3, 5, 8), encoding.rotation(far(5)))
    assert torch.equal(turned[:, 0], turned[:, 2])
    assert not torch.allclose(turned[:, :, 0], turned[:, :, 4])


def placeless_first(length):
    """A class token without a position before tokens at far positions."""
    none = torch.tensor([True] + [False] * (length - 1))
    return Positions(far(length).coordinates, torch.arange(length), unplaced=none)


def test_trap_29_a_token_without_a_position_is_neither_shifted_nor_rotated():
    pos, zeros, ones = placeless_first(5), torch.zeros(1, 5, WIDTH), torch.ones(1, HEADS, 5, HEAD_WIDTH)
    for spec in ("sinusoidal", "learned"):
        added = encoding_of(spec).embed(zeros, pos)[0]
        assert not added[0].any()
        assert added[1:].any(-1).all()
    for pairing in ("half", "interleaved"):
        rotary = encoding_of(f"rotary:pairing={pairing}")
        turned = rotary.rotate(ones, rotary.rotation(pos))
        assert torch.equal(turned[:, :, 0], ones[:, :, 0])
        assert not torch.allclose(turned[:, :, 1], ones[:, :, 1])


def test_trap_29_a_token_without_a_position_has_no_distance():
    pos = placeless_first(5)
    bias_HQK = encoding_of("alibi").bias(pos, pos)
    assert not bias_HQK[:, 0].any()
    assert not bias_HQK[:, :, 0].any()
    assert bias_HQK[:, 1, 3].all()
    row_QK = encoding_of("shaw:clip=2").relation(pos, pos).rows
    assert row_QK[0].tolist() == [2] * 5
    assert row_QK[1].tolist() == [2, 2, 3, 4, 4]


@pytest.mark.parametrize("spec", [spec for spec in EVERY if spec != "none"])
def test_trap_29_a_grid_is_refused_by_an_encoding_of_one_coordinate(spec):
    grid, encoding = Positions.grid(2, 3), encoding_of(spec)
    refused = pytest.raises(
        UserError, match=r"one coordinate expected, got \('row', 'column'\); choose an encoding for 2 axes"
    )
    with refused:
        encoding.embed(torch.zeros(1, 6, WIDTH), grid) if "embed" in encoding.hooks else geometry_of(
            encoding, grid, grid
        )


@pytest.mark.parametrize("spec", ["xpos", "cope", "forgetting", "fire", "path"])
def test_trap_32_causal_encodings_are_refused_in_an_encoder(spec):
    """xPos grows without limit for keys after the query; the others are defined only for keys before it."""
    with pytest.raises(UserError, match="works only where queries never see later keys; use it in a causal decoder"):
        EncoderDecoder(12, 12, d_model=WIDTH, n_heads=HEADS, encoding=spec)


@pytest.mark.parametrize("kernel", ["explicit", "fused", "definition"])
def test_trap_33_one_query_at_the_end_sees_every_key(kernel):
    q, k = torch.randn(1, HEADS, 1, HEAD_WIDTH), torch.randn(1, HEADS, 6, HEAD_WIDTH)
    geometry = geometry_of(encoding_of("none"), far(1, FAR + 5), far(6), Mask(causal=True))
    got = attend(AttentionCall(q, k, k, geometry, scale=0.3), kernel)
    torch.testing.assert_close(got, functional.scaled_dot_product_attention(q, k, k, scale=0.3))
    aligned_top_left = functional.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3)
    assert torch.equal(aligned_top_left, k[:, :, :1]), "torch's own flag lets it see the first key alone"


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=["math", "flash"])
def test_trap_34_a_mask_and_the_causal_rule_reach_the_fused_kernel(backend):
    q = torch.randn(2, HEADS, 5, HEAD_WIDTH)
    keys = torch.tensor([[True] * 5, [True, False, True, True, True]])

    def call(**rules):
        return AttentionCall(
            q, q, q, geometry_of(encoding_of("none"), far(5), far(5), Mask(keys=keys, **rules)), scale=0.3
        )

    with sdpa_kernel(backend):
        torch.testing.assert_close(attend(call(causal=True), "fused"), definition.output(call(causal=True)))
        assert not torch.allclose(attend(call(), "fused"), definition.output(call(causal=True)), atol=1e-3)
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="is_causal"):
        functional.scaled_dot_product_attention(q, q, q, keys[:, None, None], is_causal=True)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_trap_35_every_generated_token_gets_the_next_position(cached):
    model, calls = model_of("rotary"), []
    step = model.step

    def spy(state, ids, positions, cache):
        calls.append((positions.frame, positions.index().tolist(), positions.order.tolist()))
        return step(state, ids, positions, cache)

    model.step = spy
    greedy(model, Tokens.of(ids(2, 7), "source"), first=1, end=-1, padding=0, longest=4, cached=cached)
    rows = [[i] if cached else list(range(i + 1)) for i in range(4)]
    assert calls == [("target", row, row) for row in rows]


def test_trap_36_values_are_not_rotated():
    """Rotated values make the output depend on where the sequence starts."""
    attention, x = Attention(WIDTH, HEADS, encoding="rotary"), torch.randn(2, 6, WIDTH)

    def at(start, values_too):
        with record(attention) as tape:
            output = attention(x, positions=far(6, start))
        call = tape.recorded("attention").call
        if not values_too:
            return output
        encoding = call.geometry.encoding
        return definition.weights(call) @ encoding.rotate(call.v, call.geometry.q_rotation)

    torch.testing.assert_close(at(FAR + 7, False), at(FAR, False), rtol=0, atol=1e-5)
    assert not torch.allclose(at(FAR + 7, True), at(FAR, True), atol=1e-3)


@some_encodings
def test_trap_37_every_parameter_gets_a_gradient(spec):
    model = model_of(spec)
    model(ids(2, 7), ids(2, 5)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert any("encoding" in name for name, _ in model.named_parameters()) == (spec.startswith(LEARNED))


# Images ------------------------------------------------------------------------------------------------------------
#
# The faults that images of attention have had elsewhere, by their own numbers: viewers, hooks, built-in modules.


def taped(model, *inputs):
    with torch.no_grad(), record(model) as tape:
        output = model(*inputs)
    return tape, output


@pytest.mark.parametrize("kernel", ["auto", "fused", "explicit", "definition"])
def test_image_trap_01_all_kernels_have_maps(kernel):
    """In other libraries the fused path returns an empty tuple and a warning."""
    tape, _ = taped(model_of("rotary", kernel=kernel), ids(1, 7), ids(1, 5))
    sites = [f"encoder.{i}" for i in range(2)] + [f"decoder.{i}.{kind}" for i in range(2) for kind in ("self", "cross")]
    assert tape.sites == sites
    for site in sites:
        assert tape.weights(site).sum(-1).allclose(torch.ones(()))


@pytest.mark.parametrize(("encoder", "decoder"), [(2, 4), (4, 2)])
def test_image_trap_02_encoder_and_decoder_can_differ_in_depth(encoder, decoder):
    """In another library the list of layers is the encoder's: 2 + 4 drops layers silently, 4 + 2 is an IndexError."""
    tape, _ = taped(model_of("rotary", n_encoder_layers=encoder, n_decoder_layers=decoder), ids(1, 7), ids(1, 5))
    counts = [
        sum(site.startswith("encoder") for site in tape.sites),
        sum(site.endswith("cross") for site in tape.sites),
    ]
    assert counts == [encoder, decoder]
    assert len(tape.sites) == encoder + 2 * decoder
    assert all(tape.weights(site).shape[1] == HEADS for site in tape.sites)


def test_image_trap_03_maps_of_an_encoder_are_not_causal():
    """In other libraries the upper triangle is grey unless one asks."""
    names = list("abcdef")
    tape, _ = taped(model_of("rotary"), ids(1, 6), ids(1, 6))
    encoder, decoder = (Map.of(tape, site, names, names) for site in ("encoder.0", "decoder.0.self"))
    assert encoder.allowed.all()
    assert (encoder.weights[:, torch.ones(6, 6).triu(1).bool()] > 0).all()
    assert not decoder.allowed.triu(1).any()
    assert decoder.allowed.tril().sum() == 21


def test_image_trap_04_scores_come_before_the_softmax_and_weights_before_dropout():
    """In other libraries what is named scores is the softmax, and the pattern is what dropout left of it."""
    model = model_of("t5", dropout=0.5).train()
    tape, _ = taped(model, ids(1, 7), ids(1, 5))
    scores, weights = tape.scores("encoder.0"), tape.weights("encoder.0")
    torch.testing.assert_close(scores.softmax(-1), weights)
    assert (scores < 0).any(), "they are weights"
    assert (weights > 0).all(), "dropout has been here"


def test_image_trap_05_measures_do_not_change_maps():
    """In other libraries a detector writes zeros into the pattern it measures, and knows lower triangles only."""
    names = list("abcabc")
    tape, _ = taped(model_of("rotary"), ids(1, 6), ids(1, 6))
    map = Map.of(tape, "encoder.0", names, names)
    before = [part.clone() for part in (map.weights, map.scores, map.allowed)]
    first = measure(map)
    again = measure(map)
    assert all(torch.equal(a, b) for a, b in zip(before, (map.weights, map.scores, map.allowed), strict=True))
    for name, scored in first.items():
        assert torch.equal(scored.value, again[name].value), name
        assert not scored.value.isnan().any(), name
    assert torch.equal(tape.weights("encoder.0")[0].double(), map.weights)


def test_image_trap_06_rows_of_rollout_sum_to_1():
    """In other libraries the sums of rows lose their axis, and every row is divided by the sums of all."""
    names = list("abcdef")
    tape, _ = taped(model_of("rotary"), ids(1, 6), ids(1, 6))
    maps = [Map.of(tape, site, names, names) for site in ("encoder.0", "encoder.1")]
    pruned = [replace(m, weights=m.weights.where(m.weights > 0.17, 0.0)) for m in maps]
    sums = pruned[0].weights.mean(0).sum(-1)
    assert sums.max() - sums.min() > 0.05, "nothing to tell apart"
    torch.testing.assert_close(rollout(pruned).sum(-1), torch.ones(6).double())
    mixed = (pruned[0].weights.mean(0) + torch.eye(6)) / 2
    assert not torch.allclose((mixed / mixed.sum(-1)).sum(-1), torch.ones(6).double(), atol=0.01), "the axis is lost"


def test_image_trap_07_fused_calls_are_recorded(monkeypatch):
    """In other libraries the fused path skips the module that the hook is on, and nothing is collected."""
    calls, fused = [], functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    tape, _ = taped(model_of("none", kernel="fused"), ids(1, 7), ids(1, 5))
    assert len(calls) == len(tape.sites) == 6
    assert set(tape.kernels().values()) == {"fused"}


@pytest.mark.parametrize(
    ("spec", "kernel"),
    [*((spec, "auto") for spec in SOME), ("rotary", "fused"), ("t5", "fused"), ("rotary", "explicit")],
)
def test_image_trap_08_recording_does_not_change_outputs(spec, kernel):
    """In other libraries one has to turn the fast path off to look, which is another model in its last bits."""
    model, inputs = model_of(spec, kernel=kernel), (ids(2, 7), ids(2, 5))
    with torch.no_grad():
        before = model(*inputs)
    tape, during = taped(model, *inputs)
    assert torch.equal(during, before)
    assert max(tape.trust(site).rebuild_error for site in tape.sites) < 1e-5


def test_image_trap_09_maps_are_per_head_and_rows_sum_to_1_in_training():
    """In other libraries weights are the mean of the heads, and in training rows sum to anything from 0.3 to 1.8."""
    tape, _ = taped(model_of("rotary", dropout=0.5).train(), ids(1, 7), ids(1, 5))
    weights = tape.weights("encoder.0")
    assert weights.shape == (1, HEADS, 7, 7)
    assert not torch.allclose(weights[:, 0], weights[:, 1], atol=1e-3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, HEADS, 7))
    assert tape.trust("encoder.0").dropout == 0.5, "and nobody is told"


def test_image_trap_10_an_empty_recording_raises_an_error():
    """In other libraries the hook fires and carries None."""
    with (
        pytest.raises(UserError, match="nothing was recorded: no attention of this model ran"),
        record(model_of("none")),
    ):
        pass
    with pytest.raises(UserError, match="unknown site 'encoder'"):
        taped(model_of("none"), ids(1, 3), ids(1, 2))[0].weights("encoder")


@pytest.mark.parametrize("kernel", ["fused", "explicit", "definition"])
def test_image_trap_11_a_query_without_keys_has_zeros_on_every_path(kernel):
    """In other libraries the fused path gives zeros, the softmax NaN."""
    attention, keep = Attention(WIDTH, HEADS, kernel=kernel), torch.tensor([[False, False, True, True]])
    with torch.no_grad(), record(attention) as tape:
        output = attention(torch.randn(1, 4, WIDTH), mask=Mask(causal=True, keys=keep))
    assert output.isfinite().all()
    map = Map.of(tape, "attention", list("abab"), list("abab"))
    assert map.count.tolist() == [0, 0, 1, 2]
    assert not map.weights[:, :2].any()
    assert not measure(map)["entropy"].value.isnan().any()


def test_image_trap_12_the_first_token_is_shown():
    """In other libraries the columns of special tokens are set to 0, and a sink cannot be seen."""
    model = model_of("none")
    tape, _ = taped(model, ids(1, 6), torch.tensor([[1, 5, 6, 7, 2]]))
    map = Map.of(tape, "decoder.0.self", ["<s>", *"567", "</s>"], ["<s>", *"567", "</s>"])
    assert (map.weights[:, :, 0] > 0).all()
    assert (map.weights[:, -1] > 0).all()
    assert torch.equal(measure(map)["sink"].value, map.weights[:, :, 0].mean(-1))


def test_image_trap_13_a_cropped_token_is_noticed():
    """In other libraries the assertion that nothing was cut off runs after the cut, and cannot fail."""
    tape, _ = taped(model_of("none"), ids(1, 6), ids(1, 4))
    for queries, keys in ((4, 5), (3, 6), (5, 6), (4, 7)):
        with pytest.raises(UserError, match="expected a name for each of the"):
            Map.of(tape, "decoder.0.cross", list("abcdefg")[:queries], list("abcdefg")[:keys])
    assert Map.of(tape, "decoder.0.cross", list("abcd"), list("abcdef")).weights.shape == (HEADS, 4, 6)


@pytest.mark.parametrize("off", [math.log(2), -math.log(2)])
def test_image_trap_14_a_wrong_logarithm_is_noticed(monkeypatch, off):
    """In other libraries the log-sum-exp of a fused kernel was off by ln 2, and weights made of it by a factor of 2."""
    tape, _ = taped(model_of("rotary", kernel="fused"), ids(1, 6), ids(1, 4))
    assert tape.trust("encoder.0").row_sum_error < 1e-6
    right = definition.weights
    monkeypatch.setattr(definition, "weights", lambda call: (right(call).log() - off).exp())
    trust = tape.trust("encoder.0")
    assert trust.row_sum_error == pytest.approx(abs(math.exp(-off) - 1), rel=1e-3)
    assert trust.rebuild_error > 0.4


def test_image_trap_15_maps_are_taken_after_the_softmax():
    """transformers 5.23 returns ProphetNet's scores before the softmax as `encoder_attentions`."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "hidden_size": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    heads = {"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4}
    model = transformers.ProphetNetModel(transformers.ProphetNetConfig(**sizes, **layers, **heads)).eval()
    text = torch.arange(3, 10)[None]
    with torch.no_grad(), jarilab.record(model) as tape:
        model(input_ids=text, decoder_input_ids=text[:, :5])
    weights = tape.weights("encoder.0")
    assert torch.allclose(weights.sum(-1), torch.ones(1, 4, 7))
    assert tape.trust("encoder.0").holds
    assert "decoder.0.self.attention2" in tape.sites  # of the predicted tokens, beside the main stream


def test_image_trap_16_each_head_has_its_own_map():
    """transformers 5.23 returns the mean over heads as each of WavLM's attentions."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    sound = {"conv_dim": (8,), "conv_stride": (5,), "conv_kernel": (10,), "num_feat_extract_layers": 1}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    model = transformers.WavLMModel(transformers.WavLMConfig(**sizes, **sound, **positions)).eval()
    with torch.no_grad(), jarilab.record(model) as tape:
        output = model(torch.randn(1, 400), output_attentions=True)
    (returned,), weights = output.attentions, tape.weights("encoder.0")
    assert torch.equal(returned, returned[:, :1].expand_as(returned))
    assert torch.allclose(weights.mean(1), returned[:, 0], atol=1e-6)
    assert (weights - weights.mean(1, keepdim=True)).abs().max() > 1e-4
    assert tape.trust("encoder.0").holds
