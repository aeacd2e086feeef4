"""Agreement with the transformers library on scores made of content and distance, and on slopes."""

import pytest
import torch

from jarilab.attention.definition import AttentionCall, scores
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.attention.module import Attention
from jarilab.encodings import compose
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

pytest.importorskip("transformers")

from transformers import DebertaV2Config, XLNetConfig, XLNetModel
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.mpt import modeling_mpt
from transformers.models.xlnet import modeling_xlnet

WIDTH, HEADS, LENGTH, START = 32, 4, 11, 200
HEAD_WIDTH = WIDTH // HEADS


def placed(length=LENGTH):
    return Positions.sequence(length, START)


@pytest.mark.parametrize("clip", [3, 64])
@torch.no_grad()
def test_debertas_attention(clip):
    config = DebertaV2Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        relative_attention=True,
        max_relative_positions=clip,
        position_buckets=-1,
        pos_att_type=["c2p", "p2c"],
        share_att_key=False,
    )
    theirs = modeling_deberta_v2.DisentangledSelfAttention(config).eval()
    ours = Attention(WIDTH, HEADS, encoding=f"deberta:clip={clip}")
    encoding = ours.encoding
    for own, name in ((ours.query, "query"), (ours.key, "key"), (ours.value, "value")):
        own.load_state_dict(getattr(theirs, f"{name}_proj").state_dict())
    # Theirs have offsets, which the paper's equation does not.
    for own, name in ((encoding.key, "key"), (encoding.query, "query")):
        other = getattr(theirs, f"pos_{name}_proj")
        other.weight.copy_(torch.randn_like(other.weight) / WIDTH**0.5)
        other.bias.zero_()
        own.weight.copy_(other.weight)
    ours.out.weight.copy_(torch.eye(WIDTH))
    ours.out.bias.zero_()
    encoding.table.normal_()
    x_BLD = torch.randn(2, LENGTH, WIDTH)
    every = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    wanted, _ = theirs(x_BLD, every, rel_embeddings=encoding.table)
    torch.testing.assert_close(ours(x_BLD, positions=placed()), wanted, rtol=0, atol=1e-5)
    # Distances reach beyond the table of the short one; turned around they would be other rows.
    wrong = ours(x_BLD.flip(1), positions=placed()).flip(1)
    assert not torch.allclose(wrong, wanted, atol=1e-3)


@pytest.mark.parametrize("attention", ["uni", "bi"])
@torch.no_grad()
def test_transformer_xls_scores_as_xlnet_has_them(attention):
    config = XLNetConfig(vocab_size=10, d_model=WIDTH, n_head=HEADS, n_layer=1, d_inner=8, attn_type=attention)
    model = XLNetModel(config)
    theirs = modeling_xlnet.XLNetRelativeAttention(config).eval()
    for parameter in theirs.parameters():
        parameter.normal_(std=0.3)
    causal = attention == "uni"
    ours = compose.build("transformer_xl", site_of(WIDTH, HEADS, causal=causal))
    ours.u.copy_(theirs.r_w_bias)
    ours.v.copy_(theirs.r_r_bias)
    ours.position.weight.copy_(theirs.r.flatten(1).t())
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, HEAD_WIDTH)
    pos = placed()
    geometry = geometry_of(ours, pos, pos, Mask(causal=causal) if causal else None)
    got = scores(AttentionCall(q, k, v, geometry, theirs.scale)).softmax(-1)

    waves_RBD = model.relative_positional_encoding(LENGTH, LENGTH, bsz=2)
    k_of_place = torch.einsum("ibh,hnd->ibnd", waves_RBD, theirs.r)
    q_head, k_head, v_head = (x.permute(2, 0, 1, 3) for x in (q, k, v))
    _, weights = theirs.rel_attn_core(q_head, k_head, v_head, k_of_place, output_attentions=True)
    seen = torch.ones(LENGTH, LENGTH).tril() if causal else torch.ones(LENGTH, LENGTH)

    def among_seen(weights_BHQK):
        weights_BHQK = weights_BHQK * seen
        return weights_BHQK / weights_BHQK.sum(-1, keepdim=True)

    torch.testing.assert_close(among_seen(got), among_seen(weights.permute(2, 3, 0, 1)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("heads", [4, 6, 12, 40])
def test_mpts_slopes(heads):
    """MPT writes slope * (key - last key), which is what the last query has here."""
    theirs_HK = modeling_mpt.build_mpt_alibi_tensor(heads, LENGTH)[:, 0]
    ours_HQK = compose.build("alibi", Attention(2 * heads, heads, causal=True).site).bias(placed(), placed())
    torch.testing.assert_close(ours_HQK[:, -1], theirs_HK)
