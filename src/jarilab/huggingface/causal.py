"""GPT-2, GPT-NeoX and LLaMA with its kin, as language models of jari."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from jarilab.huggingface.copying import Copying
from jarilab.models.decoder import LanguageModel
from jarilab.shapes import Tensor


def gpt2(copying: Copying) -> nn.Module:
    """Its queries, keys and values come out of one map."""
    config = copying.config
    copying.require(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    model = LanguageModel(
        config.vocab_size,
        width=config.n_embd,
        heads=config.n_head,
        layers=config.n_layer,
        hidden=config.n_inner,
        activation=copying.activation(config.activation_function),
        norm_eps=config.layer_norm_epsilon,
        encoding=f"learned:positions={config.n_positions}",
        embedding_scale="none",
        tied=config.tie_word_embeddings,
    )
    _ends(copying, "transformer.wte", "lm_head", "transformer.ln_f")
    table = copying.take("transformer.wpe.weight")
    copying.put("decoder.encoding.parts.0.0.table", table)
    for layer in range(config.n_layer):
        ours, theirs = _ours(layer), f"transformer.h.{layer}"
        copying.modules(
            ours,
            theirs,
            {"attention_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"},
        )
        # Its maps are written the other way round.
        weight = copying.take(f"{theirs}.attn.c_attn.weight").t()
        bias = copying.take(f"{theirs}.attn.c_attn.bias")
        _queries_keys_values(copying, ours, weight.chunk(3), bias.chunk(3))
        copying.module(f"{ours}.attention.out", f"{theirs}.attn.c_proj", _turned)
        copying.module(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc", _turned)
        copying.module(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj", _turned)
    return copying.finish(model)


def neox(copying: Copying) -> nn.Module:
    """Attention and feed-forward side by side, and a share of each head turned."""
    config = copying.config
    model = LanguageModel(
        config.vocab_size,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        hidden=config.intermediate_size,
        activation=copying.activation(config.hidden_act),
        norm_eps=config.layer_norm_eps,
        encoding=rotary(copying),
        embedding_scale="none",
        tied=config.tie_word_embeddings,
        parallel=config.use_parallel_residual,
    )
    _ends(copying, "gpt_neox.embed_in", "lm_head", "gpt_neox.final_layer_norm")
    names = {
        "attention_residual.norm": "input_layernorm",
        "feed_forward_residual.norm": "post_attention_layernorm",
        "attention.out": "attention.dense",
        "feed_forward.up": "mlp.dense_h_to_4h",
        "feed_forward.down": "mlp.dense_4h_to_h",
    }
    for layer in range(config.num_hidden_layers):
        ours, theirs = _ours(layer), f"gpt_neox.layers.{layer}"
        copying.modules(ours, theirs, names)
        # Query, key and value of the first head, then of the second, ...
        both = [copying.take(f"{theirs}.attention.query_key_value.weight")]
        if config.attention_bias:
            both.append(copying.take(f"{theirs}.attention.query_key_value.bias"))
        parts = [_apart(each, config.num_attention_heads) for each in both]
        _queries_keys_values(copying, ours, *parts)
    return copying.finish(model)


def llama(copying: Copying) -> nn.Module:
    """LLaMA; Mistral, which looks back through a window; Qwen 2, whose queries, keys and values have a bias."""
    config = copying.config
    copying.require(use_sliding_window=False)
    window = (
        None if hasattr(config, "use_sliding_window") else config.to_dict().get("sliding_window")
    )
    first = "model.layers.0"
    with_bias = any(
        copying.has(f"{first}.{name}.bias") for name in ("self_attn.q_proj", "mlp.up_proj")
    )
    model = LanguageModel(
        config.vocab_size,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        hidden=config.intermediate_size,
        activation=copying.activation(config.hidden_act),
        gated=True,
        bias=with_bias,
        norm_kind="rms",
        norm_eps=config.rms_norm_eps,
        head_width=getattr(config, "head_dim", None),
        key_value_heads=config.num_key_value_heads,
        encoding=rotary(copying),
        window=window,
        embedding_scale="none",
        tied=config.tie_word_embeddings,
    )
    _ends(copying, "model.embed_tokens", "lm_head", "model.norm")
    names = {
        "attention_residual.norm": "input_layernorm",
        "feed_forward_residual.norm": "post_attention_layernorm",
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.out": "self_attn.o_proj",
        "feed_forward.gate": "mlp.gate_proj",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
    }
    for layer in range(config.num_hidden_layers):
        copying.modules(_ours(layer), f"model.layers.{layer}", names)
    return copying.finish(model)


def rotary(copying: Copying) -> str:
    """The spec of the rotation that a configuration describes. Raises UserError for one that jari does not have."""
    found = copying.config.rope_parameters
    kind = found["rope_type"]
    common = {"base": found["rope_theta"], "fraction": found.get("partial_rotary_factor", 1.0)}
    if kind == "default":
        return _spec("rotary", common)
    if kind == "linear":
        return _spec("rotary_linear", {"factor": found["factor"], **common})
    if kind == "llama3":
        options = {
            "factor": found["factor"],
            "trained_length": found["original_max_position_embeddings"],
            "low_frequency_factor": found["low_freq_factor"],
            "high_frequency_factor": found["high_freq_factor"],
        }
        return _spec("llama3", {**options, **common})
    copying.refuse(f"rotations of the kind {kind}", "expected default, linear or llama3")
    raise AssertionError


def _spec(name: str, options: Mapping[str, float]) -> str:
    written = [f"{option}={value!r}" for option, value in options.items()]
    return f"{name}:{','.join(written)}"


def _ours(layer: int) -> str:
    return f"decoder.layers.{layer}.self"


def _ends(copying: Copying, embedding: str, head: str, norm: str) -> None:
    """What stands around the layers."""
    copying.module("embedding", embedding)
    copying.module("decoder.norm", norm)
    if copying.config.tie_word_embeddings:
        copying.leave(head)
    else:
        copying.module("generator", head)


def _queries_keys_values(copying: Copying, ours: str, *of_three: tuple[Tensor, ...]) -> None:
    """of_three: their weights, and their biases where they have some."""
    for part, three in zip(("weight", "bias"), of_three, strict=False):
        for name, value in zip(("query", "key", "value"), three, strict=True):
            copying.put(f"{ours}.attention.{name}.{part}", value)


def _apart(joined: Tensor, heads: int) -> tuple[Tensor, ...]:
    of_heads = joined.unflatten(0, (heads, 3, -1))
    return tuple(part.flatten(0, 1) for part in of_heads.unbind(1))


def _turned(weight: Tensor) -> Tensor:
    return weight.t()
