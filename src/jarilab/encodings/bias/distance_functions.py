"""Biases that are closed-form functions of the distance: ALiBi, KERPLE and Sandwich."""

from __future__ import annotations

import math
from typing import Annotated, Literal, final

import torch
from annotated_types import Ge, Gt
from torch import Generator, nn

from jarilab.core.devices import constant
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import (
    angles,
    at_least_float32,
    bias_by_distance,
    frequencies,
    softplus,
)
from jarilab.positions.coordinates import Positions, distance, offsets

Slopes = Literal["fixed", "learned", "sides"]
Kernel = Literal["log", "power"]

MIN_KERPLE = 0.01  # the authors' smallest parameter


@final
@registry.register("alibi")
class Alibi(Encoding):
    """Adds a bias to the score that falls linearly with the distance: `-m_h |i - j|`.

    The slope m_h differs from head to head and is not scaled. With a causal mask this is the paper's encoding. Without
    one it is the symmetric variant that its authors suggest for encoders. Learned slopes start at the fixed ones, stay
    positive as powers of e, and are shared by all layers. The authors found that models with learned slopes do not
    extrapolate to longer texts.

    Source: Attention with linear biases: *Train Short, Test Long* (Press, Smith, Lewis 2022), section 3.

    slopes: `fixed` (the paper's), `learned`, or `sides`: learned ones for keys before a query, and others for keys
        after it if there are any (LittleBird, Lee et al. 2022).
    """

    def __init__(self, site: Site, *, slopes: Slopes = "fixed"):
        super().__init__(site)
        self.slopes: Slopes = slopes
        if slopes != "fixed":
            sides = 1 if slopes == "learned" or site.causal else 2
            self.logarithms = nn.Parameter(torch.empty(sides, site.n_heads))
            self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        parameter.copy_(torch.tensor(alibi_slopes(self.site.n_heads)).log().expand_as(parameter))

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        if self.slopes != "fixed":
            return bias_by_distance(q_pos, k_pos, self._bias_of)
        distance_1QK = distance(q_pos, k_pos).abs().unsqueeze(-3).float()
        return -_slopes_column(self.site.n_heads, distance_1QK.device) * distance_1QK

    def bias_slopes(self, device: torch.device) -> Float[Tensor, " H"] | None:
        return (
            _slopes_column(self.site.n_heads, device).flatten() if self.slopes == "fixed" else None
        )

    def _bias_of(self, ahead_R: Tensor) -> Float[Tensor, "H R"]:
        slope_SH1 = at_least_float32(self.logarithms).exp().unsqueeze(-1)
        distance_R = ahead_R.abs().to(slope_SH1.dtype)
        # With slopes for one side only, [0] and [-1] are the same.
        before_HR = -slope_SH1[0] * distance_R
        return torch.where(ahead_R > 0, -slope_SH1[-1] * distance_R, before_HR)


@final
@registry.register("alibi2d")
class Alibi2d(Encoding):
    """Adds a bias to the score that falls linearly with the distance in the plane: `-m_h d(i, j)`.

    The slopes m_h are ALiBi's fixed ones.

    Source: Linear biases of distance on an image: ALiBi's slopes (Press, Smith, Lewis 2022) times a distance in the
    plane.

    distance: euclidean is the straight line, manhattan the steps along rows and columns, chebyshev the larger of both.
    """

    axes = (2,)

    def __init__(
        self, site: Site, *, distance: Literal["euclidean", "manhattan", "chebyshev"] = "euclidean"
    ):
        super().__init__(site)
        self.distance = distance

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        down, right = offsets(q_pos, k_pos)
        down, right = down.abs().float(), right.abs().float()
        if self.distance == "euclidean":
            # The gradient of a square root at 0 is NaN, and each object query is at distance 0 of itself.
            is_same = (down == 0) & (right == 0)
            length = torch.hypot(down, right.masked_fill(is_same, 1.0)).masked_fill(is_same, 0.0)
        else:
            length = down + right if self.distance == "manhattan" else torch.maximum(down, right)
        return -_slopes_column(self.site.n_heads, length.device) * length.unsqueeze(-3)


def alibi_slopes(n_heads: int) -> list[float]:
    """`2^(-8/n), 2^(-16/n), ...` for n heads if n is a power of two.

    For other n: the slopes of the power of two below, then every other one of the power above, as in the authors' code
    and in Bloom and MPT. They do not fall monotonically, and differ from the paper's formula (12 heads: largest 0.7071
    instead of 0.63).
    """
    below = 2 ** math.floor(math.log2(n_heads))
    above = 2 * below
    others = range(0, 2 * (n_heads - below), 2)
    regular = [2 ** (-8 * (h + 1) / below) for h in range(below)]
    return regular + [2 ** (-8 * (h + 1) / above) for h in others]


def _slopes_column(n_heads: int, device: torch.device) -> Float[Tensor, "H 1 1"]:
    return constant(alibi_slopes(n_heads), device).view(-1, 1, 1)


@final
@registry.register("kerple")
class Kerple(Encoding):
    """Adds a learned kernel of the distance to the score: `-r1 log(1 + r2 |i - j|)` or `-r1 |i - j|^r2`.

    r1 and r2 are learned for each head of each layer, with r2 below 2 for the power. They stay positive by a softplus,
    and the exponent below 2 by `2 sigmoid`. The authors clamp them at 0.01 instead, and a clamped one has no gradient.
    They start as the authors' do: r1 between 0 and 2 and r2 between 0 and 1, or the reverse for `power`.

    Source: Kernelised biases: *KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation* (Chi et al.
    2022), equations 2 and 3.

    kernel: the logarithm, which the paper found best, or the power.
    """

    shared = False

    def __init__(self, site: Site, *, kernel: Kernel = "log"):
        super().__init__(site)
        self.kernel: Kernel = kernel
        self.free_r1 = nn.Parameter(torch.empty(site.n_heads))
        self.free_r2 = nn.Parameter(torch.empty(site.n_heads))
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        nn.init.uniform_(parameter, MIN_KERPLE, 1, generator=generator)
        is_doubled = (self.kernel, name) in (("log", "free_r1"), ("power", "free_r2"))
        # The inverse of `coefficients`, in float64: the logarithm of expm1 loses digits near 0.
        value = parameter.double() * (2 if is_doubled else 1)
        is_bounded = self.kernel == "power" and name == "free_r2"
        parameter.copy_((value / 2).logit(eps=1e-6) if is_bounded else value.expm1().log())

    def coefficients(self) -> tuple[Float[Tensor, " H"], Float[Tensor, " H"]]:
        """r1 and r2."""
        if self.kernel == "log":
            return softplus(self.free_r1), softplus(self.free_r2)
        return softplus(self.free_r1), 2 * at_least_float32(self.free_r2).sigmoid()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        return bias_by_distance(q_pos, k_pos, self._bias_of)

    def _bias_of(self, ahead_R: Tensor) -> Float[Tensor, "H R"]:
        r1_H1, r2_H1 = (coefficient.unsqueeze(-1) for coefficient in self.coefficients())
        distance_R = ahead_R.abs().to(r1_H1.dtype)
        if self.kernel == "log":
            return -r1_H1 * (r2_H1 * distance_R).log1p()
        # The gradient of a power below 1 is infinite at 0.
        is_zero = distance_R == 0
        power_HR = distance_R.masked_fill(is_zero, 1.0) ** r2_H1
        return -r1_H1 * power_HR.masked_fill(is_zero, 0.0)


@final
@registry.register("sandwich")
class Sandwich(Encoding):
    """Adds the dot product of the sinusoids of both positions to the score, minus that of equal positions.

    This is `sum_k (cos((i - j) / base^(2k / width)) - 1)` over width / 2 waves, divided by `8 h / H` for head
    h = 1 ... H. It falls like the logarithm of the distance. Nothing is learned. The paper does not subtract the 1, and
    the softmax cancels it. Otherwise half precision would round away what differs between near keys.

    Source: Sandwich: *Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis* (Chi et al.
    2023), section 6 and appendix E.

    width: of the sinusoids, independent of the model's; the paper has 128. base: a larger one slows the waves.
    """

    def __init__(
        self,
        site: Site,
        *,
        width: Annotated[int, Ge(2)] = 128,
        base: Annotated[float, Gt(1)] = 10000.0,
    ):
        super().__init__(site)
        self.width, self.base = width, base

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        return bias_by_distance(q_pos, k_pos, self._bias_of)

    def _bias_of(self, ahead_R: Tensor) -> Float[Tensor, "H R"]:
        frequency_F = frequencies(self.width // 2, self.base, 2 / self.width, ahead_R.device)
        product_R = (angles(ahead_R, frequency_F).cos() - 1).sum(-1)
        head_H = torch.arange(1, self.site.n_heads + 1, device=ahead_R.device)
        ratio_H1 = (8 * head_H / self.site.n_heads).unsqueeze(-1)
        return (product_R / ratio_H1).float()
