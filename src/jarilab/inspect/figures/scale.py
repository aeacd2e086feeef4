"""The colour scale of weights, equal to that of the pages, and its bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, import_optional
from jarilab.inspect.figures.figure import BAR_HEIGHT, BAR_LENGTH, GAP, INK, Figure

NAME, MASKED = "attention weight", "masked"
OPAQUE = 217
"""Opacity of the largest weight over an image, of 255."""
FULL_SCALE = 24
"""Tokens up to which the scale ends at 1; for more, at the largest weight, as on the pages."""
SIGNED = "08306b1f66ac5a9bcea9cce4f5f5f2f6c99aeb9449c75f0f7a3203"
"""Colours of numbers from below to above 0, as in `pages/kit/static/draw.js`."""


@dataclass(frozen=True)
class Scale:
    """Colours from `low`, 0 or -high, to `high`.

    name: printed beside the bar. blank: what hatched cells (NaN) mean; empty without NaN. seen_through: the lower a
    weight, the more of what lies behind is seen.
    """

    high: float
    name: str = NAME
    low: float = 0.0
    blank: str = ""
    seen_through: bool = False

    @staticmethod
    def of(
        maps: list[np.ndarray],
        high: int | float | None,
        name: str,
        blank: str = MASKED,
        seen_through: bool = False,
    ) -> Scale:
        """The scale of maps, NaN where masked. Raises UserError for a `high` that is not above 0."""
        numbers = np.concatenate([map[np.isfinite(map)] for map in maps])
        if high is None:
            largest = float(np.abs(numbers).max(initial=0.0))
            is_small = max(max(map.shape) for map in maps) <= FULL_SCALE
            high = 1.0 if is_small and largest <= 1 else largest or 1.0
        if not 0 < high < float("inf"):
            raise UserError(
                f"expected high, the end of the colour scale, above 0, got {high}; such as high=1"
            )
        low = -float(high) if numbers.min(initial=0.0) < 0 else 0.0
        has_blank = len(numbers) < sum(map.size for map in maps)
        return Scale(float(high), name, low, blank if has_blank else "", seen_through)

    def colours(self, weights: np.ndarray) -> np.ndarray:
        """The colours `(rows, columns, 4)` of weights, from 0 to 255; transparent where NaN."""
        table = import_optional("matplotlib", "figures").colormaps["viridis"]
        if self.low < 0:
            stops = [f"#{SIGNED[start : start + 6]}" for start in range(0, len(SIGNED), 6)]
            library = import_optional("matplotlib.colors", "figures")
            table = library.LinearSegmentedColormap.from_list("signed", stops)
        shares = np.clip((np.nan_to_num(weights) - self.low) / (self.high - self.low), 0, 1)
        colours = table(np.round(255 * shares).astype(int), bytes=True)
        if self.seen_through:
            colours[..., 3] = np.round(OPAQUE * shares)
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
        end = figure.width_of([self.blank]) + 3 * GAP + 0.3 if self.blank else 0.0
        bar = min(BAR_LENGTH, width - name - end - 2 * GAP)
        if bar < 1:
            raise UserError(
                f"a width of {width:g} centimetres has no room for the scale and its name, {self.name!r}; give "
                f"width={width + 1 - bar:.1f}, a smaller font_size or another name"
            )
        x = (width - name - bar - end) / 2
        middle = y + BAR_HEIGHT / 2
        figure.text(x, middle, self.name, va="center_baseline")
        ramp = self.colours(np.linspace(self.low, self.high, 256)[None])
        figure.picture(ramp, x + name, y, bar, BAR_HEIGHT)
        axes = figure.axes(x + name, y, bar, BAR_HEIGHT)
        axes.set_xlim(self.low, self.high)
        self._number(figure, axes, bar)
        axes.tick_params(length=2, width=0.5, pad=1.5, color=INK, labelcolor=INK)
        if self.blank:
            x += name + bar + 2 * GAP
            figure.hatch(x, middle - 0.15, 0.3, 0.3, dense=True)
            figure.axes(x, middle - 0.15, 0.3, 0.3)
            figure.text(x + 0.3 + GAP / 2, middle, self.blank, va="center_baseline")

    def _number(self, figure: Figure, axes: Any, bar: float) -> None:
        """Print as many round numbers along the bar as have room."""
        ticks = import_optional("matplotlib.ticker", "figures")
        for count in (4, 2, 1):
            values = ticks.MaxNLocator(count).tick_values(self.low, self.high)
            inside = [value for value in values if self.low <= value * (1 - 1e-9) <= self.high]
            texts = [f"{value:.6g}".replace("-", "−") for value in inside]
            if (figure.width_of(texts) + GAP / 4) * (len(texts) - 1) < bar:
                break
        axes.set_xticks(inside, texts)
