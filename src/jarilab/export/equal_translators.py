"""Exports encoder-decoders as Blenderbot or Marian."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from jarilab.core.shapes import Float, Tensor
from jarilab.data.text import FIRST
from jarilab.export.equals import (
    HIDDEN,
    Equivalent,
    Weights,
    activation_of,
    check_options,
    check_stack,
    drawn_ids,
    named_weights,
    refuse,
    scaled_rows,
    special_tokens,
    table_or_rotation,
    with_rows,
)
from jarilab.huggingface.families import bart_side


def of_encoder_decoder(model: Any) -> Equivalent:
    """The equivalent of an encoder-decoder. Raises UserError for options that transformers lacks."""
    sides = {"encoder": model.encoder, "decoder": model.decoder}
    norm = model.encoder.layers[0].feed_forward_residual.place
    if model.decoder.cross_encoding.by_layer[0].hooks:
        refuse(
            f"cross_encoding={model.decoder.cross_encoding.spec}", "--set model.cross_encoding=none"
        )
    check_options(model)
    tables = {}
    for side, stack in sides.items():
        check_stack(list(stack.layers), norm)
        tables[side] = table_or_rotation(stack.encoding).table
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


def _translated(model: Any) -> Callable[[Any], Iterator[tuple[Tensor, Tensor]]]:
    def compared(other: Any) -> Iterator[tuple[Tensor, Tensor]]:
        ends = model.max_positions()
        source, target = _embeddings(model)
        source_BK, target_BQ = (
            drawn_ids(len(source), ends["source"]),
            drawn_ids(len(target), ends["target"]),
        )
        scores = other(input_ids=source_BK, decoder_input_ids=target_BQ).logits
        yield scores[..., : len(target)], model(source_BK, target_BQ)

    return compared


def _embeddings(model: Any) -> tuple[Tensor, Tensor]:
    """The scaled embeddings of source and target."""
    target = model.target_embedding
    return scaled_rows(model.source_embedding or target), scaled_rows(target)
