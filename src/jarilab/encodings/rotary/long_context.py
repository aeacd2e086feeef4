"""Rotary encodings that extend a trained model to longer texts."""

from __future__ import annotations

import math
from typing import Annotated, Unpack, final

import torch
from annotated_types import Ge, Gt

from jarilab.core.devices import constant
from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import PROVIDED, Site, registry
from jarilab.encodings.numbers import current_length
from jarilab.encodings.rotary.pair_rotation import (
    PairRotation,
    RotaryKeywords,
    RotaryOptions,
    rotary_frequencies,
    rotation_by_frequency,
)
from jarilab.positions.coordinates import Positions


@final
@registry.register("rotary_linear", "linear_scaling", "position_interpolation")
class RotaryLinear(PairRotation):
    """Rotary at `position / factor`.

    A text that is `factor` times as long has then no angle that training did not have.

    Source: Position interpolation: *Extending Context Window of Large Language Models via Positional Interpolation*
    (Chen et al. 2023), equation 4.

    factor: length of the longest text over the trained length; 1 is plain rotary.
    """

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        factor: Annotated[float, Ge(1)] = 4.0,
        **rotary: Unpack[RotaryKeywords],
    ):
        super().__init__(site, "rotary_linear", **rotary)
        self.factor = factor

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        plain_F = rotary_frequencies(self.rotated, self.base, pos.coordinates.device)
        return rotation_by_frequency(pos, plain_F / self.factor, self.pairing)


@final
@registry.register("rotary_ntk", "ntk", "ntk_aware")
class RotaryNtk(PairRotation):
    """Rotary with the base multiplied by `factor^(R / (R - 2))`.

    The slowest pair then rotates `factor` times slower and the fastest as before. Longer texts need no new angles of
    slow pairs, and nearby tokens stay as distinct as before.

    Source: NTK-aware interpolation: bloc97's proposal of 2023, as *YaRN* (Peng et al. 2023), definition 1, states it.

    factor: length of the longest text over the trained length; 1 is plain rotary.
    """

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        factor: Annotated[float, Ge(1)] = 4.0,
        **rotary: Unpack[RotaryKeywords],
    ):
        super().__init__(site, "rotary_ntk", **rotary)
        _check_two_pairs("rotary_ntk", site, self.rotated)
        self.factor = factor

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        base = self.base * self.factor ** (self.rotated / (self.rotated - 2))
        frequency_F = rotary_frequencies(self.rotated, base, pos.coordinates.device)
        return rotation_by_frequency(pos, frequency_F, self.pairing)


@final
@registry.register("rotary_dynamic", "dynamic_ntk", "dynamic")
class RotaryDynamic(PairRotation):
    """Rotary up to `trained_length`, and rotary_ntk with a growing base for longer texts.

    The base is multiplied by `(factor * n / trained_length - (factor - 1))^(R / (R - 2))`, where n is the current
    length of the row. Each new token beyond `trained_length` changes the rotation of all keys, so a cache stores keys
    before rotation. Hidden states of earlier steps do not change: generating a text token by token gives other hidden
    states than reading it at once. Documents packed into one row have the length of the longest.

    Source: Dynamic NTK: emozilla's proposal of 2023, as *YaRN* (Peng et al. 2023), section 3.3, and the transformers
    library have it.

    trained_length: up to this length nothing changes. factor: how fast the base grows beyond it.
    """

    shift_invariant = False
    depends_on_length = True

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        trained_length: Annotated[int, Ge(1)] = 2048,
        factor: Annotated[float, Ge(1)] = 1.0,
        **rotary: Unpack[RotaryKeywords],
    ):
        super().__init__(site, "rotary_dynamic", **rotary)
        _check_two_pairs("rotary_dynamic", site, self.rotated)
        self.trained_length, self.factor = trained_length, factor

    def rotation(self, pos: Positions, *, keys: Positions = PROVIDED) -> tuple[Tensor, Tensor]:
        ratio_B11 = current_length(keys).clamp_min(self.trained_length) / self.trained_length
        stretch_B11 = self.factor * ratio_B11 - (self.factor - 1)
        base_B11 = self.base * stretch_B11 ** (self.rotated / (self.rotated - 2))
        frequency_B1F = rotary_frequencies(self.rotated, base_B11, pos.coordinates.device)
        return rotation_by_frequency(pos, frequency_B1F, self.pairing)


@final
@registry.register("llama3", "rotary_llama3", "llama3.1")
class Llama3(PairRotation):
    """Rotary in which slow pairs rotate `factor` times slower.

    Pairs that rotate more than `high_frequency_factor` times within the trained length do not change. Those that rotate
    less than `low_frequency_factor` times are slowed by `factor`. Between the two, frequencies are interpolated.

    Source: Llama 3.1's rotary: *The Llama 3 Herd of Models* (Grattafiori et al. 2024) and `apply_scaling` of its code.

    factor: length of the longest text over the trained length; 1 is plain rotary. trained_length: of the texts that the
        model was trained with.
    low_frequency_factor, high_frequency_factor: rotations within the trained length, as above.
    """

    @unpack_options(RotaryOptions(base=500000.0), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        factor: Annotated[float, Ge(1)] = 8.0,
        trained_length: Annotated[int, Ge(1)] = 8192,
        low_frequency_factor: Annotated[float, Gt(0)] = 1.0,
        high_frequency_factor: Annotated[float, Gt(0)] = 4.0,
        **rotary: Unpack[RotaryKeywords],
    ):
        super().__init__(site, "llama3", **rotary)
        if low_frequency_factor >= high_frequency_factor:
            raise UserError(
                "llama3 slows the slow pairs: expected low_frequency_factor below high_frequency_factor, got "
                f"{low_frequency_factor:g} and {high_frequency_factor:g}; Llama 3.1 has 1 and 4"
            )
        self.factor, self.trained_length = factor, trained_length
        self.low_frequency_factor = low_frequency_factor
        self.high_frequency_factor = high_frequency_factor

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        plain_F = rotary_frequencies(self.rotated, self.base, pos.coordinates.device)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        turns_F = self.trained_length * plain_F / (2 * math.pi)
        slowing_F = ((high - turns_F) / (high - low)).clamp(0, 1)
        frequency_F = plain_F * (1 - slowing_F * (1 - 1 / self.factor))
        return rotation_by_frequency(pos, frequency_F, self.pairing)


@final
@registry.register("yarn", "rotary_yarn")
class Yarn(PairRotation):
    """Rotary in which slow pairs rotate `factor` times slower, with a temperature.

    Pairs that rotate often within the trained length do not change. Pairs that rotate less than once are slowed by
    `factor`. Between the two, frequencies are interpolated. Cosine and sine are also multiplied by a temperature, so
    that scores of long texts grow.

    Source: YaRN: *Efficient Context Window Extension of Large Language Models* (Peng et al. 2023), definition 3, and
    code.

    factor: length of the longest text over the trained length; 1 is plain rotary. trained_length: of the texts that the
        model was trained with.
    fast_turns: pairs that rotate this often within the trained length do not change; the paper's beta. slow_turns:
        pairs that rotate this often or less are slowed by `factor`; the paper's alpha.
    attention_factor: the temperature; by default 0.1 ln(factor) + 1. It multiplies queries and keys, so scores are
        multiplied by its square.
    truncate: round the numbers of the first and last pair that are interpolated; gpt-oss does not.
    """

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        factor: Annotated[float, Ge(1)] = 4.0,
        trained_length: Annotated[int, Ge(1)] = 4096,
        fast_turns: Annotated[float, Gt(0)] = 32.0,
        slow_turns: Annotated[float, Gt(0)] = 1.0,
        attention_factor: Annotated[float, Gt(0)] | None = None,
        truncate: bool = True,
        **rotary: Unpack[RotaryKeywords],
    ):
        super().__init__(site, "yarn", **rotary)
        if slow_turns >= fast_turns:
            raise UserError(
                f"yarn slows the slow pairs: expected slow_turns below fast_turns, got {slow_turns:g} and "
                f"{fast_turns:g}; the paper has slow_turns=1,fast_turns=32"
            )
        self.factor, self.trained_length = factor, trained_length
        self.fast_turns, self.slow_turns = fast_turns, slow_turns
        self.attention_factor, self.truncate = attention_factor, truncate
        self.keeps_norms = self.temperature == 1

    @property
    def temperature(self) -> float:
        """The factor of cosine and sine."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        plain_F = rotary_frequencies(self.rotated, self.base, pos.coordinates.device)
        first, last = self._interpolated_pairs()
        number_F = torch.arange(len(plain_F), device=plain_F.device, dtype=plain_F.dtype)
        slowing_F = ((number_F - first) / (last - first)).clamp(0, 1)
        frequency_F = plain_F * (1 - slowing_F * (1 - 1 / self.factor))
        return rotation_by_frequency(pos, frequency_F, self.pairing, self.temperature)

    def _interpolated_pairs(self) -> tuple[float, float]:
        """Where interpolation starts and ends, as numbers of pairs; the fastest pair is 0."""
        # The authors' code interpolates between numbers of pairs, the paper between numbers of rotations.
        first, last = self._pair_rotating(self.fast_turns), self._pair_rotating(self.slow_turns)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # The authors' limit is the last component, though these are numbers of pairs.
        first, last = max(float(first), 0.0), min(float(last), self.rotated - 1.0)
        return first, last if last != first else first + 0.001  # as the authors avoid dividing by 0

    def _pair_rotating(self, turns: float) -> float:
        """The number of the pair that rotates `turns` times within the trained length."""
        wavelength = self.trained_length / turns
        return self.rotated * math.log(wavelength / (2 * math.pi)) / (2 * math.log(self.base))


@final
@registry.register("longrope", "rotary_longrope", "su")
class LongRope(PairRotation):
    """Rotary in which each pair is slowed by its own factor, with a temperature.

    The factors come from a search. One list is for texts up to the trained length, another for longer ones. The current
    length of each row chooses the list. Passing the trained length while generating changes the rotation of all keys,
    so a cache stores keys before rotation. Documents packed into one row have the length of the longest.

    Source: LongRoPE: *Extending LLM Context Window Beyond 2 Million Tokens* (Ding et al. 2024), equation 3; Phi-3 and
    Phi-4-mini.

    short, long: the factors of the pairs, from the fastest on, as `1/1.2/2.5/4`; one number is for all pairs.
    trained_length: up to this length `short` is used.
    factor: length of the longest text over the trained length; it gives the temperature,
        `sqrt(1 + ln(factor) / ln(trained_length))`. attention_factor: the temperature itself.
    """

    shift_invariant = False
    depends_on_length = True

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        short: str = "1",
        long: str = "4",
        trained_length: Annotated[int, Ge(2)] = 4096,
        factor: Annotated[float, Ge(1)] = 4.0,
        attention_factor: Annotated[float, Gt(0)] | None = None,
        **rotary: Unpack[RotaryKeywords],
    ):
        super().__init__(site, "longrope", **rotary)
        self.short, self.long, self.trained_length = short, long, trained_length
        self.factor, self.attention_factor = factor, attention_factor
        self.keeps_norms = self.temperature == 1
        self._short_factors = _parse_factors("short", short, self.rotated // 2)
        self._long_factors = _parse_factors("long", long, self.rotated // 2)

    @property
    def temperature(self) -> float:
        """The factor of cosine and sine."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.trained_length))

    def rotation(self, pos: Positions, *, keys: Positions = PROVIDED) -> tuple[Tensor, Tensor]:
        plain_F = rotary_frequencies(self.rotated, self.base, pos.coordinates.device)
        short_F = constant(self._short_factors, plain_F.device, plain_F.dtype)
        long_F = constant(self._long_factors, plain_F.device, plain_F.dtype)
        is_long_B11 = current_length(keys) > self.trained_length
        factor_B1F = torch.where(is_long_B11, long_F, short_F)
        return rotation_by_frequency(pos, plain_F / factor_B1F, self.pairing, self.temperature)


def _parse_factors(option: str, text: str, pairs: int) -> list[float]:
    """One factor for each pair. Raises UserError."""
    try:
        factors = [float(number) for number in text.split("/")]
    except ValueError:
        raise UserError(
            f"longrope: {option}: expected numbers between slashes, 1/1.2/2.5/4, got {text!r}"
        ) from None
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise UserError(
            f"longrope: {option}: expected numbers above 0, got {text!r}; 1 slows nothing"
        )
    if len(factors) not in (1, pairs):
        raise UserError(
            f"longrope: {option}: expected a number for each of the {pairs} pairs, or one for all, got {len(factors)}; "
            f"write such as {option}={'/'.join(['1'] * pairs)}"
        )
    return factors if len(factors) == pairs else factors * pairs


def _check_two_pairs(name: str, site: Site, rotated: int) -> None:
    """Raises UserError for a single pair, which is both the slowest and the fastest."""
    if rotated == 2:
        raise UserError(
            f"{name} slows the slowest pair and not the fastest, so it needs two pairs or more; got one (d_model="
            f"{site.d_model}, n_heads={site.n_heads}); use d_model={4 * site.n_heads}"
        )
