"""Captions and pictures that say the same: real digits drawn as the words have it, and what rules find in a picture.

style = STYLES["attributes"]
values_BP = style.values(torch.tensor([17]))           # which word stands in each place of the caption
style.caption(values_BP[0])                             # a small red 3 top left
painter = Painter(style, Digits.scans("training"), seed=1)
pictures_BCHW = painter.paint(values_BP, torch.tensor([0]))
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import UInt8

from jarilab.errors import UserError
from jarilab.init import generator_for
from jarilab.pictures.scenes import COLOURS, Digits, Plan, Scenes, World
from jarilab.shapes import Bool, Float, Int, Tensor

NOTHING = "-"
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZES = ("small", "large")
CORNERS = ("top left", "top right", "bottom left", "bottom right")
INK = 0.3  # of full brightness: what a rule calls drawn
LEAST = 8  # pixels of ink, else nothing is drawn: the thinnest digits have a dozen
GLYPH, FRAME = 20, 24  # pixels of the longer side of a digit as a judge sees it, and of what is around it


@dataclass(frozen=True)
class Style:
    """How captions are worded. parts: for each place of the caption where words may vary, its name and these words.

    height, width: of the pictures. sides: the smallest and the largest a digit may have, in pixels, for each size it
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
            name: words[int(v)] if v >= 0 else NOTHING for (name, words), v in zip(self.parts, values, strict=True)
        }
        return self.template.format(**chosen)

    def understand(self, caption: str) -> Int[Tensor, " P"]:
        """The words of a caption. Raises UserError for one that is not of this style."""
        groups = {name: f"(?P<{name}>{'|'.join(map(re.escape, words))})" for name, words in self.parts}
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
        world = World(canvas=max(style.height, style.width), most=len(style.digits), colours=style.colours)
        self._scenes = Scenes(world, digits, seed=seed)
        of_label = [(digits.labels == label).nonzero().squeeze(1) for label in range(10)]
        if not all(len(found) for found in of_label):
            missing = next(label for label, found in enumerate(of_label) if not len(found))
            raise UserError(f"captions name every digit, but these {len(digits.labels)} pictures show no {missing}")
        self._counts = torch.tensor([len(found) for found in of_label])
        self._sorted = torch.cat(of_label)
        self._starts = self._counts.cumsum(0) - self._counts

    def paint(self, values: Int[Tensor, "B P"], numbers: Int[Tensor, " B"]) -> UInt8[Tensor, "B 3 H W"]:
        """Pictures of these words; equal numbers give equal pictures of equal words."""
        drawn = torch.stack([self._drawn(int(number)) for number in numbers])
        above = (self._scenes.world.canvas - self.style.height) // 2
        pictures = self._scenes.draw(self._plan(values, drawn))
        return pictures[:, :, above : above + self.style.height, : self.style.width]

    def _drawn(self, number: int) -> Float[Tensor, "N 4"]:
        """For each digit: which source, which side, and where along both axes."""
        return torch.rand(len(self.style.digits), 4, generator=generator_for(self.seed, f"painted/{number}"))

    def _plan(self, values: Tensor, drawn: Tensor) -> Plan:
        style = self.style
        labels = values[:, list(style.digits)]
        sources = self._sorted[self._starts[labels] + (drawn[..., 0] * self._counts[labels]).long()]
        sizes = values[:, :1] if len(style.sides) > 1 else torch.zeros_like(labels)
        smallest, largest = torch.tensor(style.sides)[sizes].unbind(-1)
        sides = smallest + (drawn[..., 1] * (largest - smallest + 1)).floor()
        ink = self.digits.ink[sources]
        extent = ink[..., 2:] - ink[..., :2]
        extent = (extent / extent.amax(-1, keepdim=True) * sides.unsqueeze(-1)).round().clamp_min(2.0)
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
        origin = torch.stack((torch.arange(extent.shape[1]) * side, torch.full((extent.shape[1],), above)), -1)
        return (origin + drawn[..., 2:] * (side - extent)).floor()

    def _in_corner(self, extent: Tensor, drawn: Tensor, corners: Tensor) -> Tensor:
        """The same at most two pixels from a corner of the canvas."""
        away = (drawn[..., 2:] * 3).floor()
        far = torch.stack((corners % 2, corners // 2), -1).bool()
        return torch.where(far, self._scenes.world.canvas - away - extent, away)


# What rules and a judge see in a picture --------------------------------------------------------------------------


def glyphs(style: Style, pictures: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B N 24 24"]:
    """The digits of pictures of this style as a judge sees them: grey, all of one size, in the middle of a frame.

    A picture or square of a row without ink is empty here too.
    """
    flat, inked = _squares(style, pictures).flatten(0, 1), drawn(style, pictures).flatten()
    found = torch.zeros(len(flat), FRAME, FRAME)
    if inked.any():
        flat = flat[inked]
        digits = Digits.of(flat, torch.zeros(len(flat), dtype=torch.long), threshold=INK)
        extent = digits.ink[:, 2:] - digits.ink[:, :2]
        extent = (extent / extent.amax(-1, keepdim=True) * GLYPH).round().clamp_min(1.0)
        corner = ((FRAME - extent) / 2).floor()
        boxes = torch.cat((corner, corner + extent), -1).unsqueeze(1)
        one = torch.zeros(len(boxes), 1, dtype=torch.long)
        plan = Plan(one == 0, torch.arange(len(boxes)).unsqueeze(1), one, boxes, one)
        world = World(canvas=FRAME, most=1, smallest=GLYPH, largest=GLYPH)
        found[inked] = Scenes(world, digits, seed=0).draw(plan)[:, 0].float() / 255
    return found.unflatten(0, (len(pictures), -1))


def drawn(style: Style, pictures: UInt8[Tensor, "B 3 H W"]) -> Bool[Tensor, "B N"]:
    """Whether there is anything to read where the digits stand: a few pixels of ink, in each square of a row."""
    return (_squares(style, pictures) > INK).sum((2, 3)) >= LEAST


def _squares(style: Style, pictures: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B N h w"]:
    """Where the digits stand, in grey."""
    return (pictures.amax(1).float() / 255).unflatten(2, (len(style.digits), -1)).movedim(2, 1)


def attributes(style: Style, pictures: UInt8[Tensor, "B 3 H W"]) -> dict[str, Int[Tensor, " B"]]:
    """What rules on pixels find of a picture's one digit, as numbers of words; -1 in a picture without ink.

    Colour by the direction of the mean colour of the ink, size by the longer side of the box around it, place by its
    centre of mass. Nothing in a style whose words are digits alone.
    """
    if len(style.parts) == len(style.digits):
        return {}
    pixels = pictures.float() / 255
    ink = pixels.amax(1) > INK
    some = drawn(style, pictures).any(1)
    weight = (pixels.amax(1) * ink).clamp_min(1e-9)
    mass = weight.sum((1, 2))
    palette = torch.nn.functional.normalize(torch.tensor([COLOURS[name] for name in style.colours]).float(), dim=-1)
    colour = ((pixels * ink.unsqueeze(1)).sum((2, 3)) @ palette.T).argmax(-1)
    rows, columns = torch.arange(style.height) + 0.5, torch.arange(style.width) + 0.5
    down = (weight.sum(2) @ rows) / mass >= style.height / 2
    right = (weight.sum(1) @ columns) / mass >= style.width / 2
    side = torch.maximum(_length(ink.any(1)), _length(ink.any(2)))
    limits = [(low[1] + high[0]) / 2 for low, high in zip(style.sides, style.sides[1:], strict=False)]
    size = torch.bucketize(side.float(), torch.tensor(limits))
    found = {"size": size, "colour": colour, "place": 2 * down.long() + right.long()}
    return {name: value.masked_fill(~some, -1) for name, value in found.items()}


def worded(style: Style, pictures: UInt8[Tensor, "B 3 H W"], digits: Int[Tensor, "B N"]) -> list[str | None]:
    """What the pictures show, as captions of this style, with a dash for a square of a row that is empty: "one - five";
    None for a picture without ink, of which no word is right. digits: what a judge reads in them."""
    seen_BN = drawn(style, pictures)
    digits = digits.masked_fill(~seen_BN, -1)
    found = attributes(style, pictures)
    columns = [
        digits[:, style.digits.index(n)] if n in style.digits else found[name]
        for n, (name, _) in enumerate(style.parts)
    ]
    rows = zip(torch.stack(columns, 1), seen_BN.any(1).tolist(), strict=True)
    return [style.caption(values) if some else None for values, some in rows]


def _length(bright: Tensor) -> Int[Tensor, " B"]:
    """From the first to the last True of each row."""
    number = bright.long()
    return bright.shape[1] - number.argmax(1) - number.flip(1).argmax(1)


def said_right(
    style: Style, values: Int[Tensor, "B P"], pictures: UInt8[Tensor, "B 3 H W"], digits: Int[Tensor, "B N"]
) -> dict[str, Float[Tensor, " B"]]:
    """For each picture, whether it shows what the words say: `digit` (the share of them), each attribute, and
    `exact_match`, all of it. digits: what a judge reads in the pictures; where nothing is drawn, all are wrong."""
    right_BN = (values[:, list(style.digits)] == digits) & drawn(style, pictures)
    names: Sequence[str] = [name for name, _ in style.parts]
    found = {name: (value == values[:, names.index(name)]) for name, value in attributes(style, pictures).items()}
    exact = torch.stack([right_BN.all(1), *found.values()]).all(0)
    return {"exact_match": exact.float(), "digit": right_BN.float().mean(1)} | {n: v.float() for n, v in found.items()}
