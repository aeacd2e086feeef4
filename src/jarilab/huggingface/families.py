"""Builds models of jarilab from transformers models: one function and one table of names for each family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jarilab.core.errors import UserError, as_user_error
from jarilab.huggingface.copying import Change, Names, WeightCopier, rotary_spec
from jarilab.huggingface.loading import Loaded, load
from jarilab.models.decoder import LanguageModel
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.text_encoder import TextEncoder
from jarilab.models.vision import VisionTransformer

SIDES = ("encoder", "decoder")


def from_huggingface(folder: str | Path) -> nn.Module:
    """A model of jarilab with the weights of a transformers model, in evaluation mode.

        model = jarilab.from_huggingface("gpt2")  # a folder on disk, as model.save_pretrained(FOLDER) writes it
        scores_BLV = model(ids_BL)

    GPT-2, GPT-NeoX, LLaMA, Mistral and Qwen 2 become a `LanguageModel`; T5, BART, Marian and Blenderbot an
    `EncoderDecoder`; BERT a `TextEncoder`; ViT a `VisionTransformer`. Both models compute the same. Dropout is 0.
    Raises UserError if the folder holds no model, another model, or a setting that no layer of jarilab supports.
    """
    return copied(load(folder, swapped=False))[0]


def copied(loaded: Loaded) -> tuple[nn.Module, dict[str, Any]]:
    """The model of jarilab with the weights of a loaded one, and its options. Raises UserError."""
    folder = loaded.folder
    build = FAMILIES.get(loaded.kind)
    if build is None:
        raise UserError(
            f"{folder} holds a {loaded.kind}, which cannot be copied: expected one of {', '.join(FAMILIES)}; look at "
            "it as it is, by jarilab.record(model)"
        )
    copier = WeightCopier(loaded)
    with as_user_error(f"{folder} cannot be copied"):
        return build(copier), copier.options


def _renamed(ours: str, theirs: str, names: Mapping[str, str | tuple[str, Change]]) -> Names:
    """A table with a prefix before each name of ours and of theirs."""
    table: dict[str, str | tuple[str, Change] | Tensor] = {}
    for name, source in names.items():
        if isinstance(source, str):
            table[ours + name] = theirs + source
        else:
            their_name, change = source
            table[ours + name] = theirs + their_name, change
    return table


def _projections(
    ours: str, theirs: str, query: str, key: str, value: str, out: str
) -> dict[str, str]:
    """The four projections of an attention. theirs: their names, with {} for the part that differs."""
    sources = {"query": query, "key": key, "value": value, "out": out}
    return {f"{ours}.{name}": theirs.format(source) for name, source in sources.items()}


# Language models ------------------------------------------------------------------------------------------------------


def _transposed(weight: Tensor, _: Any) -> Tensor:
    return weight.t()


def _third(number: int) -> Change:
    """Queries, keys or values of a transposed map to all three, as GPT-2 stores it."""
    return lambda weight, _: weight.t().chunk(3)[number]


def _third_of_heads(number: int) -> Change:
    """The same of a map to query, key and value of the first head, then of the second, as GPT-NeoX stores it."""

    def change(weight: Tensor, config: Any) -> Tensor:
        by_head = weight.unflatten(0, (config.num_attention_heads, 3, -1))
        return by_head[:, number].flatten(0, 1)

    return change


GPT2: Names = {
    "embedding": "transformer.wte",
    "decoder.encoding.parts.0.0.table": "transformer.wpe.weight",
    **_renamed(
        "decoder.layers.*.self.",
        "transformer.h.*.",
        {
            "attention_residual.norm": "ln_1",
            "attention.query": ("attn.c_attn", _third(0)),
            "attention.key": ("attn.c_attn", _third(1)),
            "attention.value": ("attn.c_attn", _third(2)),
            "attention.out": ("attn.c_proj", _transposed),
            "feed_forward_residual.norm": "ln_2",
            "feed_forward.up": ("mlp.c_fc", _transposed),
            "feed_forward.down": ("mlp.c_proj", _transposed),
        },
    ),
    "decoder.norm": "transformer.ln_f",
    "generator": "lm_head",
}
NEOX: Names = {
    "embedding": "gpt_neox.embed_in",
    **_renamed(
        "decoder.layers.*.self.",
        "gpt_neox.layers.*.",
        {
            "attention_residual.norm": "input_layernorm",
            "attention.query": ("attention.query_key_value", _third_of_heads(0)),
            "attention.key": ("attention.query_key_value", _third_of_heads(1)),
            "attention.value": ("attention.query_key_value", _third_of_heads(2)),
            "attention.out": "attention.dense",
            "feed_forward_residual.norm": "post_attention_layernorm",
            "feed_forward.up": "mlp.dense_h_to_4h",
            "feed_forward.down": "mlp.dense_4h_to_h",
        },
    ),
    "decoder.norm": "gpt_neox.final_layer_norm",
    "generator": "lm_head",
}
LLAMA: Names = {
    "embedding": "model.embed_tokens",
    **_renamed(
        "decoder.layers.*.self.",
        "model.layers.*.",
        {
            "attention_residual.norm": "input_layernorm",
            **_projections("attention", "self_attn.{}_proj", "q", "k", "v", "o"),
            "feed_forward_residual.norm": "post_attention_layernorm",
            "feed_forward.gate": "mlp.gate_proj",
            "feed_forward.up": "mlp.up_proj",
            "feed_forward.down": "mlp.down_proj",
        },
    ),
    "decoder.norm": "model.norm",
    "generator": "lm_head",
}


def gpt2(copier: WeightCopier) -> nn.Module:
    """GPT-2, as a language model with a learned table of positions."""
    config = copier.config
    copier.require(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    model = copier.build(
        LanguageModel,
        config.vocab_size,
        d_model=config.n_embd,
        n_heads=config.n_head,
        n_layers=config.n_layer,
        d_ff=config.n_inner,
        activation=copier.activation(config.activation_function),
        norm_eps=config.layer_norm_epsilon,
        encoding=f"learned:positions={config.n_positions}",
        embedding_scale="none",
        tied=copier.repeats("lm_head.weight", "transformer.wte.weight"),
    )
    return copier.copy(model, GPT2)


def neox(copier: WeightCopier) -> nn.Module:
    """GPT-NeoX: parallel residuals, and rotary on a fraction of each head."""
    config = copier.config
    model = copier.build(
        LanguageModel,
        config.vocab_size,
        **_sizes(copier),
        norm_eps=config.layer_norm_eps,
        encoding=rotary_spec(copier, partial=True),
        embedding_scale="none",
        tied=copier.repeats("lm_head.weight", "gpt_neox.embed_in.weight"),
        parallel=config.use_parallel_residual,
    )
    return copier.copy(model, NEOX)


def llama(copier: WeightCopier) -> nn.Module:
    """LLaMA; Mistral, with a sliding window; Qwen 2, with biases of queries, keys and values."""
    config = copier.config
    copier.require(use_sliding_window=False)
    # Qwen 2 has a window in its configuration even if it does not use it.
    window = (
        None if hasattr(config, "use_sliding_window") else config.to_dict().get("sliding_window")
    )
    # Biases that Qwen 2 lacks are filled with 0.
    biases = {f"model.layers.0.{name}.bias" for name in ("self_attn.q_proj", "mlp.up_proj")}
    model = copier.build(
        LanguageModel,
        config.vocab_size,
        **_sizes(copier),
        gated=True,
        bias=not biases.isdisjoint(copier.weights),
        norm_kind="rms",
        norm_eps=config.rms_norm_eps,
        d_head=getattr(config, "head_dim", None),
        n_kv_heads=config.num_key_value_heads,
        encoding=rotary_spec(copier),
        window=window,
        embedding_scale="none",
        tied=copier.repeats("lm_head.weight", "model.embed_tokens.weight"),
    )
    return copier.copy(model, LLAMA)


def _sizes(copier: WeightCopier) -> dict[str, Any]:
    """The options of layers that most configurations call by the same names."""
    config = copier.config
    return {
        "d_model": config.hidden_size,
        "n_heads": config.num_attention_heads,
        "n_layers": config.num_hidden_layers,
        "d_ff": config.intermediate_size,
        "activation": copier.activation(config.hidden_act),
    }


# Encoder-decoders -----------------------------------------------------------------------------------------------------


# What jarilab's names of an attention begin with, and what transformers calls it.
T5_ATTENTIONS = {
    "encoder": {"": "SelfAttention"},
    "decoder": {"self_": "SelfAttention", "cross_": "EncDecAttention"},
}
BART_ATTENTIONS = {
    "encoder": {"": "self_attn"},
    "decoder": {"self_": "self_attn", "cross_": "encoder_attn"},
}


def _t5_side(side: str, *, gated: bool) -> Names:
    attentions = T5_ATTENTIONS[side]
    names: dict[str, str] = {}
    for number, (prefix, module) in enumerate(attentions.items()):
        names[f"{prefix or 'attention_'}residual.norm"] = f"{number}.layer_norm"
        names |= _projections(f"{prefix}attention", f"{number}.{module}.{{}}", "q", "k", "v", "o")
    dense = f"{len(attentions)}.DenseReluDense"
    names["feed_forward_residual.norm"] = f"{len(attentions)}.layer_norm"
    names["feed_forward.gate"] = f"{dense}.wi_0"
    names["feed_forward.up"] = f"{dense}.wi_1" if gated else f"{dense}.wi"
    names["feed_forward.down"] = f"{dense}.wo"
    first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return {
        f"{side}.encoding.parts.0.0.table": first,
        **_renamed(f"{side}.layers.*.", f"{side}.block.*.layer.", names),
        f"{side}.norm": f"{side}.final_layer_norm",
    }


def bart_side(side: str, unused_positions: int) -> Names:
    """The names of one side. unused_positions: rows at the beginning of the table that belong to no position."""
    names: dict[str, str] = {"feed_forward.up": "fc1", "feed_forward.down": "fc2"}
    names["feed_forward_residual.norm"] = "final_layer_norm"
    for prefix, module in BART_ATTENTIONS[side].items():
        names[f"{prefix or 'attention_'}residual.norm"] = f"{module}_layer_norm"
        names |= _projections(f"{prefix}attention", f"{module}.{{}}_proj", "q", "k", "v", "out")
    return {
        f"{side}.encoding.parts.0.0.table": (
            f"model.{side}.embed_positions.weight",
            lambda table, _: table[unused_positions:],
        ),
        f"{side}.embedding_norm": f"model.{side}.layernorm_embedding",
        **_renamed(f"{side}.layers.*.", f"model.{side}.layers.*.", names),
        f"{side}.norm": f"model.{side}.layer_norm",
    }


def t5(copier: WeightCopier) -> nn.Module:
    """T5, and version 1.1 with gated feed-forward layers and an untied output."""
    config = copier.config
    embedding, head = copier.take("shared.weight"), copier.take("lm_head.weight")
    for side in SIDES:
        if not copier.repeats(f"{side}.embed_tokens.weight", "shared.weight"):
            copier.refuse(f"embeddings of the {side} alone", "expected shared ones")
    tied, scaled = torch.equal(embedding, head), config.scale_decoder_outputs
    root = config.d_model**0.5
    # transformers divides scores by sqrt(D). Here embeddings are divided, and multiplied where they are read.
    divided = tied and scaled
    model = copier.build(
        EncoderDecoder,
        config.vocab_size,
        config.vocab_size,
        d_model=config.d_model,
        n_heads=config.num_heads,
        d_head=config.d_kv,
        d_ff=config.d_ff,
        n_encoder_layers=config.num_layers,
        n_decoder_layers=config.num_decoder_layers,
        activation=copier.activation(config.dense_act_fn),
        gated=config.is_gated_act,
        bias=False,
        norm_kind="rms",
        norm_eps=config.layer_norm_epsilon,
        scale="none",
        encoding=(
            f"t5:buckets={config.relative_attention_num_buckets},"
            f"distance={config.relative_attention_max_distance}"
        ),
        shared=True,
        tied=tied,
        embedding_scale="sqrt" if divided else "none",
    )
    names = {
        "target_embedding.weight": embedding / root if divided else embedding,
        **_t5_side("encoder", gated=config.is_gated_act),
        **_t5_side("decoder", gated=config.is_gated_act),
        "generator.weight": head / root if scaled else head,
    }
    return copier.copy(model, names)


def bart(
    copier: WeightCopier,
    *,
    norm: Any = "post",
    embedding_norm: bool = False,
    sinusoids: bool = False,
    unused_positions: int = 0,
) -> nn.Module:
    """BART, Marian, which has sinusoidal positions, and Blenderbot, which normalizes before sublayers."""
    config = copier.config
    for setting in ("attention_heads", "ffn_dim"):
        of_encoder, of_decoder = (getattr(config, f"{side}_{setting}") for side in SIDES)
        if of_encoder != of_decoder:
            copier.refuse(
                f"encoder_{setting}={of_encoder} and decoder_{setting}={of_decoder}",
                "expected the same",
            )
    source, target = (copier.take(f"model.{side}.embed_tokens.weight") for side in SIDES)
    learned = f"learned:positions={config.max_position_embeddings}"
    model = copier.build(
        EncoderDecoder,
        len(source),
        len(target),
        d_model=config.d_model,
        n_heads=config.encoder_attention_heads,
        d_ff=config.encoder_ffn_dim,
        n_encoder_layers=config.encoder_layers,
        n_decoder_layers=config.decoder_layers,
        activation=copier.activation(config.activation_function),
        norm=norm,
        encoding="sinusoidal:layout=concatenated" if sinusoids else learned,
        embedding_norm=embedding_norm,
        embedding_scale="sqrt" if config.scale_embedding else "none",
        shared=torch.equal(source, target),
        tied=torch.equal(copier.take("lm_head.weight"), target),
        generator_bias=True,
    )
    names = {
        "source_embedding": "model.encoder.embed_tokens",
        "target_embedding": "model.decoder.embed_tokens",
        **bart_side("encoder", unused_positions),
        **bart_side("decoder", unused_positions),
        "generator": "lm_head",
        "generator_bias": ("final_logits_bias", lambda bias, _: bias[0]),
    }
    tables = tuple(f"model.{side}.embed_positions" for side in SIDES) if sinusoids else ()
    return copier.copy(model, names, ignored=("model.shared.", *tables))


# Encoders -------------------------------------------------------------------------------------------------------------

BERT: Mapping[str, str] = {
    "embedding": "embeddings.word_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "encoder.encoding.parts.0.0.table": "embeddings.position_embeddings.weight",
    "encoder.embedding_norm": "embeddings.LayerNorm",
}
BERT_LAYER = {
    **_projections(
        "attention", "attention.{}", "self.query", "self.key", "self.value", "output.dense"
    ),
    "attention_residual.norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}
BERT_HEAD: Names = {
    "words.map": "cls.predictions.transform.dense",
    "words.norm": "cls.predictions.transform.LayerNorm",
    "words.bias": "cls.predictions.decoder.bias",
}
VIT: Names = {
    "embedding.weight": (
        "vit.embeddings.patch_embeddings.projection.weight",
        lambda weight, _: weight.flatten(1),  # a convolution of one patch at a time
    ),
    "embedding.bias": "vit.embeddings.patch_embeddings.projection.bias",
    "encoder.encoding.parts.0.0.table": (
        "vit.embeddings.position_embeddings",
        lambda table, _: table[0, 1:],
    ),
    **_renamed(
        "encoder.layers.*.",
        "vit.layers.*.",
        {
            "attention_residual.norm": "layernorm_before",
            **_projections("attention", "attention.{}_proj", "q", "k", "v", "o"),
            "feed_forward_residual.norm": "layernorm_after",
            "feed_forward.up": "mlp.fc1",
            "feed_forward.down": "mlp.fc2",
        },
    ),
    "encoder.norm": "vit.layernorm",
    "generator": "classifier",
}


def bert(copier: WeightCopier, prefix: str = "", *, words: bool = False) -> nn.Module:
    """BERT without its pooler; with its masked language model head if `words`."""
    config = copier.config
    copier.require(is_decoder=False, add_cross_attention=False)
    output = "cls.predictions.decoder.weight"
    if words and not copier.repeats(output, f"{prefix}embeddings.word_embeddings.weight"):
        copier.refuse("an output matrix of its own", "expected one tied to the word embeddings")
    model = copier.build(
        TextEncoder,
        config.vocab_size,
        **_sizes(copier),
        norm_eps=config.layer_norm_eps,
        encoding=f"learned:positions={config.max_position_embeddings}",
        segments=config.type_vocab_size,
        words=words,
        embedding_scale="none",
    )
    names = {
        **_renamed("", prefix, BERT),
        **_renamed("encoder.layers.*.", f"{prefix}encoder.layer.*.", BERT_LAYER),
        **BERT_HEAD,
    }
    # The bias of the head is that of its decoder.
    return copier.copy(model, names, ignored=("pooler.", "cls.predictions.bias"))


def vit(copier: WeightCopier) -> nn.Module:
    """The Vision Transformer, which classifies from the class token."""
    config = copier.config
    height, width = _pair(config.image_size)
    patch, patch_width = _pair(config.patch_size)
    if patch != patch_width:
        copier.refuse(f"patches of {patch} x {patch_width} pixels", "expected squares")
    model = copier.build(
        VisionTransformer,
        (config.num_channels, height, width),
        config.num_labels,
        patch_size=patch,
        **_sizes(copier),
        norm_eps=config.layer_norm_eps,
        encoding=f"learned:positions={(height // patch) * (width // patch)}",
        pool="class",
    )
    # The class token has a position in transformers and none here, so that its row is added once and for all.
    token = copier.take("vit.embeddings.cls_token")[0]
    token = token + copier.take("vit.embeddings.position_embeddings")[0, :1]
    return copier.copy(model, {**VIT, "nowhere.weight": token})


def _pair(size: Any) -> tuple[int, int]:
    """Height and width, of a configuration that may give one number for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


FAMILIES: dict[str, Callable[[WeightCopier], nn.Module]] = {
    "GPT2LMHeadModel": gpt2,
    "GPTNeoXForCausalLM": neox,
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": llama,
    "Qwen2ForCausalLM": llama,
    "T5ForConditionalGeneration": t5,
    "BartForConditionalGeneration": partial(bart, embedding_norm=True, unused_positions=2),
    "MarianMTModel": partial(bart, sinusoids=True),
    "BlenderbotForConditionalGeneration": partial(bart, norm="pre"),
    "BertModel": bert,
    "BertForMaskedLM": partial(bert, prefix="bert.", words=True),
    "ViTForImageClassification": vit,
}
"""The function that builds and fills a model, by the class of transformers that wrote the weights."""
