"""Exports an encoder-decoder to CTranslate2, which translates fast on a CPU without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.data.text import END, FIRST, SPECIAL
from jarilab.export.description import source_ends, unsupported_options
from jarilab.export.output import check_close, check_empty, check_places, longest_of, writing
from jarilab.export.parts import LONG
from jarilab.export.positions import Places, places_of, refuse
from jarilab.export.readme import write_companions
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.sublayers import ACTIVATIONS, FeedForward, Residual
from jarilab.runs.loaded import load

LEAST = 1024
"""Positions that are written for an encoding without limit: the longest input of CTranslate2 by default."""

COMPARED = (1, 4, 9)
"""Tokens of the comparison, within the limits of the model. The longest of the run follow."""

UNKNOWN = "<unk>"

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
"""The names of activations in CTranslate2."""


def export(run: str | Path, out: str | Path, *, trust_code: bool = False) -> dict[str, Any]:
    """Write the newest checkpoint of a run of an encoder-decoder into the folder `out` for CTranslate2.

    Returns its tokenizer (`reads`), and the largest difference of log-probabilities from the run.

    CTranslate2 adds the start of answers and, if the task needs it, the end of inputs. Tokens are named by
    `task.show_source` and `show_target`; equal names get the number of the later token. With `min_decoding_length=0`,
    the greedy answers and scores are those of jari. By default CTranslate2 forbids the empty answer. An input without
    tokens always has an empty answer there. CTranslate2's beam search stops when as many hypotheses have ended as the
    beam is wide. That of jari stops when no open hypothesis can score higher, so its scores are never lower.

    Raises UserError for a folder without a run, a model that CTranslate2 cannot compute exactly, an `out` that is not
    empty, and a missing package.
    """
    loaded = load(run, trust_code=trust_code)
    model = _checked_model(loaded.model)
    check_places(loaded)
    task: Any = loaded.task  # an encoder-decoder reads tokens
    source, target = (embedding.weight.shape[0] for embedding in model.embeddings)
    out = check_empty(out)
    with writing(out) as partial:
        report = write(
            model,
            partial,
            source=_unique(task.show_source(range(source))),
            target=_unique(task.show_target(range(target))),
            source_ends=source_ends(task, source),
            longest=longest_of(loaded),
        )
        return {**report, "reads": write_companions(loaded, partial, "ctranslate2")}


@torch.no_grad()
def write(
    model: EncoderDecoder,
    out: Path,
    *,
    source: Sequence[str],
    target: Sequence[str],
    source_ends: bool = True,
    longest: Mapping[str, int] = LONG,
) -> dict[str, float]:
    """Write a model into a folder, and compare it up to `longest` tokens of each side.

    source, target: the names of all tokens, without repetition. source_ends: each source ends with END, which
    CTranslate2 then adds. Raises UserError as `export` does.
    """
    _checked_model(model)
    library: Any = import_optional("ctranslate2", "ctranslate2")
    positions = max(LEAST, *longest.values())
    cross_encoding = model.decoder.cross_encoding
    if cross_encoding.by_layer[0].hooks:
        refuse(cross_encoding, "CTranslate2 has no positions between decoder and source")
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
    out.mkdir(exist_ok=True)
    specification.save(str(out))
    translator = library.Translator(str(out), inter_threads=1, intra_threads=1)
    return check_close(_compared(model, translator, (source, target), source_ends, longest))


def _compared(
    model: EncoderDecoder,
    translator: Any,
    names: tuple[Sequence[str], Sequence[str]],
    source_ends: bool,
    longest: Mapping[str, int],
) -> Iterator[tuple[Tensor, Tensor]]:
    """The log-probabilities of random answers to random sources, there and of the model."""
    most = model.max_positions()
    generator = torch.Generator().manual_seed(1)
    for length in (*COMPARED, max(longest.values())):
        drawn = []
        for side, of_side in zip(("source", "target"), names, strict=True):
            # One position is for the end of a source, or the beginning of an answer.
            count = min(length, longest[side] - 1, (most[side] or length + 1) - 1)
            drawn.append(
                torch.randint(len(SPECIAL), len(of_side), (max(1, count),), generator=generator)
            )
        source, target = drawn
        texts = map(_named, names, drawn)
        (theirs,) = translator.score_batch(*texts, max_input_length=0)
        end = torch.tensor([END])
        read = torch.cat((source, end)) if source_ends else source
        written = torch.cat((target, end))
        scores_1LV = model(read[None], torch.cat((torch.tensor([FIRST]), target))[None])
        logs_L = scores_1LV[0].float().log_softmax(-1).gather(1, written[:, None])[:, 0]
        yield torch.tensor(theirs.log_probs), logs_L


def _named(names: Sequence[str], ids_L: Tensor) -> list[list[str]]:
    """One text as the names of its tokens, in a batch."""
    return [[names[int(number)] for number in ids_L.tolist()]]


def _unique(names: Iterable[str]) -> list[str]:
    """The names; a repeated name gets its number."""
    unique: dict[str, None] = {}
    for number, name in enumerate(names):
        unique[f"{name}<{number}>" if name in unique else name] = None
    return list(unique)


def _checked_model(model: nn.Module) -> EncoderDecoder:
    if not isinstance(model, EncoderDecoder):
        raise UserError(
            f"CTranslate2 is for Transformers that read a source and write a target: expected an encoder_decoder, got "
            f"{type(model).__name__}; answer with `jarilab predict`"
        )
    for setting, instead in unsupported_options(model):
        raise UserError(
            f"CTranslate2 writes the layers of the original Transformer alone, got {setting}; answer with `jarilab "
            f"predict`, or train with {instead}"
        )
    return model


def _transformer(model: EncoderDecoder, source: Places, target: Places) -> Any:
    library: Any = import_optional("ctranslate2.specs", "ctranslate2")
    kinds = library.transformer_spec
    encoder = _stack(library, kinds.TransformerEncoderSpec, model.encoder, source)
    decoder = _stack(library, kinds.TransformerDecoderSpec, model.decoder, target)
    source_embedding, target_embedding = model.embeddings
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
    """The specification of an encoder or decoder, with its positions and final norm."""
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
        # Without a table CTranslate2 adds its own sinusoids, so an encoding without positions has zeros.
        spec.position_encodings.encodings = _array(places.table)
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings
    if places.bias is not None:
        for layer in spec.layer:
            layer.self_attention.relative_attention_bias = _array(places.bias)
            # T5's formula needs more than `distances` here; all buckets beyond that hold the same row.
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
        factor=_query_factor(attention),
    )
    _linear(spec.linear[1], attention.out)


def _cross_attention(spec: Any, attention: Any, residual: Residual) -> None:
    _norm(spec.layer_norm, residual.norm)
    _linear(spec.linear[0], attention.query, factor=_query_factor(attention))
    _linear(spec.linear[1], attention.key, attention.value)
    _linear(spec.linear[2], attention.out)


def _feed_forward(spec: Any, feed_forward: FeedForward, residual: Residual) -> None:
    _norm(spec.layer_norm, residual.norm)
    _linear(spec.linear_0, feed_forward.up)
    _linear(spec.linear_1, feed_forward.down)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _query_factor(attention: Any) -> float:
    """The factor of queries, since CTranslate2 divides scores by the square root of d_head."""
    return attention.scale * attention.site.d_head**0.5


def _linear(spec: Any, *parts: nn.Linear, factor: float = 1.0) -> None:
    """Write one linear map, or several of the same input stacked. factor: for the output of the first."""
    factors = [factor, *(1.0 for _ in parts[1:])]
    scaled = list(zip(parts, factors, strict=True))
    spec.weight = _array(torch.cat([part.weight * times for part, times in scaled]))
    spec.bias = _array(torch.cat([part.bias * times for part, times in scaled]))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
