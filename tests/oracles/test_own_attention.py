"""The recipes of docs/how-to/own-attention.md for other libraries, with `none`, equal the models that they change."""

import copy
import re
from pathlib import Path

import pytest
import torch

import jarilab
from helpers.architectures import IDS, LEFT, of_text

PAGE = Path(__file__).parents[2] / "docs/how-to/own-attention.md"


def follow(heading, **names):
    """Run the code below a heading of the page, with these names."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2]
    code = re.findall(r"^```text\n(.*?)^```$", section, re.M | re.S)[0]
    exec(code.replace('"alibi", n_heads=8, d_head=64', '"none", n_heads=4, d_head=8'), names)


@pytest.mark.filterwarnings("ignore")  # of transformers while it is imported
@torch.no_grad()
def test_in_a_transformers_model():
    """With shared keys, left padding and dropout."""
    transformers = pytest.importorskip("transformers", reason="NO transformers: its recipe was NOT run")
    torch.manual_seed(0)
    plain, inputs = of_text("Qwen3", mask=LEFT, num_key_value_heads=2, attention_dropout=0.5)
    plain.rotary_emb.inv_freq.zero_()
    model = copy.deepcopy(plain)
    for layer in model.layers:
        layer.self_attn.enc = jarilab.PositionEncoding("none", 4, 8, causal=True)
    follow("In a transformers model", model=model)
    real = LEFT.bool()
    torch.testing.assert_close(model(**inputs)[0][real], plain(**inputs)[0][real], rtol=0, atol=2e-6)
    model.train()
    assert not torch.equal(model(**inputs)[0], model(**inputs)[0])
    attend, qkv = transformers.AttentionInterface()["mine"], torch.randn(3, 1, 4, 5, 8)
    with pytest.raises(AssertionError, match="softcap would be lost"):
        attend(model.layers[0].self_attn, *qkv, None, softcap=30.0)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@torch.no_grad()
def test_in_x_transformers(kv_heads):
    """With shared keys, normalized queries and keys, padding and dropout."""
    other = pytest.importorskip("x_transformers", reason="NO x-transformers: its recipe was NOT run")
    torch.manual_seed(0)
    options = {"attn_kv_heads": kv_heads, "attn_qk_norm": True, "attn_qk_norm_scale": 9.0, "attn_dropout": 0.5}
    layers = other.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
    plain = other.TransformerWrapper(num_tokens=99, max_seq_len=64, use_abs_pos_emb=False, attn_layers=layers).eval()
    model = copy.deepcopy(plain)
    follow("In x-transformers", model=model, torch=torch, jarilab=jarilab)
    real = LEFT.bool()
    torch.testing.assert_close(model(IDS, mask=real)[real], plain(IDS, mask=real)[real], rtol=0, atol=2e-6)
    model.train()
    assert not torch.equal(model(IDS), model(IDS))
    layers = other.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, alibi_pos_bias=True)
    model = other.TransformerWrapper(num_tokens=99, max_seq_len=64, use_abs_pos_emb=False, attn_layers=layers)
    follow("In x-transformers", model=model, torch=torch, jarilab=jarilab)
    with pytest.raises(AssertionError, match="adds more"):
        model(IDS)
