"""Models of transformers with tiny configurations, random weights, and inputs to call them with.

`build(model_type, overrides)` makes a model of any type that transformers knows. Sizes come from one table of attribute
names; sub-configurations are made tiny the same way. Models whose sizes depend on each other have their overrides in
`architecture_list.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Overrides = Mapping[str, Any]

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 99, 32, 8

SIZES: tuple[tuple[int, str], ...] = (
    (
        WIDTH,
        "hidden_size d_model n_embd embed_dim dim emb_dim embedding_size attention_hidden_size encoder_hidden_size "
        "encoder_hidden_dim decoder_hidden_size decoder_hidden_dim projection_dim out_hidden_size output_hidden_size "
        "projector_hidden_size fusion_hidden_size text_hidden_size backbone_hidden_size word_embed_proj_dim "
        "image_text_hidden_size hidden_dim lru_width cross_attention_hidden_size entity_emb_size "
        "visual_embedding_dim "
        "xpath_unit_hidden_size pooler_hidden_size merged_hidden_size decoder_embed_dim "
        "mm_hidden_size vit_hidden_size "
        "embedding_dim vision_feature_dim true_hidden_size intra_bottleneck_size output_dim pooler_output_size "
        "vision_output_dim projector_input_dim projector_output_dim audio_embed_dim mm_embed_dim adapter_out_dim "
        "encoder_config_hidden_size fpn_hidden_size kv_dim vision_hidden_size projection_hidden_size d_latents "
        "projection_intermediate_dim projection_intermediate_size output_proj_dims retrieval_vector_size vit_dim "
        "mask_feature_size mask_dim text_encoder_width shape_embed_dim pronunciation_embed_dim conf_hidden_size "
        "hidden_size_global decoder_hidden reassemble_hidden_size prediction_head_size "
        "head_hidden_size visual_feat_dim",
    ),
    (
        64,
        "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner ffn_hidden_size "
        "mlp_dim feed_forward_size "
        "moe_intermediate_size shared_expert_intermediate_size d_inner decoder_intermediate_size dim_feedforward "
        "encoder_feedforward_dim encoder_dim_feedforward decoder_dim_feedforward intermediate_size_mlp "
        "expert_ffn_hidden_size dense_intermediate_size shared_intermediate_size moe_shared_expert_intermediate_size "
        "block_ff_dim prompt_intermediate_size encoder_linear_units decoder_linear_units "
        "memory_attention_feed_forward_hidden_size",
    ),
    (
        LAYERS,
        "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_decoder_layers "
        "num_encoder_layers decoder_num_hidden_layers encoder_num_hidden_layers depth resampler_depth layers "
        "num_encoder_blocks_ conf_num_hidden_layers n_local_experts l_layers x_layers r_layers "
        "text_encoder_num_layers "
        "decoder_num_layers num_blocks_ memory_attention_num_layers num_attention_layers "
        "speech_decoder_postnet_layers_ "
        "folding_trunk_num_hidden_layers pred_num_hidden_layers num_spatial_layers num_temporal_layers",
    ),
    (
        HEADS,
        "num_attention_heads n_head num_heads n_heads encoder_attention_heads "
        "decoder_attention_heads attention_heads "
        "encoder_num_attention_heads decoder_num_attention_heads num_encoder_attention_heads "
        "num_decoder_attention_heads "
        "resampler_heads resampler_n_heads decoder_num_heads num_self_attention_heads num_cross_attention_heads "
        "conf_num_attention_heads decoder_self_attention_heads decoder_cross_attention_heads swa_num_attention_heads "
        "pred_num_attention_heads prompt_num_attention_heads mit_num_attention_heads text_encoder_num_heads "
        "num_sliding_attention_heads",
    ),
    (
        2,
        "num_key_value_heads num_kv_heads swa_num_key_value_heads encoder_num_key_value_heads "
        "decoder_num_key_value_heads "
        "num_key_value_attention_heads num_query_groups num_experts num_experts_per_tok moe_k "
        "moe_topk topk_group n_group "
        "num_experts_per_token type_vocab_size window_size_ num_register_tokens",
    ),
    (
        4,
        "num_local_experts n_routed_experts moe_num_experts sliding_window sliding_window_size num_latents "
        "attention_window_size qk_rope_head_dim num_codebooks zero_expert_num attention_window "
        "num_query_tokens num_quantizers",
    ),
    (
        8,
        "head_dim d_kv kv_lora_rank q_lora_rank qk_nope_head_dim v_head_dim kv_channels "
        "swa_head_dim index_head_dim d_head "
        "index_topk resampler_head_dim resampler_dim_head attention_head_size "
        "hidden_size_per_layer_input mamba_d_state "
        "mamba_headdim mamba_d_head mamba_head_dim linear_key_head_dim linear_value_head_dim "
        "embedding_rank num_frames_ "
        "adapter_rank laurel_rank dim_head",
    ),
    (12, "qk_head_dim"),
    (5, "num_queries num_detection_tokens"),
    (
        VOCABULARY,
        "vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size audio_vocab_size char_vocab_size "
        "vocab_size_per_layer_input text_encoder_vocab_size entity_vocab_size codebook_size_ codebook_vocab_size",
    ),
    (
        64 * 4,
        "max_position_embeddings n_positions max_source_positions max_target_positions context_length n_ctx "
        "model_max_length seq_len max_speech_positions max_text_positions max_encoder_position_embeddings "
        "max_decoder_position_embeddings tts_max_len original_max_position_embeddings",
    ),
    (IMAGE, "image_size crop_size pretrain_image_size"),
    (PATCH, "patch_size"),
    (16, "num_mel_bins num_conv_pos_embeddings input_feat_per_channel n_mel_bins input_feat_size"),
    (0, "pad_token_id"),
    (1, "bos_token_id eos_token_id decoder_start_token_id"),
)
"""What is small, by the names that configurations have for it."""
SIZE_OF = {name: size for size, names in SIZES for name in names.split()}
LISTS: dict[str, tuple[Any, ...]] = {
    "depths": (2, 1, 1, 1, 1),
    "num_blocks": (1, 1, 1, 1, 1),
    "blocks_per_stage": (1, 2, 1, 1),
    "hidden_sizes": (16, 32, 64, 128),
    "neck_hidden_sizes": (16, 32, 64, 128),
    "encoder_hidden_sizes": (16, 32, 64, 128),
    "embed_dims": (16, 32, 64, 128),
    "embed_dim": (16, 32, 64, 128),
    "embed_dim_per_stage": (16, 32, 64, 128),
    "num_heads": (1, 2, 4, 8),
    "num_attention_heads": (1, 2, 4, 8),
    "num_attention_heads_per_stage": (1, 2, 4, 8),
    "conv_dim": (16,) * 20,
    "conv_channels": (16,) * 4,
    "depth": (1, 1, 1, 1),
}
"""The first entries of lists, cut to the length of the default."""


def config_class(model_type: str) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


def fields_of(cls: Any) -> dict[str, Any]:
    """The parameters of a configuration and their defaults."""
    defaults = {}
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        defaults[field.name] = default
    return defaults


def tiny_config(cls: Any, overrides: Overrides | None = None) -> Any:
    """A small configuration. overrides: by attribute; a dict for a sub-configuration, whose "
    "`model_type` may change."""
    overrides = dict(overrides or {})
    values = {}
    defaults = fields_of(cls)
    attribute_map = getattr(cls, "attribute_map", {})
    for name, default in defaults.items():
        if name in ("id2label", "label2id", *getattr(cls, "sub_configs", {})):
            continue
        if isinstance(default, list | tuple) and name in LISTS and default and not isinstance(default[0], list):
            values[name] = type(default)(LISTS[name][: len(default)])
        elif name in SIZE_OF and not isinstance(default, list | tuple | dict | bool | str):
            values[name] = SIZE_OF[name]
    if (
        values.get("num_key_value_heads")
        and "num_attention_heads" not in values
        and "num_attention_heads" not in attribute_map
    ):
        del values["num_key_value_heads"]
    values |= sub_configs(cls, overrides)
    values |= overrides
    return cls(**values)


def sub_configs(cls: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """The small sub-configurations; takes their overrides out of `overrides`."""
    names = getattr(cls, "sub_configs", {})
    if not names:
        return {}
    made = {}
    default = None
    for name, kind in names.items():
        changes = overrides.pop(name, {})
        if changes is None or not isinstance(changes, dict):
            made[name] = changes
            continue
        changes = dict(changes)
        model_type = changes.pop("model_type", None)
        if model_type is not None:
            kind = config_class(model_type)
        elif not dataclasses.is_dataclass(kind):  # AutoConfig: whatever the default is
            default = default if default is not None else cls()
            made_by_default = getattr(default, name, None)
            if made_by_default is None:
                continue
            kind = type(made_by_default)
        if getattr(kind, "__name__", "") in ("PreTrainedConfig", "AutoConfig"):
            continue
        made[name] = tiny_config(kind, changes)
    return made


def model_class(model_type: str, name: str | None = None) -> Any:
    """The class of a model type: AutoModel's, or the first of its module that takes this configuration."""
    import transformers
    from transformers.models.auto import modeling_auto

    if name is None:
        name = modeling_auto.MODEL_MAPPING_NAMES.get(model_type)
        name = name[0] if isinstance(name, tuple | list) else name
    if name is not None and hasattr(transformers, name):
        return getattr(transformers, name)
    config = config_class(model_type)
    module = importlib.import_module(config.__module__.replace("configuration_", "modeling_"))
    if name is not None:
        return getattr(module, name)
    for other in vars(module).values():
        if (
            inspect.isclass(other)
            and getattr(other, "config_class", None) is config
            and "PreTrained" not in other.__name__
        ):
            return other
    raise LookupError(f"no model of {model_type} in {module.__name__}")


def build(model_type: str, overrides: Overrides | None = None, cls: str | None = None) -> nn.Module:
    """A model with random weights, in eval mode."""
    torch.manual_seed(0)
    model = model_class(model_type, cls)(tiny_config(config_class(model_type), overrides))
    return spread_weights(model).eval()


@torch.no_grad()
def spread_weights(model: nn.Module) -> nn.Module:
    """Draw linear maps and embeddings anew, so large that attention maps are far from uniform."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.ndim != 2:
            continue
        if isinstance(module, nn.Embedding):
            weight.normal_(0, 1)
        elif isinstance(module, nn.Linear):
            weight.normal_(0, 1 / math.sqrt(weight.shape[1]))
        elif type(module).__name__ == "Conv1D":
            weight.normal_(0, 1 / math.sqrt(weight.shape[0]))
    return model


# Inputs -------------------------------------------------------------------------------------------------------------

BATCH, TOKENS, WRITTEN = 2, 7, 4


def ids(length: int = TOKENS, batch: int = BATCH) -> Tensor:
    return torch.randint(3, 90, (batch, length), generator=torch.Generator().manual_seed(3))


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def first(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these attributes, in the configuration or its sub-configurations."""
    parts = [config, *(getattr(config, name, None) for name in getattr(type(config), "sub_configs", {}))]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def side(config: Any) -> tuple[int, int]:
    size = first(config, "image_size", default=IMAGE)
    if isinstance(size, dict):
        size = (size["height"], size["width"])
    return (size[0], size[1]) if isinstance(size, list | tuple) else (size, size)


def inputs_of(model: nn.Module) -> dict[str, Any]:
    """Inputs by the parameters of the forward: tokens, pixels, waves or spectrograms."""
    config, names = model.config, inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    inputs: dict[str, Any] = {}
    channels = first(config, "num_channels", default=3)
    if (
        "input_ids" in names
        and main in ("input_ids", "pixel_values")
        and names["input_ids"].default is inspect.Parameter.empty
    ) or (main == "input_ids" and "input_ids" in names):
        inputs["input_ids"] = ids()
    if "pixel_values" in names and (
        main == "pixel_values" or not inputs or names["pixel_values"].default is inspect.Parameter.empty
    ):
        inputs["pixel_values"] = noise(BATCH, channels if isinstance(channels, int) else 3, *side(config))
    if "pixel_values_videos" in names and not inputs:
        inputs["pixel_values_videos"] = noise(BATCH, 4, 3, *side(config))
    if "input_values" in names and not inputs:
        inputs["input_values"] = noise(BATCH, 4000)
    if "input_features" in names and not inputs:
        bins = first(config, "num_mel_bins", "feature_size", "input_feat_per_channel", default=16)
        inputs["input_features"] = noise(BATCH, bins, 80) if main == "input_features" else noise(BATCH, 80, bins)
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = ids(WRITTEN)
    return inputs
