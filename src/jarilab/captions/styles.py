"""Captions and images that say the same: real digits drawn as the words have it.

style = STYLES["attributes"]
values_BP = style.values(torch.tensor([17]))           # which word stands in each place of the caption
style.caption(values_BP[0])                             # a small red 3 top left
painter = Painter(style, Digits.scans("training"), seed=1)
images_BCHW = painter.paint(values_BP, torch.tensor([0]))
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import UInt8

from jarilab.captions.scenes import Digits, Plan, Scenes, World
from jarilab.errors import UserError
from jarilab.nn.init import generator_for
from jarilab.shapes import Float, Int, Tensor

NOTHING = "-"
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZES = ("small", "large")
CORNERS = ("top left", "top right", "bottom left", "bottom right")


@dataclass(frozen=True)
class Style:
    """How captions are worded. parts: for each place of the caption where words may vary, its name and these words.

    height, width: of the images. sides: the smallest and the largest a digit may have, in pixels, for each size it
    may be said to have. digits: which parts are digits, in their order from left to right.
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
    def combinations(self) -> int:
        """How many captions there are."""
        return math.prod(len(words) for _, words in self.parts)

    def values(self, numbers: Int[Tensor, " B"]) -> Int[Tensor, "B P"]:
        """The number of the word in each place, of the captions with these numbers."""
        columns = []
        for _, words in reversed(self.parts):
            columns.append(numbers % len(words))
            numbers = numbers // len(words)
        return torch.stack(columns[::-1], 1)

    def caption(self, values: Int[Tensor, " P"]) -> str:
        """The caption with these words; of -1, which is none, stands a dash."""
        chosen = {
            name: words[int(v)] if v >= 0 else NOTHING
            for (name, words), v in zip(self.parts, values, strict=True)
        }
        return self.template.format(**chosen)

    def understand(self, caption: str) -> Int[Tensor, " P"]:
        """The words of a caption. Raises UserError for one that is not of this style."""
        groups = {
            name: f"(?P<{name}>{'|'.join(map(re.escape, words))})" for name, words in self.parts
        }
        found = re.fullmatch(self.template.format(**groups), " ".join(caption.split()))
        if found is None:
            example = self.caption(torch.zeros(len(self.parts), dtype=torch.long))
            raise UserError(f"expected a caption such as {example!r}, got {caption!r}")
        return torch.tensor([words.index(found[name]) for name, words in self.parts])


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
    """Draws captions of a style with real digits: which of them, and where exactly, is drawn from (seed, number)."""

    def __init__(self, style: Style, digits: Digits, *, seed: int):
        self.style, self.digits, self.seed = style, digits, seed
        world = World(
            canvas=max(style.height, style.width), most=len(style.digits), colours=style.colours
        )
        self._scenes = Scenes(world, digits, seed=seed)
        of_label = [(digits.labels == label).nonzero().squeeze(1) for label in range(10)]
        if not all(len(found) for found in of_label):
            missing = next(label for label, found in enumerate(of_label) if not len(found))
            raise UserError(
                f"captions name every digit, but these {len(digits.labels)} images show no {missing}"
            )
        self._counts = torch.tensor([len(found) for found in of_label])
        self._sorted = torch.cat(of_label)
        self._starts = self._counts.cumsum(0) - self._counts

    def paint(
        self, values: Int[Tensor, "B P"], numbers: Int[Tensor, " B"]
    ) -> UInt8[Tensor, "B 3 H W"]:
        """Images of these words; equal numbers give equal images of equal words."""
        drawn = torch.stack([self._drawn(int(number)) for number in numbers])
        above = (self._scenes.world.canvas - self.style.height) // 2
        images = self._scenes.draw(self._plan(values, drawn))
        return images[:, :, above : above + self.style.height, : self.style.width]

    def _drawn(self, number: int) -> Float[Tensor, "N 4"]:
        """For each digit: which source, which side, and where along both axes."""
        return torch.rand(
            len(self.style.digits), 4, generator=generator_for(self.seed, f"painted/{number}")
        )

    def _plan(self, values: Tensor, drawn: Tensor) -> Plan:
        style = self.style
        labels = values[:, list(style.digits)]
        sources = self._sorted[self._starts[labels] + (drawn[..., 0] * self._counts[labels]).long()]
        sizes = values[:, :1] if len(style.sides) > 1 else torch.zeros_like(labels)
        smallest, largest = torch.tensor(style.sides)[sizes].unbind(-1)
        sides = smallest + (drawn[..., 1] * (largest - smallest + 1)).floor()
        ink = self.digits.ink[sources]
        extent = ink[..., 2:] - ink[..., :2]
        extent = (
            (extent / extent.amax(-1, keepdim=True) * sides.unsqueeze(-1)).round().clamp_min(2.0)
        )
        if len(style.digits) > 1:
            corner, colours = self._in_row(extent, drawn), torch.zeros_like(labels)
        else:
            corner, colours = self._in_corner(extent, drawn, values[:, 3:4]), values[:, 1:2]
        boxes = torch.cat((corner, corner + extent), -1)
        return Plan(torch.ones_like(labels, dtype=torch.bool), sources, labels, boxes, colours)

    def _in_row(self, extent: Tensor, drawn: Tensor) -> Tensor:
        """The upper left corner of each digit, somewhere in a square of its own."""
        side = self.style.height
        above = (self._scenes.world.canvas - side) // 2
        origin = torch.stack(
            (torch.arange(extent.shape[1]) * side, torch.full((extent.shape[1],), above)), -1
        )
        return (origin + drawn[..., 2:] * (side - extent)).floor()

    def _in_corner(self, extent: Tensor, drawn: Tensor, corners: Tensor) -> Tensor:
        """The same at most two pixels from a corner of the canvas."""
        away = (drawn[..., 2:] * 3).floor()
        far = torch.stack((corners % 2, corners // 2), -1).bool()
        return torch.where(far, self._scenes.world.canvas - away - extent, away)
