"""Agreement with torch.nn: the same weights give the same attention and the same layers."""

import pytest
import torch
from torch import nn

from jarilab.attention.geometry import geometry_of
from jarilab.attention.module import Attention
from jarilab.encodings import compose
from jarilab.models.layers import DecoderLayer, EncoderLayer, LayerOptions
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

WIDTH, HEADS, HIDDEN = 24, 3, 40
PADDED = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], dtype=torch.bool)  # two rows, five keys; True is padding


@torch.no_grad()
def copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    for weight, bias, own in zip(
        theirs.in_proj_weight.chunk(3),
        theirs.in_proj_bias.normal_().chunk(3),
        (ours.query, ours.key, ours.value),
        strict=True,
    ):
        own.weight.copy_(weight)
        own.bias.copy_(bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())


def both_attentions(cross: bool = False) -> tuple[Attention, nn.MultiheadAttention]:
    ours, theirs = Attention(WIDTH, HEADS, cross=cross), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    copy_attention(ours, theirs)
    return ours, theirs


def later(length: int) -> torch.Tensor:
    """torch's boolean causal mask: True is hidden."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("kernel", ["explicit", "fused", "definition"])
@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_self_attention(causal, padded, kernel):
    ours, theirs = both_attentions()
    ours.attend.kernel = kernel
    x_BLD = torch.randn(2, 5, WIDTH)
    got = ours(x_BLD, mask=Mask(causal=causal, keys=~PADDED if padded else None))
    wanted, _ = theirs(
        x_BLD, x_BLD, x_BLD, key_padding_mask=PADDED if padded else None, attn_mask=later(5) if causal else None
    )
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
def test_cross_attention(padded):
    ours, theirs = both_attentions(cross=True)
    x_BQD, y_BKD = torch.randn(2, 3, WIDTH), torch.randn(2, 5, WIDTH)
    got = ours(x_BQD, y_BKD, mask=Mask(keys=~PADDED) if padded else None)
    wanted, _ = theirs(x_BQD, y_BKD, y_BKD, key_padding_mask=PADDED if padded else None)
    torch.testing.assert_close(got, wanted)


@torch.no_grad()
def copy_feed_forward(ours, theirs) -> None:
    ours.feed_forward.up.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.down.load_state_dict(theirs.linear2.state_dict())


@torch.no_grad()
def copy_norms(residuals, norms) -> None:
    for residual, norm in zip(residuals, norms, strict=True):
        norm.weight.normal_(mean=1.0)
        norm.bias.normal_()
        residual.norm.load_state_dict(norm.state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_layer(norm):
    ours = EncoderLayer(LayerOptions(WIDTH, HEADS, HIDDEN, norm))
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=norm == "pre")
    copy_attention(ours.attention, theirs.self_attn)
    copy_feed_forward(ours, theirs)
    copy_norms((ours.attention_residual, ours.feed_forward_residual), (theirs.norm1, theirs.norm2))

    x_BLD, positions = torch.randn(2, 5, WIDTH), Positions.sequence(5)
    geometry = geometry_of(compose.build("none", ours.attention.site), positions, positions, Mask(keys=~PADDED))
    torch.testing.assert_close(ours(x_BLD, geometry), theirs(x_BLD, src_key_padding_mask=PADDED))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_layer(norm):
    ours = DecoderLayer(LayerOptions(WIDTH, HEADS, HIDDEN, norm))
    theirs = nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, 0.0, batch_first=True, norm_first=norm == "pre")
    copy_attention(ours.self_attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    copy_feed_forward(ours, theirs)
    copy_norms(
        (ours.self_residual, ours.cross_residual, ours.feed_forward_residual),
        (theirs.norm1, theirs.norm2, theirs.norm3),
    )

    x_BQD, memory_BKD = torch.randn(2, 4, WIDTH), torch.randn(2, 5, WIDTH)
    q_pos, k_pos = Positions.sequence(4, frame="target"), Positions.sequence(5, frame="source")
    own = geometry_of(compose.build("none", ours.self_attention.site), q_pos, q_pos, Mask(causal=True))
    cross = geometry_of(compose.build("none", ours.cross_attention.site), q_pos, k_pos, Mask(keys=~PADDED))
    wanted = theirs(x_BQD, memory_BKD, tgt_mask=later(4), memory_key_padding_mask=PADDED)
    torch.testing.assert_close(ours(x_BQD, memory_BKD, own, cross), wanted)
