"""Exports language models as GPT-2 or GPT-NeoX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jarilab.core.shapes import Tensor
from jarilab.export.equals import (
    LEAST,
    Equivalent,
    Weights,
    activation_of,
    check_options,
    check_stack,
    drawn_ids,
    joined_weights,
    map_weights,
    named_weights,
    refuse,
    scaled_rows,
    special_tokens,
    table_or_rotation,
)
from jarilab.export.positions import Places
from jarilab.huggingface.families import GPT2, NEOX


def of_language_model(model: Any) -> Equivalent:
    """The equivalent of a language model. Raises UserError for options that transformers lacks."""
    stack = model.decoder
    layers = [layer["self"] for layer in stack.layers]
    check_options(model)
    check_stack(layers, "pre")
    if stack.mask.window is not None:
        refuse(f"window={stack.mask.window}", "no window")
    places = table_or_rotation(stack.encoding)
    if places.rotary is not None:
        if places.rotary.interleaved:
            refuse(f"{stack.encoding.spec} turns neighbouring pairs", "--encoding rotary")
        return _neox(model, layers, places)
    return _gpt2(model, layers, places)


def _gpt2(model: Any, layers: list[Any], places: Places) -> Equivalent:
    table = places.table
    assert table is not None
    weights = {
        **named_weights(model, GPT2),
        "transformer.wte.weight": scaled_rows(model.embedding),
        "transformer.wpe.weight": table,
    }
    for number, layer in enumerate(layers):
        maps = {
            "attn.c_attn": joined_weights(layer.attention),
            "attn.c_proj": map_weights(layer.attention.out),
            "mlp.c_fc": map_weights(layer.feed_forward.up),
            "mlp.c_proj": map_weights(layer.feed_forward.down),
        }
        for name, (weight, bias) in maps.items():
            # GPT-2's Conv1D stores the transpose of a linear map.
            at = f"transformer.h.{number}.{name}"
            weights |= {f"{at}.weight": weight.t(), f"{at}.bias": bias}
    settings = {
        "n_positions": len(table),
        "n_embd": table.shape[1],
        "n_layer": len(layers),
        "n_head": layers[0].attention.site.n_heads,
        "n_inner": layers[0].feed_forward.up.out_features,
        "activation_function": activation_of(layers[0]),
        "layer_norm_epsilon": model.decoder.norm.eps,
    }
    return _causal(model, "GPT2LMHeadModel", "GPT2Config", settings, weights)


def _neox(model: Any, layers: list[Any], places: Places) -> Equivalent:
    rotary, site = places.rotary, layers[0].attention.site
    assert rotary is not None
    weights = named_weights(model, NEOX)
    weights["gpt_neox.embed_in.weight"] = scaled_rows(model.embedding)
    for number, layer in enumerate(layers):
        at = f"gpt_neox.layers.{number}.attention.query_key_value"
        # GPT-NeoX stores query, key and value of the first head, then of the second, ...
        weights[f"{at}.weight"], weights[f"{at}.bias"] = (
            part.unflatten(0, (3, site.n_heads, -1)).transpose(0, 1).flatten(0, 2)
            for part in joined_weights(layer.attention)
        )
    rope = {
        "rope_type": "default",
        "rope_theta": rotary.base,
        "partial_rotary_factor": rotary.rotated / site.d_head,
    }
    settings = {
        "max_position_embeddings": model.max_positions()["target"] or LEAST,
        "hidden_size": site.d_model,
        "num_hidden_layers": len(layers),
        "num_attention_heads": site.n_heads,
        "intermediate_size": layers[0].feed_forward.up.out_features,
        "hidden_act": activation_of(layers[0]),
        "layer_norm_eps": model.decoder.norm.eps,
        "rope_parameters": rope,
        "use_parallel_residual": False,  # GPT-NeoX's default computes both sublayers from one input
    }
    return _causal(model, "GPTNeoXForCausalLM", "GPTNeoXConfig", settings, weights)


def _causal(
    model: Any, kind: str, config: str, settings: dict[str, Any], weights: Weights
) -> Equivalent:
    head = (model.generator or model.embedding).weight
    vocabulary = head.shape[0]
    numbers = {
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,  # the head has no scale, and the embedding has
        **special_tokens("bos_token_id"),
    }

    def compared(other: Any) -> Iterator[tuple[Tensor, Tensor]]:
        ids_BL = drawn_ids(vocabulary, model.max_positions()["target"])
        yield other(ids_BL).logits, model(ids_BL)

    return Equivalent(
        kind, config, settings | numbers, weights | {"lm_head.weight": head}, compared
    )
