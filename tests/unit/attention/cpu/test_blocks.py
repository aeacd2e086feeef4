"""Attention block by block equals the definition in output and gradients, with any encoding, mask and dropout."""

import pytest
import torch

import jarilab
from jarilab.attention import kernels
from jarilab.attention.cpu import blocks
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.module import site_of
from jarilab.attention.recurrent_attention import LuongAttention
from jarilab.core.errors import UserError
from jarilab.encodings import compose, skew
from jarilab.encodings.base import hooks_of, registry
from jarilab.encodings.distance_forms import AffineBias
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 11, 8
KEEP = torch.arange(LENGTH) < torch.tensor([[LENGTH], [6]])
IDS = torch.tensor([[0] * 5 + [1] * 6, [0] * 8 + [1] * 3])
MASKS = {
    "nothing": None,
    "causal": Mask(causal=True),
    "window": Mask(causal=True, window=3),
    "padding": Mask(keys=KEEP),
    "a row without keys": Mask(causal=True, keys=KEEP & torch.tensor([[True], [False]])),
    "a query without keys": Mask(causal=True, pairs=(torch.arange(LENGTH) != 5).unsqueeze(1).expand(-1, LENGTH)),
    "keys that end early": Mask(causal=True, keys=KEEP[1:].expand(2, -1)),
    "documents": Mask(causal=True, documents=(IDS, IDS)),
    "pairs": Mask(pairs=torch.rand(BATCH, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.4),
}
PLACES = {
    "far": (Positions.sequence(LENGTH, 300), Positions.sequence(LENGTH, 300)),
    "left-padded": (Positions.from_mask(KEEP.flip(1)), Positions.from_mask(KEEP.flip(1))),
    "more keys": (Positions.sequence(4, LENGTH - 4), Positions.sequence(LENGTH)),
}
BY_DISTANCE = ["alibi", "alibi:slopes=sides", "t5", "kerple", "rotary+t5"]
BY_HOOKS = [
    "fire:length=4",
    "shaw",
    "shaw:clip=0",
    "shaw:values=false,clip=3",
    "t5+shaw:clip=2",
    "transformer_xl",
    "deberta:clip=3",
    "cope",
]
WITHOUT_PAIRS = [
    "fire:length=304",
    "shaw:clip=2",
    "shaw:clip=0",
    "transformer_xl",
    "deberta:clip=3",
    "t5+shaw",
    "fire:length=304+deberta:clip=2",
    "rotary+transformer_xl",
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks so small that there are several, with several groups of heads."""
    monkeypatch.setattr(blocks, "DEFAULT_MAX_ROWS", 4)
    monkeypatch.setattr(blocks, "GROUP_BYTES", 2 * 4 * 8 * 8)
    monkeypatch.setattr(skew, "MIN_SKEWED_KEYS", 6)


def compared(spec, q_pos, k_pos, mask, dtype=torch.float64):
    """Output and gradients of the definition and of the kernel."""
    torch.manual_seed(0)
    encoding = compose.build(spec, site_of(HEADS * WIDTH, HEADS, causal=bool(mask and mask.causal))).to(dtype)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    sizes = (q_pos.length, k_pos.length, k_pos.length)
    q, k, v = (torch.randn(BATCH, HEADS, size, WIDTH, dtype=dtype, requires_grad=True) for size in sizes)
    x = torch.randn(BATCH, k_pos.length, HEADS * WIDTH, dtype=dtype)
    direction = torch.randn_like(q)
    results = []
    for kernel in ("definition", "blocks"):
        geometry = geometry_of(encoding, q_pos, k_pos, mask, blockwise=kernel == "blocks")
        assert (geometry.blockwise is not None) == (kernel == "blocks")
        states = encoding.key_states(x)
        output = kernels.attend(AttentionCall(q, k, v, geometry, 0.3, states=states), kernel)
        inputs = [q, k, v, *encoding.parameters()]
        gradients = torch.autograd.grad((output * direction).sum(), inputs, allow_unused=True, materialize_grads=True)
        results.append([output, *gradients])
    return zip(*results, strict=True)


@pytest.mark.parametrize("spec", ["none", *BY_DISTANCE, *BY_HOOKS])
def test_output_and_gradients_equal_the_definitions(spec):
    cases = [("far", "causal"), ("left-padded", "a row without keys"), ("more keys", "causal")]
    for where, mask in cases:
        for expected, actual in compared(spec, *PLACES[where], MASKS[mask]):
            torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("mask", ["nothing", "a query without keys", "keys that end early", "documents"])
@pytest.mark.parametrize("spec", WITHOUT_PAIRS)
def test_closed_forms_by_distance_need_no_hooks(spec, mask, monkeypatch):
    monkeypatch.setattr(blocks, "HookTerm", None)
    if "fire" in spec and mask == "nothing":
        mask = "causal"
    for expected, actual in compared(spec, *PLACES["far"], MASKS[mask]):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def test_every_encoding_of_sequences_is_supported():
    tried = set()
    for name in registry.names():
        cls = registry.spec(name).target
        if 1 not in cls.axes or not hooks_of(cls) & {"bias", "terms", "values", "rotate"}:
            continue
        for expected, actual in compared(name, *PLACES["far"], MASKS["causal"]):
            torch.testing.assert_close(
                actual, expected, atol=1e-6, rtol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )
        tried.add(name)
    assert len(tried) > 15


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_equals_the_definitions(mask):
    for expected, actual in compared("t5", *PLACES["far"], MASKS[mask]):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def attended(kernel, *, dropout=0.0, dtype=torch.float64, spec="t5", blockwise=True):
    torch.manual_seed(3)
    encoding = compose.build(spec, site_of(HEADS * WIDTH, HEADS)).to(dtype)
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3))
    geometry = geometry_of(encoding, *PLACES["far"], blockwise=blockwise)
    return kernels.attend(AttentionCall(q, k, v, geometry, 0.3, dropout), kernel), (q, k, v)


def test_the_backward_pass_repeats_the_dropout_of_the_forward_pass():
    output, (*_, v) = attended("blocks", dropout=0.5)
    # The output is linear in the values, so its gradient depends on the dropped weights.
    direction = torch.randn_like(output)
    (d_v,) = torch.autograd.grad((output * direction).sum(), v)
    torch.testing.assert_close((d_v * v).sum(), (output * direction).sum())
    undropped, _ = attended("blocks")
    assert (output - undropped).abs().max() > 0.1
    torch.manual_seed(3)
    assert torch.equal(attended("blocks", dropout=0.5)[0], output)


@pytest.mark.parametrize("spec", ["alibi", "t5"])
def test_positions_far_apart_take_no_memory_for_the_distances_between(spec):
    far = Positions(torch.tensor([[0], [3], [10**12]]), torch.arange(3))
    encoding = compose.build(spec, site_of(HEADS * WIDTH, HEADS))
    q, k, v = torch.randn(3, BATCH, HEADS, 3, WIDTH)
    outputs = [
        kernels.attend(AttentionCall(q, k, v, geometry_of(encoding, far, far, blockwise=blockwise), 0.3), kernel)
        for kernel, blockwise in (("blocks", True), ("definition", False))
    ]
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=0)
    near = Positions.sequence(3)
    assert geometry_of(encoding, near, near, blockwise=True).blockwise.bias is not None


@pytest.mark.parametrize("spec", ["t5", "shaw:clip=2", "deberta:clip=2"])
def test_gradients_with_dropout_equal_finite_differences(spec):
    output, inputs = attended("blocks", dropout=0.5, spec=spec)
    gradients = torch.autograd.grad(output.square().sum(), inputs)

    def loss(step):
        torch.manual_seed(3)
        encoding = compose.build(spec, site_of(HEADS * WIDTH, HEADS)).double()
        inputs = [torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64) + step for _ in range(3)]
        geometry = geometry_of(encoding, *PLACES["far"], blockwise=True)
        return kernels.attend(AttentionCall(*inputs, geometry, 0.3, 0.5), "blocks").square().sum()

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    torch.testing.assert_close(sum(d.sum() for d in gradients), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", ["none", "t5", "shaw", "transformer_xl", "deberta:clip=3"])
def test_in_bfloat16_it_is_as_precise_as_the_explicit_kernel(spec):
    precise = attended("definition", spec=spec)[0].float()
    output = attended("blocks", spec=spec, dtype=torch.bfloat16)[0].float()
    explicit = attended("explicit", spec=spec, dtype=torch.bfloat16)[0].float()
    assert (output - precise).abs().max() <= 1.5 * (explicit - precise).abs().max()


@pytest.mark.parametrize(
    ("hooks", "mask", "length", "dropout", "expected"),
    [
        ({"bias"}, Mask(causal=True), 512, 0.0, True),
        ({"terms", "values"}, None, 512, 0.0, True),
        ({"rotate"}, Mask(causal=True, window=9), 512, 0.0, True),
        ({"rotate"}, Mask(causal=True), 512, 0.1, True),
        ({"rotate"}, Mask(causal=True), 512, 0.0, False),  # PyTorch's kernel supports these two
        ({"rotate"}, Mask(keys=torch.ones(1, 512, dtype=torch.bool)), 512, 0.0, False),
        ({"bias"}, Mask(causal=True), 511, 0.1, False),
    ],
)
def test_it_is_chosen_for_biases_masks_and_dropout(hooks, mask, length, dropout, expected):
    pos = Positions.sequence(length)
    assert kernels.is_blockwise("auto", frozenset(hooks), pos, pos, mask, dropout) is expected
    last = Positions.sequence(1, length - 1)
    assert not kernels.is_blockwise("auto", frozenset(hooks), last, pos, mask, dropout)
    with torch.autocast("cpu", torch.bfloat16):
        assert not kernels.is_blockwise("auto", frozenset(hooks), pos, pos, mask, dropout)


def test_in_bfloat16_it_is_chosen_from_1024_keys_on_without_bias():
    def chosen(length, dtype, mask=None):
        pos = Positions.sequence(length)
        geometry = geometry_of(compose.build("rotary", site_of(2, 1)), pos, pos, mask)
        q = torch.zeros(1, 1, length, 2, dtype=dtype)
        return kernels.choose(AttentionCall(q, q, q, geometry, 1.0))

    assert chosen(1024, torch.bfloat16, Mask(causal=True)) == chosen(1024, torch.bfloat16) == "blocks"
    assert (chosen(1023, torch.bfloat16), chosen(1024, torch.float32)) == ("explicit", "fused")


def test_an_attention_chooses_it_without_other_maps(monkeypatch):
    x = torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    attention = jarilab.Attention(HEADS * WIDTH, HEADS, encoding="t5+shaw")
    monkeypatch.setitem(kernels.MIN_BLOCKS_KEYS, torch.float32, LENGTH)
    with jarilab.record(attention) as tape:
        output = attention(x, mask=MASKS["padding"])
    monkeypatch.setitem(kernels.MIN_BLOCKS_KEYS, torch.float32, LENGTH + 1)
    with jarilab.record(attention) as explicit:
        torch.testing.assert_close(attention(x, mask=MASKS["padding"]), output)
    (name,) = tape.kernels()
    assert (tape.kernels()[name], explicit.kernels()[name]) == ("blocks", "explicit")
    assert torch.equal(tape.weights(name), explicit.weights(name))


def test_random_encodings_are_refused_when_a_model_is_built():
    encoding = compose.build("t5", site_of(HEADS * WIDTH, HEADS))
    encoding.random_in_training = True
    with pytest.raises(UserError, match="draws random numbers; use kernel=auto"):
        kernels.check("blocks", [encoding])
    assert geometry_of(encoding, *PLACES["far"], blockwise=True).blockwise is None
    with pytest.raises(UserError, match="by their product alone"):
        LuongAttention(8, "additive", kernel="blocks")


def test_the_affine_bias_of_fire_equals_its_hook():
    encoding = compose.build("fire:length=4,hidden=8", site_of(HEADS * WIDTH, HEADS, causal=True)).double()
    with torch.no_grad():  # each unit starts at another distance
        encoding.inner.weight.copy_(torch.tensor([1.0, -1.0]).repeat(4).unsqueeze(1))
        encoding.inner.bias.copy_(torch.linspace(-0.9, 0.9, 8).abs() * -encoding.inner.weight[:, 0])
    keys = Positions.sequence(30)
    queries = keys.slice(20, 26)
    bias = encoding.bias(queries, keys)
    assert bias is not None
    affine_bias = encoding.affine_bias(queries, -25, 9)
    assert isinstance(affine_bias, AffineBias)
    affine_bias = affine_bias.detached()
    assert len(affine_bias.extra_terms) > 2
    bias_HQR = torch.empty(HEADS, 6, 35, dtype=torch.float64)
    affine_bias.write(slice(0, HEADS), bias_HQR)
    torch.testing.assert_close(skew.skew(bias_HQR, 30), bias.detach(), atol=1e-10, rtol=1e-10)
