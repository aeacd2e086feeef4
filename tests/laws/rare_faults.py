"""Encodings that are right nearly everywhere: at short distances, at usual sizes, on the first call, in float32."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn

from helpers.places import of_heads, turn
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.laws import Oracle
from jarilab.positions.coordinates import Positions, distance


def slope(head: int, heads: int) -> float:
    return 2.0 ** (-8 * (head + 1) / heads)


def score(encoding: Any, q_E: Any, k_E: Any, i: Any, j: Any, head: int, scale: float) -> float:
    return scale * float(q_E @ k_E) - slope(head, encoding.site.n_heads) * abs(i - j)


class Sloped(Encoding):
    """ALiBi, without a fault. The others change `far`, the distances `(*B, 1, Q, K)`, where nobody looks."""

    oracle: ClassVar[Any] = Oracle(score=score)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        slopes = torch.tensor([slope(head, self.site.n_heads) for head in range(self.site.n_heads)])
        return -slopes.view(-1, 1, 1) * self.far(distance(q_pos, k_pos).unsqueeze(-3).float())

    def far(self, ahead: Tensor) -> Tensor:
        return ahead.abs()


class BlocksOf512(Sloped):
    """Counts a boundary between blocks of 512 keys as one step."""

    def far(self, ahead: Tensor) -> Tensor:
        return (ahead - torch.arange(ahead.shape[-1]) // 512).abs()


class ShiftedBlocks(Sloped):
    """Shifts the keys of all queries after the 64th by one, if there are as many keys."""

    def far(self, ahead: Tensor) -> Tensor:
        far = ahead.abs()
        if min(far.shape[-2:]) <= 64:
            return far
        return torch.cat((far[..., :64, :], far[..., 64:, :].roll(1, -1)), -2)


class OtherHeads(Sloped):
    """Takes the slopes of the heads in the wrong order where there are more than two, and many keys."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        bias = super().bias(q_pos, k_pos)
        is_wrong = bias.shape[-1] > 64 and self.site.n_heads > 2
        return bias.flip(-3) if is_wrong else bias


class EndsAt400(Sloped):
    """Clips distances ahead at 400."""

    def far(self, ahead: Tensor) -> Tensor:
        return ahead.clamp(max=400).abs()


class LongCache(Sloped):
    """A path for one query over many keys counts from the next token."""

    oracle: ClassVar[Any] = None

    def far(self, ahead: Tensor) -> Tensor:
        is_step = ahead.shape[-2] == 1 and ahead.shape[-1] > 1024
        return (ahead - 1).abs() * (ahead != 0) if is_step else ahead.abs()


class ManyKeys(Sloped):
    """With more than 600 keys counts from the next token."""

    oracle: ClassVar[Any] = None

    def far(self, ahead: Tensor) -> Tensor:
        return (ahead - int(ahead.shape[-1] > 600)).abs()


class ManyHeads(Sloped):
    """With more than 16 heads all have the slope of the first."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        bias = super().bias(q_pos, k_pos)
        return bias[..., :1, :, :].expand_as(bias) if self.site.n_heads > 16 else bias


class FortyHeads(Sloped):
    """Heads from the 33rd on have the slopes of the first ones."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        bias = super().bias(q_pos, k_pos)
        return torch.cat((bias[..., :32, :, :], bias[..., : max(0, self.site.n_heads - 32), :, :]), -3)


class ManyQueries(Sloped):
    """Queries after the 300th count from the next token."""

    def far(self, ahead: Tensor) -> Tensor:
        return (ahead + (torch.arange(ahead.shape[-2]) > 300).unsqueeze(-1)).abs()


class ManyRows(Sloped):
    """Rows after the 32nd get the distances of the first."""

    def far(self, ahead: Tensor) -> Tensor:
        if ahead.ndim == 4 and len(ahead) > 32:
            return torch.cat((ahead[:32], ahead[:1].expand(len(ahead) - 32, -1, -1, -1))).abs()
        return ahead.abs()


class VeryWideHeads(Sloped):
    """With heads wider than 128 the distance counts twice."""

    def far(self, ahead: Tensor) -> Tensor:
        return ahead.abs() * (2 if self.site.d_head > 128 else 1)


class WideHeads(Sloped):
    """With heads of 64 and more the distance counts twice."""

    def far(self, ahead: Tensor) -> Tensor:
        return ahead.abs() * (2 if self.site.d_head >= 64 else 1)


class RowsForHeads(Sloped):
    """With as many rows as heads, head h reads the distances of row h."""

    def far(self, ahead: Tensor) -> Tensor:
        if ahead.ndim == 4 and ahead.shape[0] == self.site.n_heads:
            return ahead.abs().transpose(0, 1).expand(self.site.n_heads, -1, -1, -1)
        return ahead.abs()


class EightRows(Sloped):
    """Rows after the eighth get the distances of the first."""

    def far(self, ahead: Tensor) -> Tensor:
        if ahead.ndim == 4 and len(ahead) > 8:
            return torch.cat((ahead[:8], ahead[:1].expand(len(ahead) - 8, -1, -1, -1))).abs()
        return ahead.abs()


class NeverBackwards(Sloped):
    """At causal sites a key is never taken to be ahead, also where positions restart."""

    def far(self, ahead: Tensor) -> Tensor:
        return (-ahead).clamp(min=0) if self.site.causal else ahead.abs()


class Compiled(Sloped):
    """A path for the compiler forgets the sides."""

    oracle: ClassVar[Any] = None

    def far(self, ahead: Tensor) -> Tensor:
        return ahead.clamp(min=0) if torch.compiler.is_compiling() else ahead.abs()


class StaleSlopes(Encoding):
    """Keeps exp of its learned slopes from call to call."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.log = nn.Parameter(torch.empty(site.n_heads))
        self.slopes: Tensor | None = None
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        slopes = self.log.exp()
        if not torch.is_grad_enabled():
            self.slopes = slopes = slopes if self.slopes is None else self.slopes
        return -slopes.view(-1, 1, 1) * distance(q_pos, k_pos).abs().unsqueeze(-3).to(slopes.dtype)


class RoundsAfterAutocast(Encoding):
    """Keeps the precision of its first call under autocast."""

    rounded = False

    def rotation(self, pos: Positions) -> Tensor:
        angle = pos.index().double()
        return angle if pos.unplaced is None else angle.masked_fill(pos.unplaced, 0.0)

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        self.rounded = self.rounded or torch.is_autocast_enabled("cpu")
        turned = turn(x, rotation)
        return turned.bfloat16().to(x.dtype) if self.rounded else turned


def turned_score(encoding: Any, q_E: Any, k_E: Any, i: Any, j: Any, head: int, scale: float) -> float:
    half, angle = len(q_E) // 2, (j - i) / encoding.base
    along = q_E[:half] @ k_E[:half] + q_E[half:] @ k_E[half:]
    across = q_E[half:] @ k_E[:half] - q_E[:half] @ k_E[half:]
    return scale * (math.cos(angle) * float(along) + math.sin(angle) * float(across))


class Turned(Encoding):
    """One angle for all pairs, without a fault."""

    oracle: ClassVar[Any] = Oracle(score=turned_score)

    def __init__(self, site: Site, *, base: float = 100.0):
        super().__init__(site)
        self.base = base

    def rotation(self, pos: Positions) -> Tensor:
        angle = pos.index().double() / self.divisor
        return angle if pos.unplaced is None else angle.masked_fill(pos.unplaced, 0.0)

    @property
    def divisor(self) -> float:
        return self.base

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class FewerKeyHeads(Turned):
    """Keys whose heads are shared turn further."""

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation if x.shape[1] == self.site.n_heads else 2 * rotation)


class SquaresItsBase(Turned):
    """Squares the base whenever another than the default is given."""

    @property
    def divisor(self) -> float:
        return self.base if self.base == 100.0 else self.base**2


class SmallBasesOnly(Turned):
    """Ignores a base above the default."""

    @property
    def divisor(self) -> float:
        return min(self.base, 100.0)


class WrongOption(Sloped):
    """An option that is off by default counts one too many."""

    oracle: ClassVar[Any] = Oracle(
        score=lambda encoding, q_E, k_E, i, j, head, scale: (
            scale * float(q_E @ k_E)
            - slope(head, encoding.site.n_heads) * min(abs(i - j), encoding.longest or math.inf)
        )
    )

    def __init__(self, site: Site, *, longest: int | None = None):
        super().__init__(site)
        self.longest = longest

    def far(self, ahead: Tensor) -> Tensor:
        return ahead.abs() if self.longest is None else ahead.abs().clamp(max=self.longest + 1)


class KeepsCosines(Turned):
    """Cosines that were computed in inference mode cannot be used in training."""

    def __init__(self, site: Site, *, base: float = 100.0):
        super().__init__(site, base=base)
        self.cosines: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        key = (tuple(rotation.flatten().tolist()), rotation.shape, x.dtype)
        if key not in self.cosines:
            angle = of_heads(rotation)
            self.cosines[key] = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        cosine, sine = self.cosines[key]
        first, second = x.chunk(2, -1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


class HalfAngles(Turned):
    """In float16 angles are computed in float16, too."""

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation.half().double() if x.dtype is torch.float16 else rotation)


class SmallBases(Turned):
    """With a small base angles are computed in bfloat16 unless the model is in float64."""

    oracle: ClassVar[Any] = None

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        is_coarse = self.base < 10 and x.dtype is not torch.float64
        return turn(x, rotation.bfloat16().double() if is_coarse else rotation)


class RepeatsHeads(Sloped):
    """If the heads are no power of two, the last ones repeat the first."""

    oracle: ClassVar[Any] = None

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        bias, heads = super().bias(q_pos, k_pos), self.site.n_heads
        power = 1 << (heads.bit_length() - 1)
        return bias[..., torch.arange(heads) % power, :, :]


class TwelveHeads(Sloped):
    """With twelve heads distances count from the first key."""

    oracle: ClassVar[Any] = None

    def far(self, ahead: Tensor) -> Tensor:
        return (ahead - ahead[..., :1]).abs() if self.site.n_heads == 12 else ahead.abs()


class DefaultAngles(Turned):
    """Angles have torch's default dtype."""

    def rotation(self, pos: Positions) -> Tensor:
        return super().rotation(pos).to(torch.get_default_dtype()).double()
