"""Architectures of timm, diffusers, x-transformers and PyTorch, with their counts by hand.

Letters are those of `architecture_list.py`. Models of timm have the depths of their names, or those given here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tiny_models
import torch
from architecture_models import Case
from torch import Tensor, nn

SHALLOW = {"depth": 2, "img_size": 64}
TIMM: dict[str, tuple[str, dict[str, Any]]] = {}
"""By name: the counts and the options."""


def _add(counts: str, names: str, **options: Any) -> None:
    TIMM.update(dict.fromkeys(names.split(), (counts, options)))


_add(
    "e2",
    "vit_tiny_patch16_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 deit3_small_patch16_224 "
    "vit_base_patch16_clip_224 vit_small_patch16_36x1_224 vit_base_patch16_rpn_224 vit_medium_patch16_gap_240 "
    "vit_relpos_small_patch16_224 vit_srelpos_small_patch16_224 vit_tiny_r_s16_p8_224 flexivit_small "
    "vit_wee_patch16_reg1_gap_256 vit_pwee_patch16_reg1_gap_256 vit_little_patch16_reg4_gap_256 "
    "vit_medium_patch16_rope_reg1_gap_256 beit_base_patch16_224 beitv2_base_patch16_224 beit3_base_patch16_224 "
    "vit_small_patch16_rope_224 vit_base_patch16_rope_mixed_224 vit_small_patch16_dinov3 "
    "samvit_base_patch16 naflexvit_base_patch16_gap",
    **SHALLOW,
)
_add(
    "e2",
    "vit_small_patch14_dinov2 vit_small_patch14_reg4_dinov2 eva02_tiny_patch14_224 eva_large_patch14_196 "
    "aimv2_large_patch14_224",
    depth=2,
    img_size=56,
)
_add("e4", "vit_small_patch16_18x2_224", **SHALLOW)  # two attentions side by side in each layer
_add("e2 c1", "vit_base_patch16_siglip_224 vit_so150m_patch16_reg4_map_256", **SHALLOW)  # a latent pools the tokens
_add("e2 c1", "vit_pe_core_tiny_patch16_384", depth=2, img_size=64)
_add("e4", "cait_xxs24_224", depth=2, img_size=64)  # two layers of class attention
_add("e4", "xcit_nano_12_p16_224", depth=2, img_size=64)  # two of channels, two of class attention
_add("e21", "crossvit_tiny_240")  # 3 x (1 + 4 layers and 2 that fuse)
_add("e18", "crossvit_9_240")
_add("e4", "swin_tiny_patch4_window7_224 swinv2_tiny_window8_256", depths=(2, 2), num_heads=(2, 4))
_add("e12", "swinv2_cr_tiny_ns_224 swin_s3_tiny_224 gcvit_xxtiny nest_tiny pit_ti_224 pit_ti_distilled_224 convit_tiny")
_add("e18", "gcvit_xtiny twins_svt_small")
_add("e8", "pvt_v2_b0 pvt_v2_b1 visformer_tiny")
_add("e16", "twins_pcpvt_small pvt_v2_b2_li")
_add("e10", "mvitv2_tiny tiny_vit_5m_224")
_add("e12", "davit_tiny hiera_tiny_224 sam2_hiera_tiny caformer_s18")  # davit: 6 blocks of tokens, 6 of channels
_add("e3", "edgenext_xx_small botnet26t_256 halonet26t")
_add("e9", "coatnet_nano_rw_224 coatnext_nano_rw_224 mobilevit_xxs shvit_s1")
_add("e14", "maxxvit_rmlp_nano_rw_256")  # 7 blocks, each in windows and in a grid
_add("e22", "maxvit_tiny_rw_224")
_add("e11", "levit_128s levit_conv_128s")  # 9 layers and 2 that halve the image
_add("e24", "tnt_s_patch16_224")  # 12 within patches, 12 over patches
_add("e1", "efficientformer_l1 resnet50_clip")
_add("e5", "efficientformerv2_s0")
_add("e6", "efficientvit_m0 efficientvit_m1")
_add("e2", "fastvit_sa12")
_add("e4", "nextvit_small efficientformer_l3")
_add("n1", "mobilevitv2_050 mixer_s32_224 swiftformer_xs poolformer_s12 convmixer_768_32")


def timm_case(name: str) -> Case:
    timm: Any = importlib.import_module("timm")

    counts, options = TIMM[name]
    torch.manual_seed(0)
    model = tiny_models.spread_weights(timm.create_model(name, num_classes=3, **options)).eval()
    size = options.get("img_size") or getattr(model, "default_cfg")["input_size"][-1]  # noqa: B009
    x = tiny_models.noise(1, 3, int(size), int(size))
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if norms:
        # Without statistics of its own a deep network of random weights has scores of thousands.
        for norm in norms:
            norm.momentum = 1.0
        model.train()
        with torch.no_grad():
            model(torch.cat([x, x.flip(-1)]))
        model.eval()
    return Case(model, counts, lambda model: model(x))


# diffusers ----------------------------------------------------------------------------------------------------------

noise = tiny_models.noise
Maker = Callable[[], tuple[nn.Module, dict[str, Any]]]


def _unet() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    UNet2DConditionModel = library.UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    return model, {
        "sample": noise(2, 4, 16, 16),
        "timestep": torch.tensor(5),
        "encoder_hidden_states": noise(2, 7, 32),
    }


def _unet_without_text() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    UNet2DModel = library.UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model, {"sample": noise(2, 3, 16, 16), "timestep": torch.tensor(5)}


def _autoencoder() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    AutoencoderKL = library.AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(32, 32),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return model, {"sample": noise(2, 3, 16, 16)}


def _dit() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    DiTTransformer2DModel = library.DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, norm_num_groups=8
    )
    labels, timestep = torch.tensor([1, 2]), torch.tensor([5, 6])
    return model, {"hidden_states": noise(2, 4, 8, 8), "timestep": timestep, "class_labels": labels}


def _pixart() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    PixArtTransformer2DModel = library.PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        num_layers=2,
        sample_size=8,
        cross_attention_dim=32,
        caption_channels=16,
        use_additional_conditions=False,
        norm_num_groups=8,
    )
    return model, {
        "hidden_states": noise(2, 4, 8, 8),
        "timestep": torch.tensor([5, 6]),
        "encoder_hidden_states": noise(2, 7, 16),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def _sd3() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    SD3Transformer2DModel = library.SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=16,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        out_channels=4,
    )
    return model, {
        "hidden_states": noise(2, 4, 8, 8),
        "encoder_hidden_states": noise(2, 7, 16),
        "pooled_projections": noise(2, 16),
        "timestep": torch.tensor([5, 6]),
    }


def _flux() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    FluxTransformer2DModel = library.FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    return model, {
        "hidden_states": noise(2, 16, 4),
        "encoder_hidden_states": noise(2, 7, 16),
        "pooled_projections": noise(2, 16),
        "timestep": torch.tensor([0.5, 0.6]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(7, 3),
    }


def _cogvideo() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    CogVideoXTransformer3DModel = library.CogVideoXTransformer3DModel

    model = CogVideoXTransformer3DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=16,
        num_layers=2,
        sample_width=8,
        sample_height=8,
        sample_frames=5,
        max_text_seq_length=7,
    )
    return model, {
        "hidden_states": noise(2, 2, 4, 8, 8),
        "encoder_hidden_states": noise(2, 7, 16),
        "timestep": torch.tensor([5, 6]),
    }


def _wan() -> tuple[nn.Module, dict[str, Any]]:
    library: Any = importlib.import_module("diffusers")
    WanTransformer3DModel = library.WanTransformer3DModel

    model = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
    )
    return model, {
        "hidden_states": noise(2, 4, 2, 8, 8),
        "encoder_hidden_states": noise(2, 7, 16),
        "timestep": torch.tensor([5, 6]),
    }


DIFFUSERS: dict[str, tuple[str, Maker]] = {
    "UNet2DConditionModel": ("o4 c4", _unet),  # 1 down, 1 in the middle, 2 up
    "UNet2DModel": ("e4", _unet_without_text),  # 1 down, 1 in the middle, 2 up
    "AutoencoderKL": ("e2", _autoencoder),
    "DiTTransformer2DModel": ("e2", _dit),
    "PixArtTransformer2DModel": ("o2 c2", _pixart),
    "SD3Transformer2DModel": ("e2", _sd3),
    "FluxTransformer2DModel": ("e2", _flux),
    "CogVideoXTransformer3DModel": ("e2", _cogvideo),
    "WanTransformer3DModel": ("o2 c2", _wan),
}


def diffusers_case(name: str) -> Case:
    counts, make = DIFFUSERS[name]
    torch.manual_seed(0)
    model, inputs = make()
    model = tiny_models.spread_weights(model).eval()
    return Case(model, counts, lambda model: model(**inputs))


# x-transformers -----------------------------------------------------------------------------------------------------

X_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": {"attn_flash": True},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "t5 bias": {"rel_pos_bias": True},
    "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "one key head": {"attn_one_kv_head": True},
    "grouped keys": {"attn_kv_heads": 2},
    "memory keys": {"attn_num_mem_kv": 3},
    "normalized": {"attn_qk_norm": True},
    "gated values": {"attn_gate_values": True},
    "sparse top 3": {"attn_sparse_topk": 3},
}


def x_rows() -> list[str]:
    names = [f"{stack}, {option}" for stack in ("encoder", "decoder") for option in X_OPTIONS]
    return [*names, "encoder-decoder", "images", "cross-attender"]


def x_case(name: str) -> Case:
    library: Any = importlib.import_module("x_transformers")
    CrossAttender = library.CrossAttender
    Decoder = library.Decoder
    Encoder = library.Encoder
    TransformerWrapper = library.TransformerWrapper
    ViTransformerWrapper = library.ViTransformerWrapper
    XTransformer = library.XTransformer

    torch.manual_seed(0)
    ids = tiny_models.ids()
    sizes = {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}
    if name == "encoder-decoder":
        options = {f"{side}_{key}": value for side in ("enc", "dec") for key, value in sizes.items()}
        del options["enc_dim"], options["dec_dim"]
        options |= {f"{side}_num_tokens": 99 for side in ("enc", "dec")}
        options |= {f"{side}_max_seq_len": 16 for side in ("enc", "dec")}
        model: nn.Module = XTransformer(dim=32, **options)
        target = tiny_models.ids(tiny_models.WRITTEN)
        return Case(model.eval(), "e2 d2 c2", lambda model: model(ids, target))
    if name == "images":
        model = ViTransformerWrapper(image_size=32, patch_size=8, attn_layers=Encoder(**sizes))
        x = noise(2, 3, 32, 32)
        return Case(model.eval(), "e2", lambda model: model(x))
    if name == "cross-attender":
        model = CrossAttender(**sizes)
        x, context = noise(2, 4, 32), noise(2, 7, 32)
        return Case(model.eval(), "c2", lambda model: model(x, context=context))
    stack, option = name.split(", ")
    kind = Encoder if stack == "encoder" else Decoder
    layers = kind(**sizes, **X_OPTIONS[option])
    model = TransformerWrapper(num_tokens=99, max_seq_len=16, attn_layers=layers)
    return Case(
        tiny_models.spread_weights(model).eval(), "e2" if stack == "encoder" else "d2", lambda model: model(ids)
    )


# PyTorch ------------------------------------------------------------------------------------------------------------


class _Call(nn.Module):
    """A module with the options of its call, so that a model contains it."""

    def __init__(self, inner: nn.Module, **options: Any):
        super().__init__()
        self.inner, self.options = inner, options

    def forward(self, *args: Tensor) -> Any:
        return self.inner(*args, **self.options)


def _torch_case(name: str) -> tuple[nn.Module, str, tuple[Tensor, ...], bool]:
    """A model, its counts, its inputs, and whether it returns its map of all heads second."""
    x, memory, first = noise(2, 5, 24), noise(2, 7, 24), noise(5, 2, 24)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    sizes: dict[str, Any] = {"d_model": 24, "nhead": 3, "dim_feedforward": 32, "batch_first": True}
    each = {"average_attn_weights": False}
    batch_first = nn.MultiheadAttention(24, 3, batch_first=True)
    encoder_layer, decoder_layer = nn.TransformerEncoderLayer(**sizes), nn.TransformerDecoderLayer(**sizes)
    stacks = nn.Transformer(**sizes, num_encoder_layers=2, num_decoder_layers=2)
    rows: dict[str, tuple[nn.Module, str, tuple[Tensor, ...], bool]] = {
        "MultiheadAttention": (_Call(nn.MultiheadAttention(24, 3), **each), "e1", (first,) * 3, True),
        "MultiheadAttention, batch first": (_Call(batch_first, **each), "e1", (x,) * 3, True),
        "MultiheadAttention, fused": (_Call(batch_first, need_weights=False), "e1", (x,) * 3, False),
        "MultiheadAttention, cross": (_Call(batch_first, **each), "c1", (x, memory, memory), True),
        "MultiheadAttention, causal": (_Call(batch_first, attn_mask=mask, **each), "d1", (x,) * 3, True),
        "TransformerEncoder": (nn.TransformerEncoder(encoder_layer, 2), "e2", (x,), False),
        "TransformerDecoder": (
            _Call(nn.TransformerDecoder(decoder_layer, 2), tgt_mask=mask),
            "d2 c2",
            (x, memory),
            False,
        ),
        "Transformer": (_Call(stacks, tgt_mask=mask), "e2 d2 c2", (memory, x), False),
        "Transformer, no mask": (stacks, "e2 o2 c2", (memory, x), False),
    }
    return rows[name]


TORCH = (
    *("MultiheadAttention", "MultiheadAttention, batch first", "MultiheadAttention, fused"),
    *("MultiheadAttention, cross", "MultiheadAttention, causal", "TransformerEncoder", "TransformerDecoder"),
    *("Transformer", "Transformer, no mask"),
)


def torch_case(name: str) -> Case:
    torch.manual_seed(0)
    model, counts, inputs, has_map = _torch_case(name)
    model.eval()

    def own_maps() -> tuple[Any, list[Tensor]]:
        with torch.no_grad():
            output = model(*inputs)
        return output, [output[1]] if has_map else []

    return Case(model, counts, lambda model: model(*inputs), own_maps)
