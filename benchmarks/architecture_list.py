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
    "smolvlm_vision vit vit_mae vit_msn vitdet yolos "
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
    "mt5 mvp nllb-moe pegasus pegasus_x plbart switch_transformers t5 t5gemma umt5 "
    "prophetnet",
    "n2": "fnet rwkv mamba falcon_mamba",
}
"""Built by the table of sizes alone."""

AT = {"decoder": {"is_decoder": True, "add_cross_attention": True}}


def _without_cache(model: Any) -> dict[str, Any]:
    # With a cache, FSMT applies no causal mask.
    return {**tiny_models.inputs_of(model), "use_cache": False}


SPECIAL = [
    Row("encoder-decoder", "e2 d2 c2", AT),
    Row("fsmt", "e2 d2 c2", inputs=_without_cache),
    Row("aimv2_vision_model", "e2 c1", remark="a learned query pools the tokens"),
    Row("siglip_vision_model", "e2 c1", remark="a learned query pools the tokens"),
]
"""Each with its options."""

ROWS = [*(Row(name, counts) for counts, names in PLAIN.items() for name in names.split()), *SPECIAL]
