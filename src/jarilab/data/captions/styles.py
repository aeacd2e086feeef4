"""Styles of captions, and images of real digits drawn according to their words.

style = STYLES["attributes"]
values_BP = style.values(torch.tensor([17]))    # the index of each word
style.caption(values_BP[0])                     # a small red 3 top left
painter = Painter(style, DigitImages.scans("training"), seed=1)
images_BCHW = painter.paint(values_BP, torch.tensor([0]))
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.data.captions.digit_images import DigitImages
from jarilab.data.captions.scenes import Plan, Scenes, SceneWorld
from jarilab.nn.init import generator_for

NOTHING = "-"
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZES = ("small", "large")
CORNERS = ("top left", "top right", "bottom left", "bottom right")


@dataclass(frozen=True)
class Style:
    """The wording of captions, and the images that they describe.

    template: the caption, with a placeholder for each part. parts: name and possible words of each part, in the order
    of the caption. height, width: of the images, in pixels. sides: for each size word, the smallest and largest longer
    side of a digit in pixels. digits: indices of the parts that are digits, from left to right. colours: names of the
    digits' colours.
    """

    name: str
    template: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    height: int
    width: int
    sides: tuple[tuple[int, int], ...]
    digits: tuple[int, ...]
    colours: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the parts, in order."""
        return [name for name, _ in self.parts]

    @property
    def combinations(self) -> int:
        """The number of captions."""
        return math.prod(len(words) for _, words in self.parts)

    def values(self, numbers: Int[Tensor, " B"]) -> Int[Tensor, "B P"]:
        """Return the word indices of the captions with these numbers."""
        columns = []
        for _, words in reversed(self.parts):
            columns.append(numbers % len(words))
            numbers = numbers // len(words)
        return torch.stack(columns[::-1], 1)

    def caption(self, values: Int[Tensor, " P"]) -> str:
        """Return the caption with these words, with a dash for -1."""
        chosen = {}
        for (name, words), value in zip(self.parts, values.tolist(), strict=True):
            chosen[name] = words[value] if value >= 0 else NOTHING
        return self.template.format(**chosen)

    def understand(self, caption: str) -> Int[Tensor, " P"]:
        """Return the word indices of a caption. Raises UserError if it is not of this style."""
        groups = {}
        for name, words in self.parts:
            choices = "|".join(map(re.escape, words))
            groups[name] = f"(?P<{name}>{choices})"
        pattern = self.template.format(**groups)
        match = re.fullmatch(pattern, " ".join(caption.split()))
        if match is None:
            example = self.caption(torch.zeros(len(self.parts), dtype=torch.long))
            raise UserError(f"expected a caption such as {example!r}, got {caption!r}")
        return torch.tensor([words.index(match[name]) for name, words in self.parts])


STYLES = {
    "row": Style(
        "row",
        "{first} {second} {third}",
        (("first", NUMBERS), ("second", NUMBERS), ("third", NUMBERS)),
        height=16,
        width=48,
        sides=((13, 15),),
        digits=(0, 1, 2),
        colours=("white",),
    ),
    "attributes": Style(
        "attributes",
        "a {size} {colour} {digit} {place}",
        (
            ("size", SIZES),
            ("colour", ("red", "green", "blue", "yellow")),
            ("digit", tuple("0123456789")),
            ("place", CORNERS),
        ),
        height=32,
        width=32,
        sides=((13, 14), (20, 21)),
        digits=(2,),
        colours=("red", "green", "blue", "yellow"),
    ),
}


@final
class Painter:
    """Draws captions of a style with real digits. Digits and their exact places depend on (seed, number) alone."""

    def __init__(self, style: Style, digits: DigitImages, *, seed: int):
        self.style, self.digits, self.seed = style, digits, seed
        canvas = max(style.height, style.width)
        world = SceneWorld(canvas=canvas, most=len(style.digits), colours=style.colours)
        self._scenes = Scenes(world, digits, seed=seed)
        # A row lies across the middle of a square canvas.
        self._above = (canvas - style.height) // 2
        self._counts = digits.labels.bincount(minlength=10)
        if not self._counts.all():
            missing = int(self._counts.argmin())
            raise UserError(
                f"captions name every digit, but these {len(digits.labels)} images show no {missing}"
            )
        # Indices of the digits, grouped by label, and the start of each group.
        self._sorted = digits.labels.argsort(stable=True)
        self._starts = self._counts.cumsum(0) - self._counts

    def paint(
        self, values: Int[Tensor, "B P"], numbers: Int[Tensor, " B"]
    ) -> UInt8[Tensor, "B 3 H W"]:
        """Draw images of these words. Equal numbers and words give equal images."""
        chance_BN4 = torch.stack([self._chance(int(number)) for number in numbers])
        images = self._scenes.draw(self._plan(values, chance_BN4))
        below = self._above + self.style.height
        return images[:, :, self._above : below, : self.style.width]

    def _chance(self, number: int) -> Float[Tensor, "N 4"]:
        """Return random numbers from 0 to 1 for each digit: its source, side, and both coordinates."""
        generator = generator_for(self.seed, f"painted/{number}")
        return torch.rand(len(self.style.digits), 4, generator=generator)

    def _plan(self, values: Int[Tensor, "B P"], chance_BN4: Float[Tensor, "B N 4"]) -> Plan:
        style = self.style
        labels_BN = values[:, list(style.digits)]
        number_BN = (chance_BN4[..., 0] * self._counts[labels_BN]).long()
        sources_BN = self._sorted[self._starts[labels_BN] + number_BN]
        sizes_BN = values[:, :1] if len(style.sides) > 1 else torch.zeros_like(labels_BN)
        smallest_BN, largest_BN = torch.tensor(style.sides)[sizes_BN].unbind(-1)
        sides_BN = smallest_BN + (chance_BN4[..., 1] * (largest_BN - smallest_BN + 1)).floor()
        extent_BN2 = self.digits.scaled(sources_BN, sides_BN, least=2.0)
        if len(style.digits) > 1:
            corner_BN2 = self._in_row(extent_BN2, chance_BN4[..., 2:])
            colours_BN = torch.zeros_like(labels_BN)
        else:
            corner_BN2 = self._in_corner(extent_BN2, chance_BN4[..., 2:], values[:, 3:4])
            colours_BN = values[:, 1:2]
        boxes_BN4 = torch.cat((corner_BN2, corner_BN2 + extent_BN2), -1)
        real_BN = torch.ones_like(labels_BN, dtype=torch.bool)
        return Plan(real_BN, sources_BN, labels_BN, boxes_BN4, colours_BN)

    def _in_row(self, extent_BN2: Tensor, chance_BN2: Tensor) -> Float[Tensor, "B N 2"]:
        """Return the upper left corner of each digit within its own square."""
        side = self.style.height
        left_N = torch.arange(extent_BN2.shape[1]) * side
        origin_N2 = torch.stack((left_N, torch.full_like(left_N, self._above)), -1)
        return (origin_N2 + chance_BN2 * (side - extent_BN2)).floor()

    def _in_corner(
        self, extent_BN2: Tensor, chance_BN2: Tensor, corners_BN: Tensor
    ) -> Float[Tensor, "B N 2"]:
        """Return the upper left corner of each digit, at most two pixels from a corner of the canvas."""
        away_BN2 = (chance_BN2 * 3).floor()
        far_BN2 = torch.stack((corners_BN % 2, corners_BN // 2), -1).bool()
        opposite_BN2 = self._scenes.world.canvas - away_BN2 - extent_BN2
        return torch.where(far_BN2, opposite_BN2, away_BN2)
