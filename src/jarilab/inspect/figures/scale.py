"""The colour scale of weights, equal to that of the pages, and its bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, import_optional
from jarilab.inspect.figures.figure import BAR_HEIGHT, BAR_LENGTH, GAP, INK, Figure

NAME, MASKED = "attention weight", "masked"
FULL_SCALE = 24
"""Tokens up to which the scale ends at 1; for more, at the largest weight, as on the pages."""


@dataclass(frozen=True)
class Scale:
    """Colours from 0 to `high`. name: printed beside the bar. masked: explain the hatch of masked keys.

    seen_through: the lower a weight, the more of what lies behind is seen.
    """

    high: float
    name: str = NAME
    masked: bool = False
    seen_through: bool = False

    @staticmethod
    def of(maps: list[np.ndarray], high: int | float | None, name: str, **options: Any) -> Scale:
        """The scale of maps, NaN where masked. Raises UserError for a `high` that is not above 0."""
        if high is None:
            largest = max((float(np.nanmax(map, initial=0.0)) for map in maps), default=1.0)
            is_small = max(max(map.shape) for map in maps) <= FULL_SCALE
            high = 1.0 if is_small and largest <= 1 else largest or 1.0
        if not 0 < high < float("inf"):
            raise UserError(
                f"expected high, the end of the colour scale, above 0, got {high}; such as high=1"
            )
        masked = any(bool(np.isnan(map).any()) for map in maps)
        return Scale(float(high), name, masked, **options)

    def colours(self, weights: np.ndarray) -> np.ndarray:
        """The colours `(rows, columns, 4)` of weights, from 0 to 255; transparent where NaN."""
        table = import_optional("matplotlib", "figures").colormaps["viridis"]
        shares = np.clip(np.nan_to_num(weights) / self.high, 0, 1)
        colours = table(np.round(255 * shares).astype(int), bytes=True)
        if self.seen_through:
            colours[..., 3] = np.round(217 * shares)
        colours[np.isnan(weights), 3] = 0
        return colours

    def height(self, figure: Figure) -> float:
        """The height of the bar with its numbers, in centimetres."""
        return figure.line() + BAR_HEIGHT + 0.1

    def draw_bar(self, figure: Figure, y: float) -> None:
        """Draw the name, the bar and the explanation of the hatch side by side, centred, from `y` centimetres down.

        Raises UserError if the figure is too narrow.
        """
        width = figure.style.width
        name = figure.width_of([self.name]) + GAP
        end = figure.width_of([MASKED]) + 3 * GAP + 0.3 if self.masked else 0.0
        bar = min(BAR_LENGTH, width - name - end - 2 * GAP)
        if bar < 1:
            raise UserError(
                f"a width of {width:g} centimetres has no room for the scale and its name, {self.name!r}; give "
                f"width={width + 1 - bar:.1f}, a smaller font_size or another name"
            )
        x = (width - name - bar - end) / 2
        middle = y + BAR_HEIGHT / 2
        figure.text(x, middle, self.name, va="center_baseline")
        ramp = self.colours(np.linspace(0, self.high, 256)[None])
        figure.picture(ramp, x + name, y, bar, BAR_HEIGHT)
        axes = figure.axes(x + name, y, bar, BAR_HEIGHT)
        axes.set_xlim(0, self.high)
        ticks = import_optional("matplotlib.ticker", "figures").MaxNLocator(4 if bar > 2 else 2)
        numbers = [
            value
            for value in ticks.tick_values(0, self.high)
            if 0 <= value <= self.high * (1 + 1e-9)
        ]
        axes.set_xticks(numbers, [f"{value:.6g}" for value in numbers])
        axes.tick_params(length=2, width=0.5, pad=1.5, color=INK, labelcolor=INK)
        if self.masked:
            x += name + bar + 2 * GAP
            figure.hatch(x, middle - 0.15, 0.3, 0.3, dense=True)
            figure.axes(x, middle - 0.15, 0.3, 0.3)
            figure.text(x + 0.3 + GAP / 2, middle, MASKED, va="center_baseline")
