"""Architectures of other libraries are recorded as `benchmarks/architecture_list.py` counts them by hand."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import jarilab

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
QUICK = [
    "bert",  # fused self-attention
    "deberta-v2",  # a softmax of its own
    "gpt2",  # causal
    "qwen2",  # heads that share keys
    "gpt_oss",  # a sink beside the keys
    "t5",  # an encoder, a decoder and cross-attention
    "longt5",  # blocks, multiplied by einsum
    "aimv2_vision_model",  # a learned query
    "xlnet",  # einsum, length first
    "pegasus_x",  # two relations in one module
    "time_series_transformer",  # source and target are parts of one tensor
]
KNOWN = {"mra"}
"""What is not recorded, or not in its kind: see docs/results/architectures.md."""

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # warnings of other libraries at import
]


@pytest.fixture
def architectures(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import architectures

    yield architectures
    for name in ("architectures", "architecture_models", "architecture_list", "architecture_others", "tiny_models"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", QUICK)
def test_each_kind_of_attention_is_recorded_as_counted_by_hand(architectures, name):
    assert architectures.measure_row("transformers", name)["problems"] == {}


@pytest.mark.parametrize("name", ["MultiheadAttention", "MultiheadAttention, cross", "Transformer, no mask"])
def test_attention_of_pytorch_is_recorded_as_counted_by_hand(architectures, name):
    assert architectures.measure_row("torch", name)["problems"] == {}


@pytest.mark.long
def test_all_architectures_of_transformers_are_recorded_as_counted_by_hand(architectures):
    import architecture_models

    rows = [
        row
        for name in architecture_models.transformers_rows()
        if name not in KNOWN
        for row in [architectures.measure_row("transformers", name)]
    ]
    wrong = {row["name"]: row["problems"] for row in rows if row["problems"] and "not built" not in row["problems"]}
    assert wrong == {}
    assert sum(not row["problems"] for row in rows) >= 150


class Blocks(nn.Module):
    """Attention in blocks, padded at the end: each block of queries sees itself and its neighbours."""

    def forward(self, x_BND):
        blocks = x_BND.unflatten(1, (-1, 4))
        edge = blocks.new_zeros(*blocks.shape[:1], 1, *blocks.shape[2:])
        padded = torch.cat([edge, blocks, edge], 1)
        near = torch.cat([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], 2)
        scores = torch.einsum("...qd,...kd->...qk", blocks, near)
        keys = torch.arange(12)
        is_real = (keys[None] + 4 * torch.arange(-1, blocks.shape[1] - 1)[:, None]).clamp(-1, 6)
        is_real = (is_real >= 0) & (is_real < 6)
        bias = torch.where(is_real, 0.0, -1e10)
        return torch.einsum("...qk,...kd->...qd", (scores + bias[:, None]).softmax(-1), near)


def test_einsum_with_dots_over_padded_blocks_is_no_decoder():
    model = Blocks()
    with torch.no_grad(), jarilab.record(model) as tape:
        output = model(torch.randn(2, 8, 6))
    (site,) = tape.sites
    assert tape.site(site).relation == "self"
    assert not tape.site(site).causal
    weights = tape.weights(site)
    assert weights.shape[-2:] == (8, 8)  # over all tokens
    assert output.shape == (2, 2, 4, 6)


class Mixed(nn.Module):
    """A softmax of contents and one of positions, added and normalized, as in ConViT."""

    def __init__(self):
        super().__init__()
        self.near = nn.Parameter(torch.randn(2, 5, 5))

    def forward(self, x_BHND):
        content = (x_BHND @ x_BHND.mT).softmax(-1)
        positions = self.near.expand(len(x_BHND), -1, -1, -1).softmax(-1)
        weights = 0.5 * content + 0.5 * positions
        weights = weights / weights.sum(-1, keepdim=True)
        return weights @ x_BHND


def test_added_softmaxes_are_one_whole_map():
    model = Mixed()
    with torch.no_grad(), jarilab.record(model) as tape:
        model(torch.randn(3, 2, 5, 6))
    assert len(tape.sites) == 1
    assert (tape.partial, tape.missing) == ({}, {})


class Convolved(nn.Module):
    """Queries, keys and values of a convolution, whose heads are folded with the batch."""

    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(8, 3 * 8, 1)

    def forward(self, x_BCRS):
        parts = self.project(x_BCRS).chunk(3, dim=1)
        q, k, v = (part.reshape(len(x_BCRS) * 4, 2, -1).mT for part in parts)
        return (q @ k.mT).softmax(-1) @ v


def test_heads_of_channels_of_a_convolution_are_told_from_the_batch():
    model = Convolved()
    with torch.no_grad(), jarilab.record(model) as tape:
        model(torch.randn(3, 8, 2, 3))
    (site,) = tape.sites
    assert tape.weights(site).shape == (3, 4, 6, 6)
    assert "channels" not in tape.site(site).note


class Summed(nn.Module):
    """Self-attention over the sum of two inputs, or over both after each other."""

    def forward(self, x, y, *, joins=False):
        z = torch.cat([x, y], 1) if joins else x + y
        return nn.functional.scaled_dot_product_attention(z, z, z)


@pytest.mark.parametrize("joins", [False, True])
def test_only_concatenated_inputs_are_joint_streams(joins):
    with torch.no_grad(), jarilab.record(model := Summed()) as tape:
        model(torch.randn(2, 5, 6), torch.randn(2, 5, 6), joins=joins)
    (site,) = tape.sites
    assert tape.site(site).note == ("joint streams" if joins else "")


def test_streams_that_read_each_other_are_both_encoders(architectures):
    row = architectures.measure_row("transformers", "lxmert")
    assert row["problems"] == {}
