"""The rotation of queries and keys by their positions, found from vectors before and after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.core.shapes import Float, Int, Tensor

TOLERANCE = 1e-3
"""Largest difference of a rotated vector, relative to the largest number."""


@dataclass(frozen=True, eq=False)
class Rotation:
    """Pairs of components that turn by an angle for each position.

    first, second: the components of the pairs. angle: of a step from one position to the next.
    """

    first: Int[Tensor, " R"]
    second: Int[Tensor, " R"]
    angle: Float[Tensor, " R"]

    def turned(self, x: Float[Tensor, "*L E"], positions: int | Tensor) -> Float[Tensor, "*L E"]:
        """The vectors, turned by a number of positions; a tensor of them broadcasts to `(*L, R)`."""
        angle = (self.angle * positions).to(x)
        a, b = x[..., self.first], x[..., self.second]
        result = x.clone()
        result[..., self.first] = a * angle.cos() - b * angle.sin()
        result[..., self.second] = a * angle.sin() + b * angle.cos()
        return result


def rotation_between(
    before: Float[Tensor, "B H L E"], after: Float[Tensor, "B H L E"]
) -> Rotation | None:
    """The rotation of pairs, in halves or neighbours, of some first components; None if there is none that fits.

    Positions are counted from the first vector of each row.
    """
    before, after = before.double(), after.double()
    before = before * (after.norm() / before.norm().clamp_min(1e-30))
    width = before.shape[-1]
    for size in range(width - width % 2, 0, -2):
        index = torch.arange(size, device=before.device)
        for first, second in (index.chunk(2), (index[::2], index[1::2])):
            rotation = _fit(before, after, first, second)
            if rotation is not None:
                return rotation
    return None


def _fit(before: Tensor, after: Tensor, first: Tensor, second: Tensor) -> Rotation | None:
    """The rotation with these pairs; None if it does not fit."""
    old, new = (torch.complex(x[..., first], x[..., second]) for x in (before, after))
    turn_LR = (old.conj() * new).sum((0, 1))
    start_R = turn_LR[0].angle()
    angle_R = (turn_LR[1:] * turn_LR[:-1].conj()).sum(0).angle()
    rotation = Rotation(first, second, angle_R)
    steps_L1 = torch.arange(before.shape[2], dtype=torch.double, device=before.device)[:, None]
    rotated = rotation.turned(Rotation(first, second, start_R).turned(before, 1), steps_L1)
    error = (rotated - after).abs().max()
    return rotation if bool(error <= TOLERANCE * after.abs().max()) else None
