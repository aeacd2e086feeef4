"""Models of transformers that are equivalent to a model of jari, weight for weight: one function for each family.

Embeddings are multiplied by their scale. Queries are multiplied to undo a division of the other model. `positions.py`
computes the positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.data.text import END, FIRST, PADDING
from jarilab.export.description import check_answer, unsupported_options
from jarilab.export.positions import Places, places_of
from jarilab.huggingface.copying import Names, source_of
from jarilab.huggingface.families import GPT2, NEOX, VIT, bart_side
from jarilab.nn.sublayers import ACTIVATIONS
from jarilab.positions.patches import Images

LEAST = 1024
"""Positions that are written for an encoding without limit."""
LUMINANCE = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in grey, as Pillow converts colours (ITU-R 601-2)."""
HIDDEN = -1e9
"""Added to the score of a token that does not exist."""
ROWS, LENGTH = 3, 7

Weights = dict[str, Tensor]
Compared = Callable[[Any, Mapping[str, int]], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True, eq=False)
class Equivalent:
    """An equivalent model.

    kind, config: class names of transformers. settings: arguments of the config. weights: its state by name. compared:
    a function from the other model, and the longest input by `source` and `target`, to pairs of its outputs and those
    of the run.
    """

    kind: str
    config: str
    settings: Mapping[str, Any]
    weights: Weights
    compared: Compared


def refuse(why: str, instead: str) -> NoReturn:
    """Raises UserError. why: the options that have no equivalent. instead: options that have one."""
    raise UserError(
        f"this model has no equivalent in transformers: {why}; train with {instead}, or write graphs by --to onnx"
    )


def check_stack(layers: list[Any], norm: str) -> None:
    """Raises UserError unless the norms of the layers are at `norm`, which is `pre` or `post`."""
    place = layers[0].feed_forward_residual.place
    if place != norm:
        refuse(f"norm={place}", f"--norm {norm}")


def check_options(model: nn.Module) -> None:
    """Raises UserError for layer options that transformers lacks."""
    for setting, instead in unsupported_options(model):
        refuse(setting, instead)


def table_or_rotation(encoding: Any, positions: int) -> Places:
    """`positions` of an encoding without limit, as a table or a rotation. Raises UserError for other encodings."""
    hooks = encoding.by_layer[0].hooks
    if not (hooks <= {"embed"} or hooks == {"rotate"}):
        used = " and ".join(sorted(hooks))
        refuse(f"{encoding.spec} uses {used}", "--encoding sinusoidal, learned or rotary")
    return places_of(encoding, max(LEAST, positions))


def special_tokens(first: str) -> dict[str, int]:
    """The IDs of special tokens by the names of a config."""
    return {first: FIRST, "eos_token_id": END, "pad_token_id": PADDING}


def drawn_ids(vocab_size: int, length: int, most: int | None) -> Tensor:
    """Random sequences to compare on `(ROWS, L)`, of `length` tokens, or of `most` positions if they are fewer."""
    length = length if most is None else min(length, most)
    generator = torch.Generator().manual_seed(1)
    # Without padding, which other models mask by its ID.
    return torch.randint(PADDING + 1, vocab_size, (ROWS, length), generator=generator)


def activation_of(layer: Any) -> str:
    """The name of a layer's activation in transformers."""
    names = {function: name for name, function in ACTIVATIONS.items()}
    name = names[layer.feed_forward.activation]
    return {"gelu_tanh": "gelu_new"}.get(name, name)


def scaled_rows(embedding: Any) -> Tensor:
    """The embedding vectors times their scale."""
    return embedding.weight * embedding.scale


def with_rows(rows: Tensor, count: int) -> Tensor:
    """The rows, padded with zeros to `count`."""
    return nn.functional.pad(rows, (0, 0, 0, count - len(rows)))


def named_weights(model: nn.Module, names: Names) -> Weights:
    """The weights that the other model has too, by the table that copies them from it.

    Queries are for scores divided by the square root of d_head. What the other model stores in another shape is left
    out.
    """
    factors = {
        f"{at}.query": module.scale * module.site.d_head**0.5
        for at, module in model.named_modules()
        if isinstance(module, Attention)
    }
    weights: Weights = {}
    for path, weight in model.state_dict().items():
        with contextlib.suppress(KeyError):
            name, change = source_of(path, names)
            if change is None:
                weights[str(name)] = weight * factors.get(path.rpartition(".")[0], 1.0)
    return weights


def map_weights(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of a linear map."""
    return linear.weight, linear.bias


def joined_weights(attention: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of queries, keys and values as one linear map."""
    factor = attention.scale * attention.site.d_head**0.5
    query, maps = attention.query, (attention.key, attention.value)
    weights = [query.weight * factor, *(linear.weight for linear in maps)]
    biases = [query.bias * factor, *(linear.bias for linear in maps)]
    return torch.cat(weights), torch.cat(biases)


# The families ---------------------------------------------------------------------------------------------------------


def of_language_model(model: Any, longest: Mapping[str, int]) -> Equivalent:
    """The equivalent of a language model. Raises UserError for options that transformers lacks."""
    check_answer(model)
    stack = model.decoder
    layers = [layer["self"] for layer in stack.layers]
    check_options(model)
    check_stack(layers, "pre")
    if stack.mask.window is not None:
        refuse(f"window={stack.mask.window}", "no window")
    places = table_or_rotation(stack.encoding, longest["target"])
    if places.rotary is not None:
        if places.rotary.interleaved:
            refuse(f"{stack.encoding.spec} turns neighbouring pairs", "--encoding rotary")
        return _neox(model, layers, places, max(LEAST, longest["target"]))
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


def _neox(model: Any, layers: list[Any], places: Places, positions: int) -> Equivalent:
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
        "max_position_embeddings": model.max_positions()["target"] or positions,
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

    def compared(other: Any, longest: Mapping[str, int]) -> Iterator[tuple[Tensor, Tensor]]:
        for length in (LENGTH, longest["target"]):
            ids_BL = drawn_ids(vocabulary, length, model.max_positions()["target"])
            yield other(ids_BL).logits, model(ids_BL)

    return Equivalent(
        kind, config, settings | numbers, weights | {"lm_head.weight": head}, compared
    )


def of_vision(model: Any, _: Mapping[str, int]) -> Equivalent:
    """The equivalent of a Vision Transformer. Raises UserError for options that transformers lacks."""
    stack, width = model.encoder, model.embedding.out_features
    layers = list(stack.layers)
    check_options(model)
    check_stack(layers, "pre")
    if model.pool != "class" or len(model.nowhere.weight) > 1:
        refuse(
            "it has registers, or reads the mean of the patches",
            "--set model.pool=class, without registers",
        )
    encoding = stack.encoding.by_layer[0]
    if not encoding.hooks <= {"embed"}:
        refuse(
            f"{stack.encoding.spec} acts inside attention", "--encoding sinusoidal2d or learned2d"
        )
    channels, height, wide = model.shape
    places = model.places(Images(torch.zeros(1, *model.shape)))
    zeros_1LD = torch.zeros(1, places.length, width)
    weight = model.embedding.weight.unflatten(1, (channels, model.patch_size, model.patch_size))
    if channels == 1:  # pipelines of transformers give every image three channels
        weight = weight * torch.tensor(LUMINANCE).view(-1, 1, 1)
    weights = {
        **named_weights(model, VIT),
        "vit.embeddings.cls_token": model.nowhere.weight.unsqueeze(0),
        "vit.embeddings.position_embeddings": encoding.embed(zeros_1LD, places),
        "vit.embeddings.patch_embeddings.projection.weight": weight,
    }
    settings = {
        "hidden_size": width,
        "num_hidden_layers": len(layers),
        "num_attention_heads": layers[0].attention.site.n_heads,
        "intermediate_size": layers[0].feed_forward.up.out_features,
        "hidden_act": activation_of(layers[0]),
        "layer_norm_eps": stack.norm.eps,
        "image_size": (height, wide),
        "patch_size": model.patch_size,
        "num_channels": 3,
        "num_labels": model.generator.out_features,
    }

    def compared(other: Any, _: Mapping[str, int]) -> Iterator[tuple[Tensor, Tensor]]:
        pixels = torch.randn(ROWS, *model.shape, generator=torch.Generator().manual_seed(1))
        yield other(pixels.expand(-1, 3, -1, -1)).logits, model(pixels)

    return Equivalent("ViTForImageClassification", "ViTConfig", settings, weights, compared)


def of_encoder_decoder(model: Any, longest: Mapping[str, int]) -> Equivalent:
    """The equivalent of an encoder-decoder. Raises UserError for options that transformers lacks."""
    sides = {"encoder": model.encoder, "decoder": model.decoder}
    norm = model.encoder.layers[0].feed_forward_residual.place
    if model.decoder.cross_encoding.by_layer[0].hooks:
        refuse(
            f"cross_encoding={model.decoder.cross_encoding.spec}", "--set model.cross_encoding=none"
        )
    check_options(model)
    tables = {}
    for (side, stack), count in zip(sides.items(), longest.values(), strict=True):
        check_stack(list(stack.layers), norm)
        tables[side] = table_or_rotation(stack.encoding, count).table
        if tables[side] is None:
            refuse(
                f"{stack.encoding.spec} acts inside attention", "--encoding sinusoidal or learned"
            )
    names = {**bart_side("encoder", 0), **bart_side("decoder", 0)}
    weights = named_weights(model, names)
    weights["lm_head.weight"] = (model.generator or model.target_embedding).weight
    make = _blenderbot if norm == "pre" else _marian
    return make(model, sides, tables, weights)


def _bart_settings(model: Any, sides: Mapping[str, Any], positions: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "d_model": model.target_embedding.weight.shape[1],
        "max_position_embeddings": positions,
        "activation_function": activation_of(model.encoder.layers[0]),
        "scale_embedding": False,  # `scaled_rows` did it
        "tie_word_embeddings": False,
        "decoder_start_token_id": FIRST,
        "forced_eos_token_id": None,  # by default BART ends every answer of the largest length with END
        **special_tokens("bos_token_id"),
    }
    for side, stack in sides.items():
        settings |= {
            f"{side}_layers": len(stack.layers),
            f"{side}_attention_heads": stack.encoding.by_layer[0].site.n_heads,
            f"{side}_ffn_dim": stack.layers[0].feed_forward.up.out_features,
        }
    return settings


def _blenderbot(model: Any, sides: Any, tables: Any, weights: Weights) -> Equivalent:
    """The equivalent for pre-norm."""
    # Blenderbot has one vocabulary size and one number of positions. Missing rows are zeros and never predicted.
    source, target = _embeddings(model)
    vocabulary = max(len(source), len(target))
    positions = max(len(table) for table in tables.values())
    bias_1V = torch.zeros(1, vocabulary)
    bias_1V[:, len(target) :] = HIDDEN
    weights |= {
        "final_logits_bias": bias_1V,
        "model.shared.weight": with_rows(target, vocabulary),
        "model.encoder.embed_tokens.weight": with_rows(source, vocabulary),
        "model.decoder.embed_tokens.weight": with_rows(target, vocabulary),
        "lm_head.weight": with_rows(weights["lm_head.weight"], vocabulary),
    }
    weights |= {
        f"model.{side}.embed_positions.weight": with_rows(table, positions)
        for side, table in tables.items()
    }
    settings = {"vocab_size": vocabulary, **_bart_settings(model, sides, positions)}
    kind = "BlenderbotForConditionalGeneration"
    return Equivalent(kind, "BlenderbotConfig", settings, weights, _translated(model))


def _marian(model: Any, sides: Any, tables: Any, weights: Weights) -> Equivalent:
    """The equivalent for post-norm. Raises UserError for other positions than Marian's sinusoids."""
    # Marian computes its sinusoids itself, whatever the folder has.
    source, target = _embeddings(model)
    positions = max(len(table) for table in tables.values())
    for side, table in tables.items():
        if not torch.allclose(table, _marians(len(table), table.shape[1]), atol=1e-5):
            refuse(
                f"norm=post and {sides[side].encoding.spec}, and the post-norm model there has sinusoids, sines first",
                "--encoding sinusoidal:layout=concatenated, or --norm pre",
            )
    weights |= {
        "final_logits_bias": torch.zeros(1, len(target)),
        "model.encoder.embed_tokens.weight": source,
        "model.decoder.embed_tokens.weight": target,
    }
    for side in sides:
        weights[f"model.{side}.embed_positions.weight"] = _marians(positions, source.shape[1])
    settings = {
        "vocab_size": len(source),
        "decoder_vocab_size": len(target),
        "share_encoder_decoder_embeddings": False,
        **_bart_settings(model, sides, positions),
    }
    return Equivalent("MarianMTModel", "MarianConfig", settings, weights, _translated(model))


def _marians(positions: int, width: int) -> Float[Tensor, "L D"]:
    """Marian's sinusoids: sines in the first half, cosines in the second."""
    exponent_F = torch.arange(0, width, 2, dtype=torch.float64) / width
    angle_LF = torch.arange(positions).unsqueeze(-1) / 10000**exponent_F
    return torch.cat((angle_LF.sin(), angle_LF.cos()), -1).float()


def _translated(model: Any) -> Compared:
    def compared(other: Any, longest: Mapping[str, int]) -> Iterator[tuple[Tensor, Tensor]]:
        ends = model.max_positions()
        source, target = _embeddings(model)
        for lengths in (dict.fromkeys(ends, LENGTH), longest):
            source_BK = drawn_ids(len(source), lengths["source"], ends["source"])
            target_BQ = drawn_ids(len(target), lengths["target"], ends["target"])
            scores = other(input_ids=source_BK, decoder_input_ids=target_BQ).logits
            yield scores[..., : len(target)], model(source_BK, target_BQ)

    return compared


def _embeddings(model: Any) -> tuple[Tensor, Tensor]:
    """The scaled embeddings of source and target."""
    source, target = model.embeddings
    return scaled_rows(source), scaled_rows(target)
