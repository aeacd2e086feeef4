"""Agreement with the transformers library's encodings of images: DETR, BEiT, Swin, Swin V2, Qwen2-VL, Pixtral, MAE."""

import pytest
import torch

from jarilab.attention.module import Attention
from jarilab.encodings import compose
from jarilab.positions.coordinates import Positions

pytest.importorskip("transformers")

from transformers import BeitConfig, PixtralVisionConfig, Swinv2Config
from transformers.models.beit import modeling_beit
from transformers.models.detr import modeling_detr
from transformers.models.pixtral import modeling_pixtral
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.swin import modeling_swin
from transformers.models.swinv2 import modeling_swinv2
from transformers.models.vit_mae import modeling_vit_mae

WIDTH, HEADS = 64, 4
HEIGHT, BREADTH = 5, 8  # not square: rows and columns differ
CLOSE = {"rtol": 0, "atol": 1e-6}


def image_of(width_mask_BHW):
    """Positions of padded images at the top left of their frame, each with its own extent."""
    extent_BA = torch.stack((width_mask_BHW.any(2).sum(1), width_mask_BHW.any(1).sum(1)), -1)
    grid = Positions.grid(*width_mask_BHW.shape[1:])
    return Positions(grid.coordinates, grid.order, grid.axes, grid.frame, extent=extent_BA)


def detr_waves(mask_BHW, **options):
    theirs = modeling_detr.DetrSinePositionEmbedding(WIDTH // 2, **options)
    shape = torch.Size((len(mask_BHW), WIDTH, *mask_BHW.shape[1:]))
    return theirs(shape, "cpu", torch.float64, mask_BHW).flatten(2).transpose(1, 2)


@pytest.mark.parametrize("base", [20.0, 10000.0])
def test_detr_sine_in_padded_images(base):
    mask_BHW = torch.ones(3, HEIGHT, BREADTH, dtype=torch.bool)
    mask_BHW[1, 3:] = mask_BHW[1, :, 6:] = mask_BHW[2, :, 2:] = False
    wanted = detr_waves(mask_BHW, temperature=base, normalize=True)
    ours = compose.build(f"sinusoidal2d:normalised=true,where=inject,base={base}", Attention(WIDTH, HEADS).site)
    pos = image_of(mask_BHW)
    got = ours.inject(torch.zeros(3, pos.length, WIDTH, dtype=torch.float64), pos)
    real = mask_BHW.flatten(1)
    torch.testing.assert_close(got[real], wanted[real], **CLOSE)
    turned = compose.build(f"sinusoidal2d:normalised=true,base={base}", Attention(WIDTH, HEADS).site)
    swapped = Positions(pos.coordinates.flip(-1), pos.order, pos.axes, pos.frame, extent=pos.extent.flip(-1))
    assert not torch.allclose(turned.embed(torch.zeros_like(got), swapped)[real], wanted[real], **CLOSE)


def test_detr_sine_counts_from_one():
    """Not normalised, theirs begins at 1 where ours begins at 0."""
    wanted = detr_waves(torch.ones(1, HEIGHT, BREADTH, dtype=torch.bool))
    ours, grid = compose.build("sinusoidal2d", Attention(WIDTH, HEADS).site), Positions.grid(HEIGHT, BREADTH)
    later = Positions(grid.coordinates + 1, grid.order, grid.axes, grid.frame)
    torch.testing.assert_close(ours.embed(torch.zeros_like(wanted), later), wanted, **CLOSE)


def test_beit_bias_from_the_same_table():
    # A square, since theirs reads the table of any other with rows and columns exchanged.
    config = BeitConfig(hidden_size=WIDTH, num_attention_heads=HEADS, image_size=HEIGHT * 16, patch_size=16)
    theirs = modeling_beit.BeitRelativePositionBias(config)
    ours = compose.build(f"table2d:rows={HEIGHT - 1},columns={HEIGHT - 1}", Attention(WIDTH, HEADS).site)
    with torch.no_grad():
        theirs.relative_position_bias_table.normal_()
        # Theirs is indexed by query minus key, ours by key minus query; its last three rows are of the class token.
        ours.table.copy_(theirs.relative_position_bias_table[:-3].flip(0))
    grid = Positions.grid(HEIGHT, HEIGHT)
    torch.testing.assert_close(ours.bias(grid, grid), theirs((HEIGHT, HEIGHT))[0, :, 1:, 1:], **CLOSE)


def test_swin_bias_from_the_same_table():
    """Windows need not be square."""
    theirs = modeling_swin.SwinRelativePositionBias(HEADS, (HEIGHT, BREADTH))
    ours = compose.build(f"table2d:rows={HEIGHT - 1},columns={BREADTH - 1}", Attention(WIDTH, HEADS).site)
    with torch.no_grad():
        theirs.relative_position_bias_table.copy_(ours.table.flip(0))
    grid = Positions.grid(HEIGHT, BREADTH)
    torch.testing.assert_close(ours.bias(grid, grid), theirs()[0], **CLOSE)
    transposed = Positions.grid(BREADTH, HEIGHT)
    flipped = Positions(transposed.coordinates.flip(-1), transposed.order, grid.axes, grid.frame)
    assert not torch.allclose(ours.bias(flipped, flipped), theirs()[0], **CLOSE)


@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_qwen2_vl_turns_half_of_the_pairs_by_rows_and_half_by_columns(base):
    config = Qwen2VLVisionConfig(
        embed_dim=WIDTH, num_heads=HEADS, rope_parameters={"rope_type": "axial", "rope_theta": base}
    )
    config.num_attention_heads = HEADS
    grid = Positions.grid(HEIGHT, BREADTH)
    x_BHLE = torch.randn(1, HEADS, grid.length, WIDTH // HEADS)
    cosine, sine = modeling_qwen2_vl.Qwen2VLVisionRotaryEmbedding(config)(x_BHLE, grid.coordinates)
    x_LHE = x_BHLE[0].transpose(0, 1)
    wanted, _ = modeling_qwen2_vl.apply_rotary_pos_emb_vision(x_LHE, x_LHE, cosine, sine)
    ours = compose.build(f"rotary2d:base={base}", Attention(WIDTH, HEADS).site)
    got = ours.rotate(x_BHLE, ours.rotation(grid))[0].transpose(0, 1)
    torch.testing.assert_close(got, wanted, **CLOSE)
    turned = Positions(grid.coordinates.flip(-1), grid.order, grid.axes, grid.frame)
    assert not torch.allclose(ours.rotate(x_BHLE, ours.rotation(turned))[0].transpose(0, 1), wanted, **CLOSE)


@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_pixtral_gives_rows_and_columns_every_other_frequency(base):
    config = PixtralVisionConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, rope_parameters={"rope_type": "axial", "rope_theta": base}
    )
    grid = Positions.grid(HEIGHT, BREADTH)
    x_BHLE = torch.randn(1, HEADS, grid.length, WIDTH // HEADS)
    cosine, sine = modeling_pixtral.PixtralVisionRotaryEmbedding(config)(x_BHLE, grid.coordinates)
    wanted, _ = modeling_pixtral.apply_rotary_pos_emb(x_BHLE, x_BHLE, cosine, sine, unsqueeze_dim=0)
    ours, axial = (
        compose.build(f"{name}:base={base}", Attention(WIDTH, HEADS).site) for name in ("pixtral", "rotary2d")
    )
    torch.testing.assert_close(ours.rotate(x_BHLE, ours.rotation(grid)), wanted, rtol=0, atol=1e-5)
    assert not torch.allclose(axial.rotate(x_BHLE, axial.rotation(grid)), wanted, rtol=0, atol=1e-2)


def test_mae_has_columns_before_rows():
    """Theirs is told to write rows first, and to exchange the halves for the weights that there are."""
    build = modeling_vit_mae.build_2d_sinusoidal_position_embedding
    rows_first = build(HEIGHT, BREADTH, WIDTH, cls_token=True)
    first, second = rows_first.chunk(2, -1)
    wanted = torch.cat((second, first), -1)
    grid = Positions.grid(HEIGHT, BREADTH)
    pos = Positions.nowhere(1, grid).concat(grid)
    ours = compose.build("sinusoidal_mae", Attention(WIDTH, HEADS).site)
    got = ours.embed(torch.zeros(1, pos.length, WIDTH), pos)[0]
    torch.testing.assert_close(got, wanted, **CLOSE)
    assert not torch.allclose(got, rows_first, **CLOSE)


@pytest.mark.parametrize("trained", [0, 4], ids=["its own window", "of smaller windows"])
def test_swinv2_bias_from_the_same_network(trained):
    """Theirs is 16 sigmoid(x), ours 8 less."""
    window = HEIGHT
    theirs = modeling_swinv2.Swinv2SelfAttention(
        Swinv2Config(), WIDTH, HEADS, window, pretrained_window_size=[trained, trained]
    )
    largest = (trained or window) - 1
    ours = compose.build(f"continuous_bias2d:rows={largest},columns={largest}", Attention(WIDTH, HEADS).site)
    first, _, last = theirs.continuous_position_bias_mlp
    with torch.no_grad():
        ours.first.weight.copy_(first.weight)
        ours.first.bias.copy_(first.bias)
        last.weight.normal_()
        ours.last.weight.copy_(last.weight)
    table = 16 * theirs.continuous_position_bias_mlp(theirs.relative_coords_table).view(-1, HEADS).sigmoid()
    wanted = table[theirs.relative_position_index.view(-1)].view(window**2, window**2, HEADS).permute(2, 0, 1)
    grid = Positions.grid(window, window)
    # Theirs is indexed by query minus key.
    torch.testing.assert_close(ours.bias(grid, grid) + 8, wanted.mT, rtol=0, atol=1e-4)
    assert not torch.allclose(ours.bias(grid, grid) + 8, wanted, rtol=0, atol=1e-2)
