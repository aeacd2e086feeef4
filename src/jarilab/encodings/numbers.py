"""Functions that encodings share: frequencies, angles, biases by distance, table lookups."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.positions.coordinates import Positions, distance, undefined_pairs

# Precision ------------------------------------------------------------------------------------------------------------


def best_float_dtype(device: torch.device) -> torch.dtype:
    """The most precise floating-point type of the device."""
    return torch.float32 if device.type == "mps" else torch.float64


def without_autocast(device: torch.device) -> torch.autocast:
    """A context without autocast: bfloat16 repeats distances from 257 on and cannot solve triangular systems."""
    return torch.autocast(device.type, enabled=False)


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it is: half precision cannot count, and has few numbers near 1."""
    return x if x.dtype is torch.float64 else x.float()


def softplus(x: Tensor) -> Tensor:
    """An unconstrained parameter as a positive number, in float32 or better."""
    # A clamp would have no gradient below its limit.
    return functional.softplus(at_least_float32(x))


def inverse_softplus(value: float) -> float:
    """The number whose softplus is `value`."""
    return math.log(math.expm1(value))


# Waves ----------------------------------------------------------------------------------------------------------------


def frequencies(
    count: int, base: float | Tensor, step: float, device: torch.device
) -> Float[Tensor, "*B F"]:
    """`base ** (-i * step)` for i = 0 ... count - 1, in the best precision of the device."""
    # Computed at each forward rather than stored in a buffer: no cast of the model, checkpoint or meta device can then
    # change it. In bfloat16 the angle at position 4,096 would be off by 1.8 radians.
    index_F = torch.arange(count, device=device, dtype=best_float_dtype(device))
    return base ** (-index_F * step)


def angles(index: Tensor, frequency_F: Tensor) -> Float[Tensor, "*B L F"]:
    """Position times frequency, in the precision of the frequencies."""
    return index.to(frequency_F.dtype).unsqueeze(-1) * frequency_F


def current_length(keys: Positions) -> Float[Tensor, "*B 1 1"]:
    """The length of each row up to its farthest key: that key's position + 1, and 0 without keys."""
    index = keys.index().to(best_float_dtype(keys.coordinates.device))
    if keys.unplaced is not None:
        index = index.masked_fill(keys.unplaced, -1.0)
    if keys.length == 0:
        return index.new_zeros(1, 1)
    return (index.amax(-1, keepdim=True) + 1).clamp_min(0).unsqueeze(-1)


# Biases and tables ----------------------------------------------------------------------------------------------------


def check_integer(name: str, index: Tensor) -> Tensor:
    """`index`. Raises UserError if it holds floating-point numbers, for an encoding with a table of positions."""
    if index.is_floating_point():
        raise UserError(
            f"{name} looks up positions in a table: expected integers, got {index.dtype}; use integer coordinates"
        )
    return index


def bias_by_distance(
    q_pos: Positions, k_pos: Positions, bias: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*B H Q K"]:
    """A bias that is a function of the distance j - i; 0 for tokens without a position.

    bias: from distances `(R,)` to biases `(H, R)`.
    """
    # `bias` is evaluated once for each integer in the range of distances if these are fewer than the pairs: 1,023 in
    # place of 262,144 for 512 keys. The gradient of index_select on columns is cheap, too.
    ahead = distance(q_pos, k_pos)
    has_bounds = None not in (q_pos.known_bounds, k_pos.known_bounds)
    reads_data = not has_bounds and torch.compiler.is_compiling()  # which a graph cannot
    by_range = not ahead.is_floating_point() and not reads_data
    values = _bias_of_range(ahead, q_pos, k_pos, bias) if by_range else _bias_of_pairs(ahead, bias)
    return zero_out(values, undefined_pairs(q_pos, k_pos))


def zero_out(
    values: Float[Tensor, "*X H Q K"], excluded: Bool[Tensor, "*Y Q K"] | None
) -> Float[Tensor, "*Z H Q K"]:
    """The values with 0 for the excluded pairs; None excludes none."""
    return values if excluded is None else values.masked_fill(excluded.unsqueeze(-3), 0.0)


def _bias_of_range(
    ahead: Tensor, q_pos: Positions, k_pos: Positions, bias: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*B H Q K"]:
    (q_min, q_max), (k_min, k_max) = q_pos.bounds(), k_pos.bounds()
    # The distance of tokens without a position is 0.
    first, last = min(0, k_min - q_max), max(0, k_max - q_min)
    if last - first + 1 >= ahead.numel():
        return _bias_of_pairs(ahead, bias)
    bias_HR = bias(torch.arange(first, last + 1, device=ahead.device))
    columns = bias_HR.index_select(1, (ahead - first).flatten())
    return columns.unflatten(1, ahead.shape).movedim(0, -3)


def _bias_of_pairs(ahead: Tensor, bias: Callable[[Tensor], Tensor]) -> Float[Tensor, "*B H Q K"]:
    bias_HR = bias(ahead.flatten())
    return bias_HR.unflatten(1, ahead.shape).movedim(0, -3)


def interpolate_plane(
    look_up: Callable[[Tensor, Tensor], Tensor], row: Tensor, column: Tensor
) -> Float[Tensor, "*P D"]:
    """Bilinear interpolation of `look_up`, which maps integer rows and columns `(*P,)` to `(*P, D)`.

    A neighbour with weight 0 is never beyond the last row or column.
    """
    if not row.is_floating_point() and not column.is_floating_point():
        return look_up(row, column)
    total: Tensor | None = None
    for row_index, row_weight in _neighbours(row):
        for column_index, column_weight in _neighbours(column):
            weight = (row_weight * column_weight).unsqueeze(-1)
            summand = look_up(row_index, column_index) * weight
            total = summand if total is None else total + summand
    assert total is not None
    return total


def _neighbours(coordinate: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The integers below and above, each with its weight; an integer is its own neighbour on both sides."""
    below, above = coordinate.floor(), coordinate.ceil()
    fraction = coordinate - below
    return (below.long(), 1 - fraction), (above.long(), fraction)
