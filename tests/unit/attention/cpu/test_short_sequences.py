"""Attention over many short sequences, with the batch innermost, equals the definition: output and all gradients."""

import pytest
import torch

from jarilab.attention import kernels
from jarilab.attention.cpu import short_sequences
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.encodings import compose
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

BATCH, HEADS, LENGTH, WIDTH = 5, 3, 6, 8
KEEP = torch.arange(LENGTH) < torch.tensor([[6], [5], [4], [1], [6]])
SOME_EMPTY = KEEP & torch.tensor([[True], [False], [True], [True], [False]])
MASKS = {
    "nothing": None,
    "causal": Mask(causal=True),
    "padding": Mask(keys=KEEP),
    "rows without keys": Mask(causal=True, keys=SOME_EMPTY),
}
PLACES = {"itself": (LENGTH, LENGTH), "fewer queries": (4, LENGTH)}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(short_sequences, "MIN_MATRICES", 2)


def call_of(spec="none", mask=None, sizes=(LENGTH, LENGTH), dtype=torch.float64, dropout=0.0, scale=0.3):
    """A call with random numbers, of which the output's gradient is wanted."""
    torch.manual_seed(0)
    encoding = compose.build(spec, site_of(HEADS * WIDTH, HEADS, causal=bool(mask and mask.causal))).to(dtype)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    queries, keys = sizes
    k_pos = Positions.sequence(keys)
    q_pos = k_pos if queries == keys else Positions.sequence(queries, keys - queries)
    q, k, v = (torch.randn(BATCH, HEADS, size, WIDTH).to(dtype).requires_grad_() for size in (queries, keys, keys))
    return AttentionCall(q, k, v, geometry_of(encoding, q_pos, k_pos, mask), scale, dropout)


def computed(call, kernel):
    """Output, and gradients of queries, keys, values and what the encoding has."""
    output = kernels.attend(call, kernel)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    inputs = [call.q, call.k, call.v, *call.geometry.encoding.parameters()]
    used = {"allow_unused": True, "materialize_grads": True}
    return [output, *torch.autograd.grad((output * direction).sum(), inputs, retain_graph=True, **used)]


@pytest.mark.parametrize("spec", ["none", "alibi", "t5", "kerple"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("places", PLACES)
def test_it_has_the_definitions_output_and_gradients(spec, mask, places):
    call = call_of(spec, MASKS[mask], PLACES[places])
    assert short_sequences.is_fastest(call)
    for actual, expected in zip(computed(call, "explicit"), computed(call, "definition"), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def test_in_bfloat16_it_is_as_near_as_bfloat16():
    call = call_of("t5", MASKS["causal"], dtype=torch.bfloat16)
    assert short_sequences.is_fastest(call)
    actual, expected = computed(call, "explicit"), computed(call, "definition")
    for mine, right in zip(actual, expected, strict=True):
        assert mine.dtype is right.dtype
        torch.testing.assert_close(mine, right, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(("batch", "heads"), [(5, 3), (5, 1), (1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_of_all_matrices_lie_side_by_side(batch, heads, dtype):
    """With one head or one row it could be a view, over whose numbers each operation would jump."""
    of_projections = torch.randn(batch, LENGTH, heads, WIDTH, dtype=dtype).transpose(1, 2)
    assert short_sequences._batch_last(of_projections).is_contiguous()


def test_its_gradient_has_one_too():
    x, y = (torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(short_sequences._Product.apply, (x, y))


def test_dropout_drops_weights_and_keeps_their_mean():
    call = call_of(dropout=0.5, scale=0.0)
    torch.nn.init.ones_(call.v)
    sums = kernels.attend(call, "explicit") * LENGTH / 2  # of weights of 1/6, each dropped or doubled
    torch.testing.assert_close(sums, sums.round())
    assert len(sums.unique()) > 3
    assert abs(float(sums.detach().mean()) - LENGTH / 2) < 0.5


@pytest.mark.parametrize(
    "wanted",
    [
        call_of("shaw"),
        call_of(sizes=(1, LENGTH)),
        call_of(sizes=(8, 8)),
        AttentionCall(*(each.detach() for each in (call_of().q, call_of().k, call_of().v)), call_of().geometry, 0.3),
    ],
    ids=["terms", "one query", "longer", "no gradient"],
)
def test_others_are_computed_as_before(wanted):
    assert not short_sequences.is_fastest(wanted)


def test_few_are_computed_as_before(monkeypatch):
    monkeypatch.setattr(short_sequences, "MIN_MATRICES", BATCH * HEADS + 1)
    assert not short_sequences.is_fastest(call_of())
