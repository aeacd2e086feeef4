"""Recording FlexAttention."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jarilab
from jarilab.inspect.intervene.interventions import HeadOff, operate

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")
CODE = flex_attention.__code__


class Attention(nn.Module):
    """Attention of 4 heads that share 2 heads of keys."""

    def __init__(self, function=flex_attention, **options):
        super().__init__()
        self.query, self.key = nn.Linear(16, 32), nn.Linear(16, 16)
        self.function, self.options = function, options

    def forward(self, x):
        q, k = (each.unflatten(-1, (-1, 8)).transpose(1, 2) for each in (self.query(x), self.key(x)))
        result = self.function(q, k, k, enable_gqa=True, **self.options)
        return result[0] if isinstance(result, tuple) else result


SLOPES = torch.tensor([0.1, 0.2, 0.3, 0.4])
CAUSAL = create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu")
PADDING = torch.tensor([4, 6])
PADDED = create_block_mask(lambda b, h, i, j: j < PADDING[b], 2, None, 6, 6, device="cpu")
OPTIONS = {
    "plain": {},
    "causal": {"block_mask": CAUSAL},
    "padding": {"block_mask": PADDED, "scale": 0.7},
    "bias": {"score_mod": lambda s, b, h, i, j: s - SLOPES[h] * (i - j), "block_mask": CAUSAL},
    "softcap": {"score_mod": lambda s, b, h, i, j: 0.5 * torch.tanh(s / 0.5), "block_mask": CAUSAL},
    "auxiliary": {"return_aux": flex.AuxRequest(lse=True)},
}


@pytest.mark.parametrize("name", OPTIONS)
@torch.no_grad()
def test_maps_rebuild_the_output(name):
    model, x = Attention(**OPTIONS[name]).eval(), torch.randn(2, 6, 16)
    expected = model(x)
    with jarilab.record(model) as tape:
        output = model(x)
    (site,) = tape.sites
    assert output.equal(expected)
    assert tape.weights(site).shape == (2, 4, 6, 6)
    assert tape.trust(site).rebuild_error < 1e-6
    assert tape.verified(site) is (name != "softcap")
    is_causal = OPTIONS[name].get("block_mask") is CAUSAL
    assert tape.site(site).kind == ("decoder" if is_causal else "encoder")
    if name == "padding":
        assert tape.weights(site)[0, ..., 4:].abs().max() == 0
    assert flex_attention.__code__ is CODE


@torch.no_grad()
def test_edit_changes_the_output():
    model, x = Attention(**OPTIONS["bias"]).eval(), torch.randn(2, 6, 16)
    with jarilab.record(model) as tape:
        plain = model(x)
    with operate(model, [HeadOff(tape.sites[0], 1)]), jarilab.record(model) as edited:
        output = model(x)
    assert output[:, 1].abs().max() == 0
    assert output[:, 2:].equal(plain[:, 2:])
    assert edited.sites == tape.sites


def test_compiler_is_not_imported():
    script = "import sys, torch, jarilab.api\nmodel = torch.nn.MultiheadAttention(4, 2)\n"
    script += "with jarilab.record(model): model(*[torch.ones(3, 1, 4)] * 3)\n"
    script += "print({'torch._dynamo', 'sympy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"


def test_function_is_restored_after_an_error():
    model = Attention()
    with pytest.raises(RuntimeError), jarilab.record(model), jarilab.record(model):
        model(torch.randn(2, 6, 15))
    assert flex_attention.__code__ is CODE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@torch.no_grad()
def test_compiled_function_is_recorded():
    model, x = Attention(torch.compile(flex_attention), **OPTIONS["bias"]).eval(), torch.randn(2, 6, 16)
    expected = model(x)
    with jarilab.record(model) as tape:
        output = model(x)
    assert output.equal(expected)
    assert tape.trust(tape.sites[0]).rebuild_error < 1e-6


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_maps_of_transformers_equal_those_of_eager_attention():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="flex_attention",
    )
    model = transformers.LlamaModel(config).eval()
    ids, mask = torch.arange(12).view(2, 6), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    with jarilab.record(model) as tape:
        model(ids, attention_mask=mask)
    model.set_attn_implementation("eager")
    maps = model(ids, attention_mask=mask, output_attentions=True).attentions
    assert tape.sites == ["decoder.0.self", "decoder.1.self"]
    for site, weights in zip(tape.sites, maps, strict=True):
        rows = mask[:, None, :, None]
        assert (tape.weights(site) * rows).allclose(weights * rows, atol=1e-6)
