"""FlexAttention equals the definition; what it does not support is refused."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import create_block_mask

import jarilab
from jarilab.attention.flex import mask_of
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.attention.kernels import is_blockwise
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings import compose
from jarilab.inspect.record.capture import record
from jarilab.models.decoder import LanguageModel
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

TESTS = Path(__file__).parents[2]
BY_DISTANCE = ["t5", "alibi", "alibi:slopes=sides", "kerple", "sandwich", "dynamic_bias", "rotary+t5", "none"]
FEW = ["t5", "rotary+t5"]


@pytest.fixture
def uncompiled(monkeypatch):
    """Forward alone, by PyTorch's own explicit form: it cannot be compiled among run-time checks of annotations."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.parametrize(
    ("device", "tolerance", "specs"),
    [
        ("cpu", 1e-12, FEW),
        pytest.param("cpu", 1e-12, BY_DISTANCE, marks=pytest.mark.long),
        pytest.param("cuda", 1e-4, BY_DISTANCE, marks=pytest.mark.gpu),
    ],
)
def test_output_and_gradients_equal_the_definitions(device, tolerance, specs):
    command = [sys.executable, "-W", "ignore", str(TESTS / "helpers" / "flex_probe.py"), device, *specs]
    process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.returncode == 0, process.stderr
    differences = json.loads(process.stdout)
    assert len(differences) == 4 * len(specs) + 5
    assert max(differences.values()) < tolerance, differences


def test_a_whole_model_and_its_maps_are_those_of_the_other_kernels(uncompiled):
    ids = torch.randint(9, (2, 14))
    documents = torch.tensor([[0] * 6 + [1] * 8, [0] * 14])
    outputs, maps = [], []
    for kernel in ("explicit", "flex"):
        torch.manual_seed(3)
        model = (
            LanguageModel(9, d_model=16, n_heads=2, n_layers=2, encoding="t5", window=5, kernel=kernel).double().eval()
        )
        with torch.no_grad(), record(model) as tape:
            outputs.append(model(jarilab.Tokens(ids, Positions.sequence(14), documents=documents)))
        maps.append(tape.weights("decoder.1.self"))
        assert tape.kernels()["decoder.1.self"] == kernel
    assert torch.allclose(*outputs, atol=1e-12)
    assert torch.allclose(*maps, atol=1e-12)


@pytest.mark.parametrize("spec", ["shaw", "fire", "cope", "transformer_xl"])
def test_unsupported_encodings_are_refused_when_a_model_is_built(spec):
    with pytest.raises(UserError, match=r"kernel=flex .* bias depends on the distance alone, .*; use kernel=auto"):
        jarilab.Attention(16, 2, encoding=spec, causal=True, kernel="flex")


def test_dropout_and_tokens_without_position_are_refused(uncompiled):
    with pytest.raises(UserError, match=r"got dropout=0\.1; use kernel=auto"):
        jarilab.Attention(16, 2, kernel="flex", dropout=0.1)
    attention = jarilab.Attention(16, 2, encoding="t5", kernel="flex")
    places = Positions.nowhere(1, Positions.sequence(4)).concat(Positions.sequence(4))
    with pytest.raises(UserError, match=r"integer positions on one axis, .* use kernel=auto"):
        attention(torch.randn(1, 5, 16), positions=places)


def test_training_on_a_cpu_is_refused_by_pytorch():
    attention = jarilab.Attention(16, 2, encoding="t5", kernel="flex")
    with pytest.raises(UserError, match=r"kernel=flex: .*backward on CPU.*use kernel=auto"):
        attention(torch.randn(1, 5, 16))


@pytest.mark.parametrize("length", [256, 300])
def test_blocks_of_a_mask_are_those_that_pytorch_finds(length):
    pos = Positions.sequence(length)
    ours = mask_of(Mask(causal=True, window=140), pos, pos)
    rule = lambda b, h, q, k: (q >= k) & (q - k < 140)  # noqa: E731
    theirs = create_block_mask(rule, None, None, length, length, "cpu")
    for kind in ("kv", "full_kv", "q", "full_q"):
        counts = getattr(ours, f"{kind}_num_blocks")
        assert counts.equal(getattr(theirs, f"{kind}_num_blocks"))
        found, expected = getattr(ours, f"{kind}_indices"), getattr(theirs, f"{kind}_indices")
        for row, count in enumerate(counts[0, 0].tolist()):
            assert found[0, 0, row, :count].equal(expected[0, 0, row, :count])


class Elsewhere(Tensor):
    """A CPU tensor that claims to be on a GPU."""

    device = torch.device("cuda")


def on_a_gpu(length):
    order = torch.arange(length)
    return Positions(order.unsqueeze(-1), order.as_subclass(Elsewhere))


def test_positions_further_apart_than_there_are_pairs_are_computed_by_pair():
    encoding, there = compose.build("t5", site_of(16, 2)), on_a_gpu(4)
    far = replace(there, coordinates=1000 * there.coordinates)
    near, apart = (geometry_of(encoding, pos, pos, blockwise=True) for pos in (there, far))
    assert near.blockwise.bias.values.shape == (2, 7)
    assert apart.blockwise is None
    assert apart.bias.equal(encoding.bias(far, far).unsqueeze(0))


@pytest.mark.parametrize(
    ("hooks", "mask", "length", "dropout", "expected"),
    [
        ({"bias"}, Mask(causal=True), 128, 0.0, True),
        ({"rotate"}, Mask(causal=True, window=9), 128, 0.0, True),
        ({"rotate"}, Mask(causal=True), 128, 0.0, False),  # the flash kernel knows this
        ({"bias"}, None, 127, 0.0, False),
        ({"bias"}, None, 128, 0.1, False),
    ],
)
def test_it_is_chosen_on_a_gpu_where_something_is_added_or_hidden(hooks, mask, length, dropout, expected):
    there, here = on_a_gpu(length), Positions.sequence(length)
    assert is_blockwise("auto", frozenset(hooks), there, there, mask, dropout) is expected
    assert not is_blockwise("auto", frozenset(hooks), here, here, mask, dropout)
    assert not is_blockwise("auto", frozenset(hooks), there, there, mask, dropout, width=8)  # PyTorch's least is 16
