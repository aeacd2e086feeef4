"""T5, BART, Marian and Blenderbot as encoder-decoders of jari."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from jarilab.huggingface.copying import Copying
from jarilab.models.encoder_decoder import EncoderDecoder

SIDES = ("encoder", "decoder")


def t5(copying: Copying) -> nn.Module:
    """T5, and its version 1.1 with gates and an output of its own size."""
    config = copying.config
    shared = copying.take("shared.weight")
    head = copying.take("lm_head.weight")
    tied, scaled = torch.equal(shared, head), config.scale_decoder_outputs
    size = config.d_model**0.5
    # Where scores are divided by sqrt(D), embeddings are this small and multiplied by it, as in the first Transformer.
    small = tied and scaled
    model = EncoderDecoder(
        config.vocab_size,
        config.vocab_size,
        width=config.d_model,
        heads=config.num_heads,
        head_width=config.d_kv,
        hidden=config.d_ff,
        encoder_layers=config.num_layers,
        decoder_layers=config.num_decoder_layers,
        activation=copying.activation(config.dense_act_fn),
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
        embedding_scale="sqrt" if small else "none",
    )
    copying.put("target_embedding.weight", shared / size if small else shared)
    if not tied:
        copying.put("generator.weight", head / size if scaled else head)
    copying.leave("encoder.embed_tokens", "decoder.embed_tokens")
    for side, layers in zip(SIDES, (config.num_layers, config.num_decoder_layers), strict=True):
        copying.module(f"{side}.norm", f"{side}.final_layer_norm")
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        copying.put(f"{side}.encoding.parts.0.0.table", copying.take(first))
        for layer in range(layers):
            ours, theirs = f"{side}.layers.{layer}", f"{side}.block.{layer}.layer"
            copying.modules(ours, theirs, dict(_t5_names(side, config.is_gated_act)))
    return copying.finish(model)


def _t5_names(side: str, gated: bool) -> Iterator[tuple[str, str]]:
    """Our names in a layer and theirs."""
    attentions = [("attention", "attention_residual", "0", "SelfAttention")]
    if side == "decoder":
        attentions = [
            ("self_attention", "self_residual", "0", "SelfAttention"),
            ("cross_attention", "cross_residual", "1", "EncDecAttention"),
        ]
    for ours, residual, number, theirs in attentions:
        yield f"{residual}.norm", f"{number}.layer_norm"
        for our, their in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            yield f"{ours}.{our}", f"{number}.{theirs}.{their}"
    number = len(attentions)
    yield "feed_forward_residual.norm", f"{number}.layer_norm"
    maps = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
    for our, their in {**maps, "down": "wo"}.items():
        yield f"feed_forward.{our}", f"{number}.DenseReluDense.{their}"


def bart(copying: Copying) -> nn.Module:
    """Its first two rows of positions stand for no place."""
    return _bart(copying, norm="post", embedding_norm=True, first_row=2)


def blenderbot(copying: Copying) -> nn.Module:
    """Its norms stand before sublayers."""
    return _bart(copying, norm="pre", embedding_norm=False, first_row=0)


def marian(copying: Copying) -> nn.Module:
    """Its positions are sinusoids."""
    return _bart(copying, norm="post", embedding_norm=False, first_row=None)


def _bart(copying: Copying, *, norm: Any, embedding_norm: bool, first_row: int | None) -> nn.Module:
    """first_row: of the table of positions; None for sinusoids."""
    config = copying.config
    for what in ("attention_heads", "ffn_dim"):
        of_encoder, of_decoder = (getattr(config, f"{side}_{what}") for side in SIDES)
        if of_encoder != of_decoder:
            copying.refuse(
                f"encoder_{what}={of_encoder} and decoder_{what}={of_decoder}", "expected the same"
            )
    source, target, head = (copying.take(name) for name in (*_embeddings(), "lm_head.weight"))
    shared, tied = _same(source, target), _same(head, target)
    positions = f"learned:positions={config.max_position_embeddings}"
    model = EncoderDecoder(
        len(source),
        len(target),
        width=config.d_model,
        heads=config.encoder_attention_heads,
        hidden=config.encoder_ffn_dim,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        activation=copying.activation(config.activation_function),
        norm=norm,
        encoding="sinusoidal:layout=concatenated" if first_row is None else positions,
        embedding_norm=embedding_norm,
        embedding_scale="sqrt" if config.scale_embedding else "none",
        shared=shared,
        tied=tied,
        generator_bias=True,
    )
    copying.put("target_embedding.weight", target)
    if not shared:
        copying.put("source_embedding.weight", source)
    if not tied:
        copying.put("generator.weight", head)
    copying.put("generator_bias", copying.take("final_logits_bias")[0])
    copying.leave("model.shared.")
    for side in SIDES:
        _bart_stack(copying, side, norm, embedding_norm, first_row)
    return copying.finish(model)


def _embeddings() -> list[str]:
    return [f"model.{side}.embed_tokens.weight" for side in SIDES]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _bart_stack(
    copying: Copying, side: str, norm: str, embedding_norm: bool, first_row: int | None
) -> None:
    if first_row is None:
        copying.leave(f"model.{side}.embed_positions")  # sinusoids are worked out
    else:
        table = copying.take(f"model.{side}.embed_positions.weight")
        copying.put(f"{side}.encoding.parts.0.0.table", table[first_row:])
    if embedding_norm:
        copying.module(f"{side}.embedding_norm", f"model.{side}.layernorm_embedding")
    if norm == "pre":
        copying.module(f"{side}.norm", f"model.{side}.layer_norm")
    for layer in range(getattr(copying.config, f"{side}_layers")):
        names = dict(_bart_names(side))
        copying.modules(f"{side}.layers.{layer}", f"model.{side}.layers.{layer}", names)


def _bart_names(side: str) -> Iterator[tuple[str, str]]:
    """Our names in a layer and theirs."""
    attentions = [("attention", "attention_residual", "self_attn")]
    if side == "decoder":
        attentions = [
            ("self_attention", "self_residual", "self_attn"),
            ("cross_attention", "cross_residual", "encoder_attn"),
        ]
    for ours, residual, theirs in attentions:
        yield f"{residual}.norm", f"{theirs}_layer_norm"
        for our, their in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "out")):
            yield f"{ours}.{our}", f"{theirs}.{their}_proj"
    yield "feed_forward_residual.norm", "final_layer_norm"
    yield from (("feed_forward.up", "fc1"), ("feed_forward.down", "fc2"))
