"""Formulas of encodings that add vectors to tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy

from jarilab.encodings.formulas.oracle import Cell, Number, Oracle, Vector, array


def wave(dimension: int, phase: float) -> float:
    """The sine in even dimensions, the cosine in odd ones."""
    return math.cos(phase) if dimension % 2 else math.sin(phase)


def sinusoidal_embed(encoding: Any, position: Number) -> Vector:
    """Vaswani et al. 2017, section 3.5: PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d)).

    `concatenated` has the same numbers, sines first. `tensor2tensor` is get_timing_signal_1d of the authors' code:
    sines first, wavelengths 10000^(i / (d/2 - 1)), and a zero at the end of an odd width.
    """
    width, base = encoding.site.d_model, encoding.base
    if encoding.layout == "tensor2tensor":
        pairs = width // 2
        phases = [position / base ** (i / max(pairs - 1, 1)) for i in range(pairs)]
        sines = [math.sin(phase) for phase in phases]
        cosines = [math.cos(phase) for phase in phases]
        return numpy.array(sines + cosines + [0.0] * (width % 2))
    interleaved = []
    for dimension in range(width):
        phase = position / base ** (2 * (dimension // 2) / width)
        interleaved.append(wave(dimension, phase))
    if encoding.layout == "interleaved":
        return numpy.array(interleaved)
    return numpy.array(interleaved[0::2] + interleaved[1::2])


def scaled_sinusoidal_embed(encoding: Any, position: Number) -> Vector:
    """x-transformers' ScaledSinusoidalEmbedding: the waves times one learned number."""
    return float(array(encoding.scale)[0]) * sinusoidal_embed(encoding, position)


def learned_embed(encoding: Any, position: Number) -> Vector:
    """Gehring et al. 2017, section 3.1: the embedding p_j of absolute position j is added to the token's."""
    return array(encoding.table)[int(position)]


def axis_waves(encoding: Any, coordinate: int | float) -> list[float]:
    """Vaswani et al. 2017, section 3.5, for one axis of an image, in half of the width."""
    half = encoding.site.d_model // 2
    waves = []
    for dimension in range(half):
        phase = coordinate / encoding.base ** (2 * (dimension // 2) / half)
        waves.append(wave(dimension, phase))
    return waves


def sinusoidal2d_embed(encoding: Any, at: Cell) -> Vector:
    """Carion et al. 2020, appendix A.4: "for both spatial coordinates of each embedding we independently use d/2 sine
    and cosine functions".

    Rows come first. Their code scales coordinates to 2 pi in a frame, and counts from 1.
    """
    if encoding.where == "inject":
        return numpy.zeros(encoding.site.d_model)
    row, column = at.row, at.column
    if encoding.normalised:
        row = (at.row + 1) / (at.height + 1e-6) * 2 * math.pi
        column = (at.column + 1) / (at.width + 1e-6) * 2 * math.pi
    return numpy.array(axis_waves(encoding, row) + axis_waves(encoding, column))


def sinusoidal_mae_embed(encoding: Any, at: Cell) -> Vector:
    """`get_2d_sincos_pos_embed` of He et al. 2022: sin(p omega), then cos(p omega), for columns and then for rows.

    omega = 10000^(-i / (D/4)); SimpleViT has the exponent i / (D/4 - 1).
    """
    quarter, waves = encoding.site.d_model // 4, []
    last = quarter if encoding.exponent == "width" else max(quarter - 1, 1)
    for coordinate in (at.column, at.row):
        phases = [coordinate * encoding.base ** (-i / last) for i in range(quarter)]
        waves += [math.sin(phase) for phase in phases] + [math.cos(phase) for phase in phases]
    return numpy.array(waves)


def learned2d_embed(encoding: Any, at: Cell) -> Vector:
    """Dosovitskiy et al. 2021, appendix D.4: an embedding of each cell, or of each axis (Ramesh et al. 2021)."""
    if encoding.where == "inject":
        return numpy.zeros(encoding.site.d_model)
    if encoding.layout == "table":
        table = array(encoding.table).reshape(encoding.rows, encoding.columns, -1)
        return table[at.row, at.column]
    return array(encoding.row_table)[at.row] + array(encoding.column_table)[at.column]


ORACLES = {
    "none": Oracle(),
    "sinusoidal": Oracle(embed=sinusoidal_embed),
    "scaled_sinusoidal": Oracle(embed=scaled_sinusoidal_embed),
    "learned": Oracle(embed=learned_embed),
    "sinusoidal2d": Oracle(embed=sinusoidal2d_embed),
    "sinusoidal_mae": Oracle(embed=sinusoidal_mae_embed),
    "learned2d": Oracle(embed=learned2d_embed),
}
