"""What each architecture of the table attends with, counted by hand from its definition, and how to build it small.

Counts are of attention layers that one forward runs, by letter:
e: self-attention over a whole input. d: causal self-attention. o: self-attention of learned queries or of a target
without a causal mask. c: cross-attention, also of learned queries. n: a layer that mixes tokens without attention maps.
Every stack has two layers unless the overrides say otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tiny_models
import torch


@dataclasses.dataclass(frozen=True)
class Row:
    """An architecture: its counts by hand, and what its tiny model needs.

    overrides: of the configuration. cls: the model class, if not AutoModel's. inputs: makes them from the model.
    """

    name: str
    counts: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cls: str | None = None
    inputs: Callable[[Any], dict[str, Any]] | None = None
    model_type: str | None = None
    remark: str = ""


PLAIN = {
    # Encoders of text.
    "e2": "albert altclip_text_model align_text_model bert bert-generation bridgetower_text_model camembert "
    "chinese_clip_text_model clap_text_model convbert data2vec-text deberta deberta-v2 distilbert "
    "dpr electra ernie esm "
    "eurobert flaubert flava_text_model gte ibert jina_embeddings_v3 layoutlm longformer luke markuplm megatron-bert "
    "mobilebert modernbert mpnet mra nomic_bert nystromformer rembert roberta roberta-prelayernorm roc_bert roformer "
    "siglip_text_model siglip2_text_model splinter squeezebert tapas visual_bert xlm xlm-roberta "
    "xlm-roberta-xl xlnet "
    "yoso big_bird "
    # Encoders of images.
    "altclip_vision_model beit blip_2_vision_model blip_vision_model chinese_clip_vision_model "
    "clip_vision_model clipseg_vision_model data2vec-vision deit dinov2 dinov2_with_registers dinov3_vit dpt "
    "flava_image_model git_vision_model idefics2_vision idefics3_vision ijepa "
    "instructblip_vision_model internvl_vision "
    "kosmos_2_vision_model metaclip_2_vision_model mlcd_vision_model owlv2_vision_model owlvit_vision_model pixtral "
    "smolvlm_vision vit vit_mae vit_msn vitdet "
    # Encoders of speech.
    "data2vec-audio hubert sew sew-d unispeech unispeech-sat wav2vec2 wav2vec2-conformer wavlm",
    # Decoders.
    "d2": "afmoe apertus arcee aria_text biogpt bitnet blip_text_model bloom clip_text_model clipseg_text_model "
    "clvp_decoder cohere cohere2 ctrl cwm diffllama doge emu3_text_model ernie4_5 ernie4_5_moe "
    "exaone4 falcon flex_olmo "
    "fuyu gemma gemma2 gemma3_text git glm glm4 glm4_moe gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss "
    "granite granitemoe granitemoeshared groupvit_text_model helium hunyuan_v1_dense hunyuan_v1_moe "
    "imagegpt internlm3 "
    "jais2 jetmoe kosmos_2_text_model llama llama4_text metaclip_2_text_model minimax_m2 ministral "
    "ministral3 mistral "
    "mixtral modernbert-decoder mpt nanochat nemotron olmo olmo2 olmo3 olmoe openai-gpt opt owlv2_text_model "
    "owlvit_text_model persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 "
    "stablelm starcoder2 "
    "trocr vaultgemma xclip_text_model xglm",
    # Encoders with decoders.
    "e2 d2 c2": "bart bigbird_pegasus blenderbot blenderbot-small led longt5 "
    "m2m_100 marian mbart "
    "mt5 mvp nllb-moe pegasus plbart switch_transformers t5 t5gemma umt5",
    "n2": "fnet rwkv mamba falcon_mamba",
}
"""Built by the table of sizes alone."""

DECODER = {"decoder": {"is_decoder": True, "add_cross_attention": True}}
IMAGE_TOKEN, IMAGE_TOKENS = 98, 16


def _with(**more: Any) -> Callable[[Any], dict[str, Any]]:
    """The inputs of the model's parameters and more, or others."""
    return lambda model: {**tiny_models.inputs_of(model), **more}


def _only(**inputs: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda model: inputs


def _pair(model: Any) -> dict[str, Any]:
    """A text and an image."""
    return {"input_ids": tiny_models.ids(), "pixel_values": tiny_models.noise(2, 3, *tiny_models.side(model.config))}


def _image_in_text(tokens: int, *shape: int) -> Callable[[Any], dict[str, Any]]:
    """A text that begins with an image of so many tokens."""
    marks = torch.full((2, tokens), IMAGE_TOKEN)
    text = torch.cat([marks, tiny_models.ids()], 1)
    return _only(input_ids=text, pixel_values=noise(*(shape or (2, 3, 32, 32))))


noise = tiny_models.noise
SWIN = {"image_size": 64, "patch_size": 4, "window_size": 4, "depths": [2, 2], "num_heads": [2, 4], "embed_dim": 16}
LATENT = {"num_key_value_heads": 4}
SECTIONS = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
SERIES = {"prediction_length": 3, "context_length": 6, "lags_sequence": [1, 2], "num_time_features": 1}
SERIES_INPUTS = _only(
    past_values=noise(2, 8),
    past_time_features=noise(2, 8, 1),
    past_observed_mask=torch.ones(2, 8),
    future_values=noise(2, 3),
    future_time_features=noise(2, 3, 1),
)
IN_TEXT = {"image_token_id": IMAGE_TOKEN, "image_token_index": IMAGE_TOKEN}
VIDEO = noise(2, 4, 3, 32, 32)
RNN = ("linear_attention", "full_attention")

SPECIAL = [
    # Text.
    Row("encoder-decoder", "e2 d2 c2", DECODER),
    Row("fsmt", "e2 d2 c2", inputs=_with(use_cache=False), remark="without a causal mask if it fills a cache"),
    Row("pegasus_x", "e2 d2 c4", remark="learned global tokens attend to all tokens, and all to them"),
    Row("prophetnet", "e2 d4 c2", remark="each layer attends in a main and in an n-gram stream"),
    Row("pop2piano", "e2 d2 c2", cls="Pop2PianoForConditionalGeneration", inputs=_with(use_cache=False)),
    Row("canine", "e4", remark="the first layer attends within blocks"),
    Row("funnel", "e14", remark="pooled queries"),
    Row("gpt_neo", "d2", {"attention_types": [[["global", "local"], 1]]}),
    Row("gptj", "d2", {"rotary_dim": 8}),
    Row("codegen", "d2", {"rotary_dim": 8}),
    *(Row(name, "d2", LATENT) for name in ("deepseek_v2", "deepseek_v3", "minicpm3", "youtu")),
    Row("qwen3_next", "d1", {"layer_types": list(RNN)}, remark="and a layer of linear attention"),
    Row("jamba", "d1", {"attn_layer_period": 2, "attn_layer_offset": 1}, remark="and a layer of Mamba"),
    Row("recurrent_gemma", "d1", {"block_types": ["recurrent", "attention"]}, remark="and a recurrent layer"),
    Row("minimax", "d1", remark="and a layer of lightning attention"),
    Row("lfm2", "d2"),
    Row("falcon_h1", "d2", remark="each layer has Mamba as well"),
    Row("reformer", "e6", {"axial_pos_shape": [16, 16], "axial_pos_embds_dim": [16, 16], "is_decoder": False}),
    # Images and videos.
    Row("aimv2_vision_model", "e2 c1", remark="a learned query pools the tokens"),
    Row("siglip_vision_model", "e2 c1", remark="a learned query pools the tokens"),
    Row("yolos", "e2", {"image_size": [32, 32]}),
    Row("swin", "e4", SWIN),
    Row("swinv2", "e4", SWIN | {"pretrained_window_sizes": [0, 0]}),
    Row("donut-swin", "e4", SWIN),
    *(Row(name, "e5", remark="pooled keys") for name in ("segformer", "glpn", "pvt", "pvt_v2")),
    Row("hiera", "e5"),
    Row("levit", "e6", {"image_size": 64, "patch_size": 16}, remark="two layers halve the image"),
    *(Row(name, "e2") for name in ("sam_vision_model", "sam_hq_vision_model", "got_ocr2_vision")),
    Row("timesformer", "e4", {"num_frames": 4}, inputs=_only(pixel_values=VIDEO), remark="in time and in space"),
    Row("videomae", "e2", {"num_frames": 4}, inputs=_only(pixel_values=VIDEO)),
    Row("vivit", "e2", {"num_frames": 4, "tubelet_size": [2, 8, 8]}, inputs=_only(pixel_values=VIDEO)),
    Row("vjepa2", "e4", remark="encoder and predictor"),
    Row("vision-encoder-decoder", "e2 d2 c2", DECODER),
    *(Row(name, "n1") for name in ("resnet", "poolformer", "focalnet", "swiftformer", "regnet", "mobilenet_v2")),
    # Speech and sound.
    Row("whisper", "e2 d2 c2", inputs=_with(input_features=noise(2, 16, 512))),
    Row("speech_to_text", "e2 d2 c2", inputs=_with(input_features=noise(2, 80, 16))),
    Row("audio-spectrogram-transformer", "e2", {"max_length": 40}, inputs=_only(input_values=noise(2, 40, 16))),
    Row("wav2vec2-bert", "e2", inputs=_only(input_features=noise(2, 20, 160))),
    Row("speech-encoder-decoder", "e2 d2 c2", DECODER),
    Row("fastspeech2_conformer", "e4"),
    Row("moonshine", "e2 d2 c2", {f"{side}_num_key_value_heads": 4 for side in ("encoder", "decoder")}),
    # Text and images.
    *(Row(name, "e2 d2", inputs=_pair) for name in ("clip", "clipseg", "metaclip_2", "owlvit", "owlv2")),
    Row("blip", "e4", inputs=_pair, remark="its text has no causal mask unless a decoder is asked for"),
    *(Row(name, "e4", inputs=_pair) for name in ("chinese_clip", "altclip")),
    Row("siglip", "e4 c1", inputs=_pair, remark="a learned query pools the image"),
    Row("flava", "e6", inputs=_pair, remark="text, image and both"),
    Row("vilt", "e2", inputs=_pair),
    Row("git", "e4", inputs=_pair, remark="image tokens see each other, text is causal"),
    Row("llava", "e2 d2", IN_TEXT, inputs=_image_in_text(IMAGE_TOKENS)),
    Row("vipllava", "e2 d2", IN_TEXT | {"vision_feature_layers": [-1, -2]}, inputs=_image_in_text(IMAGE_TOKENS)),
    Row("internvl", "e2 d2", IN_TEXT, inputs=_image_in_text(1)),
    Row("idefics3", "e2 d2", IN_TEXT | {"scale_factor": 2}, inputs=_image_in_text(4, 2, 1, 3, 32, 32)),
    Row("smolvlm", "e2 d2", IN_TEXT | {"scale_factor": 2}, inputs=_image_in_text(4, 2, 1, 3, 32, 32)),
    Row("blip-2", "e2 o2 c1 d2", IN_TEXT | {"num_query_tokens": 4}, inputs=_image_in_text(4)),
    Row(
        "lxmert",
        "e8 c4",
        inputs=_with(visual_feats=noise(2, 5, 32), visual_pos=noise(2, 5, 4).abs()),
        remark="two encoders, then both cross",
    ),
    *(Row(name, "d2", SECTIONS) for name in ("qwen2_vl_text", "qwen2_5_vl_text")),
    # Series and decisions.
    Row("time_series_transformer", "e2 d2 c2", SERIES, inputs=SERIES_INPUTS),
    Row("informer", "e2 d2 c2", SERIES | {"attention_type": "full", "distil": False}, inputs=SERIES_INPUTS),
    Row("patchtst", "e2", {"context_length": 32, "num_input_channels": 2}, inputs=_only(past_values=noise(2, 32, 2))),
    Row(
        "decision_transformer",
        "d2",
        inputs=_only(
            states=noise(2, 4, 17),
            actions=noise(2, 4, 4),
            rewards=noise(2, 4, 1),
            returns_to_go=noise(2, 4, 1),
            timesteps=torch.arange(4).expand(2, 4),
            attention_mask=torch.ones(2, 4),
        ),
    ),
]
"""Each with its options and inputs."""

ROWS = [
    *(Row(name, counts) for counts, names in PLAIN.items() for name in names.split() if name != "git"),
    *SPECIAL,
]
