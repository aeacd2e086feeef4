"""A trained run in the format of another program: CTranslate2, which translates fast on a CPU without PyTorch.

`positions.py` finds out which positions of CTranslate2 do what an encoding does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.data.text import END, FIRST
from jarilab.export.description import beyond, source_ends
from jarilab.export.output import check_empty, writing
from jarilab.export.positions import Places, places_of, refuse
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.layers import ACTIVATIONS, FeedForward, Residual
from jarilab.runs.loaded import load

LEAST = 1024
"""Positions that are written at least, where an encoding has no end: what CTranslate2 reads of an input by default."""

UNKNOWN = "<unk>"

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
"""As CTranslate2 calls them."""


def export(run: str | Path, out: str | Path, *, trust_code: bool = False) -> Path:
    """Write the newest checkpoint of a run of an encoder-decoder into `out`, a folder that CTranslate2 reads.

    CTranslate2 then starts answers, and ends inputs where the task does, by itself. Its tokens are called as
    `task.show_source` and `show_target` call them; two of one name are told apart by the number of the later. With
    `min_decoding_length=0` (by default it forbids the empty answer) it writes greedily what jari writes, at the same
    scores; only to an input without any token it always answers nothing. A wider beam ends there as soon as so many
    hypotheses have ended, and in jari when none that is open is likelier: where they differ, jari's scores more.

    Raises UserError for a folder that is no run, a model that CTranslate2 cannot compute exactly, an `out` that is not
    empty, or where the package is missing.
    """
    loaded = load(run, trust_code=trust_code)
    model = _checked_model(loaded.model)
    if not loaded.task.policy.plain:
        raise UserError(
            f"CTranslate2 tells tokens that they are at 0, 1, 2, ..., and this run was trained with --positions "
            f"{loaded.experiment.options.positions}; answer with `jarilab predict`"
        )
    task: Any = loaded.task  # one of tokens, which an encoder-decoder reads
    source, target = (embedding.weight.shape[0] for embedding in _embeddings(model))
    return write(
        model,
        out,
        source=_unique(task.show_source(range(source))),
        target=_unique(task.show_target(range(target))),
        source_ends=source_ends(task, source),
        positions=max(LEAST, *task.longest.values()),
    )


def write(
    model: EncoderDecoder,
    out: str | Path,
    *,
    source: Sequence[str],
    target: Sequence[str],
    source_ends: bool = True,
    positions: int = LEAST,
) -> Path:
    """Write a model. source, target: the names of all tokens, no name twice. source_ends: each source ends with END,
    which CTranslate2 then adds. positions: how many are written where the encoding has no end; CTranslate2 cannot go on
    behind them. Raises UserError as `ctranslate2` does."""
    _checked_model(model)
    out = check_empty(out)
    between = model.decoder.cross_encoding
    if between.by_layer[0].hooks:
        refuse(between, "CTranslate2 has no positions between decoder and source")
    with torch.no_grad():
        source_places = places_of(model.encoder.encoding, positions)
        target_places = places_of(model.decoder.encoding, positions)
        specification = _transformer(model, source_places, target_places)
    specification.register_source_vocabulary(list(source))
    specification.register_target_vocabulary(list(target))
    config = specification.config
    config.bos_token = config.decoder_start_token = target[FIRST]
    config.eos_token, config.add_source_eos = target[END], source_ends
    config.unk_token = UNKNOWN if UNKNOWN in source else source[0]
    config.layer_norm_epsilon = model.encoder.layers[0].attention_residual.norm.eps
    specification.validate()
    specification.optimize()
    with writing(out) as partial:
        specification.save(str(partial))
    return out


def _unique(names: Iterable[str]) -> list[str]:
    """The names, none twice."""
    taken: dict[str, None] = {}
    for number, name in enumerate(names):
        taken[f"{name}<{number}>" if name in taken else name] = None
    return list(taken)


def _checked_model(model: nn.Module) -> EncoderDecoder:
    if not isinstance(model, EncoderDecoder):
        raise UserError(
            f"CTranslate2 is for Transformers that read a source and write a target: expected an encoder_decoder, got "
            f"{type(model).__name__}; answer with `jarilab predict`"
        )
    for setting, instead in beyond(model):
        raise UserError(
            f"CTranslate2 writes the layers of the original Transformer alone, got {setting}; answer with `jarilab "
            f"predict`, or train with {instead}"
        )
    return model


def _embeddings(model: EncoderDecoder) -> tuple[Any, Any]:
    return model.source_embedding or model.target_embedding, model.target_embedding


def _transformer(model: EncoderDecoder, source: Places, target: Places) -> Any:
    library: Any = import_optional(
        "ctranslate2.specs", "ctranslate2"
    )  # the part that writes models
    kinds = library.transformer_spec
    encoder = _stack(library, kinds.TransformerEncoderSpec, model.encoder, source)
    decoder = _stack(library, kinds.TransformerDecoderSpec, model.decoder, target)
    source_embedding, target_embedding = _embeddings(model)
    encoder.embeddings[0].weight = _array(source_embedding.weight)
    decoder.embeddings.weight = _array(target_embedding.weight)
    decoder.projection.weight = _array((model.generator or target_embedding).weight)
    for spec, layer in zip(encoder.layer, model.encoder.layers, strict=True):
        _self_attention(spec.self_attention, layer.attention, layer.attention_residual)
        _feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual)
    for spec, layer in zip(decoder.layer, model.decoder.layers, strict=True):
        _self_attention(spec.self_attention, layer.self_attention, layer.self_residual)
        _cross_attention(spec.attention, layer.cross_attention, layer.cross_residual)
        _feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual)
    return kinds.TransformerSpec(encoder, decoder)


def _stack(library: Any, kind: Any, stack: Any, places: Places) -> Any:
    """The specification of an encoder or a decoder, with its positions and last norm."""
    layer = stack.layers[0]
    pre_norm = layer.feed_forward_residual.place == "pre"
    names = {function: name for name, function in ACTIVATIONS.items()}
    name = _ACTIVATIONS[names[layer.feed_forward.activation]]
    options: dict[str, Any] = {
        "pre_norm": pre_norm,
        "activation": library.common_spec.Activation[name],
        "relative_attention_bias": places.bias is not None,
    }
    if places.rotary is not None:
        options["rotary_dim"], options["rotary_base"] = places.rotary.rotated, places.rotary.base
        options["rotary_interleave"] = places.rotary.interleaved
    spec = kind(len(stack.layers), stack.encoding.by_layer[0].site.n_heads, **options)
    if places.table is not None:
        # A table of zeros where there are no positions, since without one CTranslate2 adds sinusoids of its own.
        spec.position_encodings.encodings = _array(places.table)
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings
    if places.bias is not None:
        for layer in spec.layer:
            layer.self_attention.relative_attention_bias = _array(places.bias)
            layer.self_attention.relative_attention_max_distance = np.int32(2 * places.distances)
    if pre_norm:
        _norm(spec.layer_norm, stack.norm)
    return spec


def _self_attention(spec: Any, attention: Any, residual: Residual) -> None:
    _norm(spec.layer_norm, residual.norm)
    _linear(
        spec.linear[0],
        attention.query,
        attention.key,
        attention.value,
        factor=_undivided(attention),
    )
    _linear(spec.linear[1], attention.out)


def _cross_attention(spec: Any, attention: Any, residual: Residual) -> None:
    _norm(spec.layer_norm, residual.norm)
    _linear(spec.linear[0], attention.query, factor=_undivided(attention))
    _linear(spec.linear[1], attention.key, attention.value)
    _linear(spec.linear[2], attention.out)


def _feed_forward(spec: Any, feed_forward: FeedForward, residual: Residual) -> None:
    _norm(spec.layer_norm, residual.norm)
    _linear(spec.linear_0, feed_forward.up)
    _linear(spec.linear_1, feed_forward.down)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _undivided(attention: Any) -> float:
    """What queries are multiplied by, since CTranslate2 divides every score by the square root of the head width."""
    return attention.scale * attention.site.d_head**0.5


def _linear(spec: Any, *parts: nn.Linear, factor: float = 1.0) -> None:
    """One linear map, or several of one input below each other. factor: what the first one's output is multiplied
    by."""
    factors = [factor, *(1.0 for _ in parts[1:])]
    scaled = list(zip(parts, factors, strict=True))
    spec.weight = _array(torch.cat([part.weight * times for part, times in scaled]))
    spec.bias = _array(torch.cat([part.bias * times for part, times in scaled]))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
