"""Numbers that encodings are made of: frequencies, angles, whole places."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.positions.coordinates import Positions, distance, unrelated


def frequencies(
    count: int, base: float | Tensor, step: float, device: torch.device
) -> Float[Tensor, "*B F"]:
    """`base ** (-i * step)` for i = 0 ... count - 1, in the best precision the device has.

    Computed afresh from the constructor's numbers at each forward, so that no cast of the model, no checkpoint and no
    meta device can spoil it: in bfloat16 the angle at position 4,096 would be off by 1.8 radians.
    """
    index_F = torch.arange(count, device=device, dtype=precise_on(device))
    return base ** (-index_F * step)


def precise_on(device: torch.device) -> torch.dtype:
    """The best precision the device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def angles(index: Tensor, frequency_F: Tensor) -> Float[Tensor, "*B L F"]:
    """Position times frequency, in the precision of the frequencies."""
    return index.to(frequency_F.dtype).unsqueeze(-1) * frequency_F


def length_read(keys: Positions) -> Float[Tensor, "*B 1 1"]:
    """How long a sequence is that reaches to the farthest key, for each row: its place + 1, and 0 without any key."""
    index = keys.index().to(precise_on(keys.coordinates.device))
    if keys.unplaced is not None:
        index = index.masked_fill(keys.unplaced, -1.0)
    if keys.length == 0:
        return index.new_zeros(1, 1)
    return (index.amax(-1, keepdim=True) + 1).clamp_min(0).unsqueeze(-1)


def whole_numbers(name: str, index: Tensor) -> Tensor:
    """`index` if it holds integers. Raises UserError for an encoding that looks positions up in a table."""
    if index.is_floating_point():
        raise UserError(
            f"{name} looks whole positions up in a table, got {index.dtype}; use integer coordinates"
        )
    return index


def of_distances(
    q_pos: Positions, k_pos: Positions, bias: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*B H Q K"]:
    """What `bias`, `(R,) -> (H, R)`, gives for the distance of each key from each query; 0 between tokens of which one
    has no place.

    Where there are fewer whole distances between the nearest and the farthest than there are pairs, it is asked for
    those alone: 1,023 in place of 262,144 for 512 keys. The gradient of picking columns is cheap then, too.
    """
    ahead = distance(q_pos, k_pos)
    known = None not in (q_pos.known_bounds, k_pos.known_bounds)
    asks = not known and torch.compiler.is_compiling()  # which a graph cannot
    whole = not ahead.is_floating_point() and not asks
    found = _of_line(ahead, q_pos, k_pos, bias) if whole else _of_each(ahead, bias)
    apart = unrelated(q_pos, k_pos)
    return found if apart is None else found.masked_fill(apart.unsqueeze(-3), 0.0)


def _of_line(
    ahead: Tensor, q_pos: Positions, k_pos: Positions, bias: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*B H Q K"]:
    (q_least, q_most), (k_least, k_most) = q_pos.bounds(), k_pos.bounds()
    # 0 is the distance where one has no place.
    first, last = min(0, k_least - q_most), max(0, k_most - q_least)
    if last - first + 1 >= ahead.numel():
        return _of_each(ahead, bias)
    bias_HR = bias(torch.arange(first, last + 1, device=ahead.device))
    picked = bias_HR.index_select(1, (ahead - first).flatten())
    return picked.unflatten(1, ahead.shape).movedim(0, -3)


def _of_each(ahead: Tensor, bias: Callable[[Tensor], Tensor]) -> Float[Tensor, "*B H Q K"]:
    bias_HR = bias(ahead.flatten())
    return bias_HR.unflatten(1, ahead.shape).movedim(0, -3)


def uncast(device: torch.device) -> torch.autocast:
    """Where autocast changes nothing: in bfloat16 distances repeat from 257 on, and no triangular system is solved."""
    return torch.autocast(device.type, enabled=False)


def wide(x: Tensor) -> Tensor:
    """In float32 at least: half precision can neither count nor tell near 1 apart."""
    return x if x.dtype is torch.float64 else x.float()


def positive(free: Tensor) -> Tensor:
    """A parameter that may have any value, as a number above 0: `softplus(free)`. Its gradient never ends, as that of a
    clamp does."""
    return functional.softplus(wide(free))


def freed(value: float) -> float:
    """What `positive` makes `value` of."""
    return math.log(math.expm1(value))
