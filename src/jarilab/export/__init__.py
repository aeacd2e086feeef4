"""A trained run in the format of another program: CTranslate2, which translates fast on a CPU without PyTorch.

What CTranslate2 is told of positions is read from what an encoding does, not from its name, and is exact up to the
number of positions that are written: what is added to the input becomes its table of positions; a rotation its rotary
embedding, if it turns the same pairs by the same angles; a bias of distance alone its T5 bias, with a bucket for each
distance. What fits none of these is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from jarilab.api import load
from jarilab.encodings.base import Encoding
from jarilab.encodings.compose import LayerEncodings
from jarilab.errors import UserError, needs
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.layers import ACTIVATIONS, FeedForward, Residual
from jarilab.positions import Positions
from jarilab.shapes import Float, Tensor
from jarilab.tasks.base import TokenTask
from jarilab.text import END, FIRST

LEAST = 1024
"""Positions that are written at least, where an encoding has no end: what CTranslate2 reads of an input by default."""

UNKNOWN = "<unk>"


def ctranslate2(run: str | Path, out: str | Path, *, trust_code: bool = False) -> Path:
    """Write the newest checkpoint of a run of an encoder-decoder into `out`, a folder that CTranslate2 reads.

    CTranslate2 then starts answers, and ends inputs where the task does, by itself. Its tokens are called as
    `task.show_source` and `show_target` call them; two of one name are told apart by the number of the later. With
    `min_decoding_length=0` (by default it forbids the empty answer) it writes what jari writes, at the same scores;
    only to an input without any token it always answers nothing.

    Raises UserError for a folder that is no run, a model that CTranslate2 cannot compute exactly, an `out` that is not
    empty, or where the package is missing.
    """
    loaded = load(run, trust_code=trust_code)
    model, task = _checked_model(loaded.model), loaded.task
    assert isinstance(task, TokenTask), "an encoder-decoder reads tokens"
    source, target = (embedding.weight.shape[0] for embedding in _embeddings(model))
    return write(
        model,
        out,
        source=_told_apart(task.show_source(range(source))),
        target=_told_apart(task.show_target(range(target))),
        source_ends=int(task.sources([[source - 1]]).ids[0, -1]) == END,
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
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is no empty folder; choose another --out")
    if model.decoder.cross_encoding.of_layer[0].hooks:
        _refuse(
            model.decoder.cross_encoding, "CTranslate2 has no positions between decoder and source"
        )
    with torch.no_grad():
        places = (
            _places(model.encoder.encoding, positions),
            _places(model.decoder.encoding, positions),
        )
        specification = _transformer(model, *places)
    specification.register_source_vocabulary(list(source))
    specification.register_target_vocabulary(list(target))
    config = specification.config
    config.bos_token = config.decoder_start_token = target[FIRST]
    config.eos_token, config.add_source_eos = target[END], source_ends
    config.unk_token = UNKNOWN if UNKNOWN in source else source[0]
    config.layer_norm_epsilon = model.encoder.layers[0].attention_residual.norm.eps
    specification.validate()
    specification.optimize()
    _save(specification, out)
    return out


def _save(specification: Any, out: Path) -> None:
    """Under another name first, so that no half of a model lies in `out`."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        specification.save(str(partial))
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error}") from None


def _told_apart(names: Iterable[str]) -> list[str]:
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
    return model


def _refuse(encoding: LayerEncodings, why: str) -> NoReturn:
    raise UserError(
        f"{encoding.spec} cannot be exported: {why}; answer with `jarilab predict`, or train without it"
    )


# Positions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rotary:
    """CTranslate2's rotary embedding: pair i of `rotated` components turned by p * base^(-2 i / rotated) at position p.

    interleaved: pairs are 2i and 2i + 1, otherwise i and i + rotated / 2.
    """

    rotated: int
    base: float
    interleaved: bool

    def turn(self, x: Float[Tensor, "*B L E"]) -> Float[Tensor, "*B L E"]:
        """The vectors turned by their places, in float64."""
        x, pairs = x.double(), self.rotated // 2
        frequency_F = self.base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        angle_LF = torch.arange(x.shape[-2]).unsqueeze(-1) * frequency_F
        turned, rest = x[..., : self.rotated], x[..., self.rotated :]
        pair_2 = (pairs, 2) if self.interleaved else (2, pairs)
        real, imaginary = turned.unflatten(-1, pair_2).unbind(-1 if self.interleaved else -2)
        cos, sin = angle_LF.cos(), angle_LF.sin()
        both = (real * cos - imaginary * sin, imaginary * cos + real * sin)
        return torch.cat((torch.stack(both, -1 if self.interleaved else -2).flatten(-2), rest), -1)


@dataclass(frozen=True, eq=False)
class Places:
    """What CTranslate2 is told of the positions of one side; at most one of them.

    table: `(L, D)`, added to the input. bias: `(N, H)`, the rows of a T5 bias of N buckets of distance, of which a
    quarter (a half where the site is causal), L, are distances one by one.
    """

    table: Float[Tensor, "L D"] | None = None
    rotary: Rotary | None = None
    bias: Float[Tensor, "N H"] | None = None
    distances: int = 0


def _places(encodings: LayerEncodings, positions: int) -> Places:
    """Raises UserError for an encoding that does what CTranslate2 cannot."""
    encoding = encodings.of_layer[0]
    count = positions if encoding.max_positions is None else encoding.max_positions
    if encoding.hooks <= {"embed"}:
        return Places(table=_table(encodings, encoding, count))
    if encoding.hooks not in ({"rotate"}, {"bias"}):
        _refuse(
            encodings,
            f"it uses {' and '.join(sorted(encoding.hooks))}, and CTranslate2 has either a table added to the input, "
            "or a rotation, or a bias of distance",
        )
    if not encodings.shared:
        _refuse(
            encodings,
            "CTranslate2 has one encoding for all layers, and here each layer has its own",
        )
    if encoding.hooks == {"rotate"}:
        return Places(rotary=_rotary(encodings, encoding, count))
    return Places(bias=_bias(encodings, encoding, count), distances=count)


def _table(encodings: LayerEncodings, encoding: Encoding, count: int) -> Float[Tensor, "L D"]:
    places = Positions.sequence(count)
    x_1LD = torch.randn(1, count, encoding.site.width, generator=torch.Generator().manual_seed(1))
    table_1LD = encoding.embed(torch.zeros_like(x_1LD), places)
    if not torch.allclose(encoding.embed(x_1LD, places), x_1LD + table_1LD, atol=1e-5):
        _refuse(encodings, "it does more to the input than add a vector for each position")
    return table_1LD.squeeze(0)


def _rotary(encodings: LayerEncodings, encoding: Encoding, count: int) -> Rotary:
    """The rotary embedding that does the same: its options are read from how unit vectors turn at position 1."""
    heads, width = encoding.site.heads, encoding.site.head_width
    one = Positions(torch.ones(width, 1, dtype=torch.long), torch.arange(width))
    units_1HEE = torch.eye(width).expand(1, heads, width, width)
    turned_EE = encoding.rotate(units_1HEE, encoding.rotation(one))[0, 0].double()
    away_EE = turned_EE - turned_EE.diag().diag()
    rotated, partner = int(away_EE.any(1).sum()), int(away_EE[0].abs().argmax())
    interleaved = partner == 1
    second = 2 if interleaved else 1
    base = 1.0
    if rotated > 2:
        partner = int(away_EE[second].abs().argmax())
        angle = float(torch.atan2(turned_EE[second, partner], turned_EE[second, second]))
        # Six digits are what float32 lets through of it.
        base = float(f"{abs(angle) ** (-rotated / 2):.6g}")
    found = Rotary(rotated, base, interleaved)
    x_1HLE = torch.randn(1, heads, count, width, generator=torch.Generator().manual_seed(1))
    ours = encoding.rotate(x_1HLE, encoding.rotation(Positions.sequence(count)))
    if (
        rotated % 2
        or rotated == 0
        or not torch.allclose(ours.double(), found.turn(x_1HLE), atol=1e-3)
    ):
        _refuse(
            encodings,
            "it rotates otherwise than CTranslate2, which turns pair i by position * base^(-2i/R)",
        )
    return found


def _bias(encodings: LayerEncodings, encoding: Encoding, count: int) -> Float[Tensor, "N H"]:
    """The bias of each distance as the buckets of T5: one by one up to `count`, all beyond like the last."""
    places = Positions.sequence(count)
    bias_HQK = encoding.bias(places, places)
    assert bias_HQK is not None, "its hook is bias"
    bias_HQK = bias_HQK.reshape(-1, count, count)
    back_HL, ahead_HL = bias_HQK[:, -1].flip(-1), bias_HQK[:, 0]
    ahead_QK = torch.arange(count) - torch.arange(count).unsqueeze(-1)
    by_distance = torch.where(
        ahead_QK > 0, ahead_HL[:, ahead_QK.clamp_min(0)], back_HL[:, (-ahead_QK).clamp_min(0)]
    )
    different = (bias_HQK - by_distance).abs() > 1e-5
    if bool((different & (ahead_QK <= 0) if encoding.site.causal else different).any()):
        _refuse(
            encodings,
            "its bias depends on more than the distance, and that of CTranslate2 does not",
        )
    sides = (back_HL,) if encoding.site.causal else (back_HL, ahead_HL)
    return (
        torch.cat([row for side in sides for row in (side, side[:, -1:].expand(-1, count))], 1)
        .t()
        .contiguous()
    )


# The model ------------------------------------------------------------------------------------------------------------


def _embeddings(model: EncoderDecoder) -> tuple[Any, Any]:
    return model.source_embedding or model.target_embedding, model.target_embedding


def _transformer(model: EncoderDecoder, source: Places, target: Places) -> Any:
    library: Any = needs("ctranslate2.specs", "ctranslate2")  # the part that writes models
    sides = (model.encoder, source), (model.decoder, target)
    kinds = (
        library.transformer_spec.TransformerEncoderSpec,
        library.transformer_spec.TransformerDecoderSpec,
    )
    encoder, decoder = (
        _stack(library, kind, *side) for kind, side in zip(kinds, sides, strict=True)
    )
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
    return library.transformer_spec.TransformerSpec(encoder, decoder)


def _stack(library: Any, kind: Any, stack: Any, places: Places) -> Any:
    """The specification of an encoder or a decoder, with its positions and last norm."""
    layer = stack.layers[0]
    pre_norm = layer.feed_forward_residual.place == "pre"
    name = next(
        name for name, function in ACTIVATIONS.items() if function is layer.feed_forward.activation
    )
    options: dict[str, Any] = {
        "pre_norm": pre_norm,
        "activation": library.common_spec.Activation[name.upper()],
        "relative_attention_bias": places.bias is not None,
    }
    if places.rotary is not None:
        options["rotary_dim"], options["rotary_base"] = places.rotary.rotated, places.rotary.base
        options["rotary_interleave"] = places.rotary.interleaved
    spec = kind(len(stack.layers), stack.encoding.of_layer[0].site.heads, **options)
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
    _linear(spec.linear[0], attention.query, attention.key, attention.value)
    _linear(spec.linear[1], attention.out)


def _cross_attention(spec: Any, attention: Any, residual: Residual) -> None:
    _norm(spec.layer_norm, residual.norm)
    _linear(spec.linear[0], attention.query)
    _linear(spec.linear[1], attention.key, attention.value)
    _linear(spec.linear[2], attention.out)


def _feed_forward(spec: Any, feed_forward: FeedForward, residual: Residual) -> None:
    _norm(spec.layer_norm, residual.norm)
    _linear(spec.linear_0, feed_forward.up)
    _linear(spec.linear_1, feed_forward.down)


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _linear(spec: Any, *parts: nn.Linear) -> None:
    """One linear map, or several of one input below each other."""
    spec.weight = _array(torch.cat([part.weight for part in parts]))
    spec.bias = _array(torch.cat([part.bias for part in parts]))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
