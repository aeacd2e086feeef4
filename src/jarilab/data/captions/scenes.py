"""Scenes of real handwritten digits on a dark canvas, with their labels, boxes and colours.

    scenes = Scenes(SceneWorld(), DigitImages.scans("training"), seed=1)
    plan = scenes.plan(torch.arange(32))      # digits and boxes, without an image
    pixels_BCHW = scenes.draw(plan)           # uint8

A scene depends on the seed and its number alone, so none is stored. Training and held-out scenes use different digits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.data.captions.digit_images import DigitImages
from jarilab.positions.boxes import iou

COLOURS = {
    "red": (230, 60, 50),
    "green": (60, 200, 80),
    "blue": (70, 120, 255),
    "yellow": (240, 220, 60),
    "white": (255, 255, 255),
    "purple": (190, 90, 230),
}
PIXELS = 1 << 22  # drawn at a time, so that memory does not grow with the canvas
TRIES = 24  # candidate places of a digit; it is omitted if none fits


@dataclass(frozen=True)
class SceneWorld:
    """The parameters of scenes.

    canvas: their height and width in pixels. fewest, most: digits of a scene; 0 of them is an empty one.
    smallest, largest: the longer side of a digit in pixels. overlap: the largest IoU of two digits' boxes.
    colours: names from COLOURS, drawn evenly; none for grey images of one channel.
    """

    canvas: int = 48
    fewest: int = 1
    most: int = 3
    smallest: int = 12
    largest: int = 22
    overlap: float = 0.1
    colours: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """The digits of B scenes of at most N digits, and their boxes. real: False where a scene has fewer.

    sources: numbers of the digits drawn. labels: 0 ... 9. boxes: left, top, right, bottom in pixels.
    colours: numbers into `SceneWorld.colours`.
    """

    real: Bool[Tensor, "B N"]
    sources: Int[Tensor, "B N"]
    labels: Int[Tensor, "B N"]
    boxes: Float[Tensor, "B N 4"]
    colours: Int[Tensor, "B N"]


@final
class Scenes:
    """An endless sequence of scenes. Raises UserError for impossible parameters."""

    def __init__(self, world: SceneWorld, digits: DigitImages, *, seed: int):
        _check(world)
        self.world, self.digits, self.seed = world, digits, seed
        names = world.colours or ("white",)
        self._palette = torch.tensor([COLOURS[name] for name in names]).float()

    def plan(self, numbers: Int[Tensor, " B"]) -> Plan:
        """Return the digits and boxes of the scenes with these numbers."""
        world, most = self.world, self.world.most
        # For each scene the number of digits; for each digit source, side and colour, and candidate places.
        parts = (1, 3 * most, 2 * TRIES * most)
        chance = _uniform(self.seed, numbers, sum(parts))
        of_scene, of_digits, of_places = chance.split(parts, 1)
        of_digits = of_digits.unflatten(1, (most, 3))
        source_chance, side_chance, colour_chance = of_digits.unbind(-1)
        tries_BNT2 = of_places.unflatten(1, (most, TRIES, 2)).float()

        counts = most - world.fewest + 1
        counts_B1 = world.fewest + (of_scene * counts).long()
        real_BN = torch.arange(most) < counts_B1
        sources_BN = (source_chance * len(self.digits.labels)).long()
        sizes = world.largest - world.smallest + 1
        sides_BN = world.smallest + (side_chance * sizes).floor()
        extent_BN2 = self.digits.scaled(sources_BN, sides_BN.float(), least=1.0)
        room_BN2 = world.canvas - extent_BN2
        places_BNT2 = (tries_BNT2 * room_BN2.unsqueeze(2)).floor()
        boxes_BN4, fits_BN = _apart(places_BNT2, extent_BN2, real_BN, world.overlap)
        colours_BN = (colour_chance * len(self._palette)).long()
        return Plan(fits_BN, sources_BN, self.digits.labels[sources_BN], boxes_BN4, colours_BN)

    def draw(self, plan: Plan) -> UInt8[Tensor, "B C H W"]:
        """Draw a plan as uint8 images with three channels if the world has colours, else one.

        Where digits overlap, the brighter one is visible.
        """
        at_once = max(1, PIXELS // self.world.canvas**2)
        scenes = torch.arange(len(plan.real))
        return torch.cat([self._draw(plan, some) for some in scenes.split(at_once)])

    def _draw(self, plan: Plan, scenes: Int[Tensor, " S"]) -> UInt8[Tensor, "S C H W"]:
        side = self.world.canvas
        canvas = torch.zeros(len(scenes), self.channels, side, side)
        for slot in range(plan.real.shape[1]):
            here = plan.real[scenes, slot].nonzero()[:, 0]
            scene = scenes[here]
            colours = self._palette[plan.colours[scene, slot]]
            glyphs = self._glyphs(plan.sources[scene, slot], plan.boxes[scene, slot])
            glyphs = glyphs.unsqueeze(1)
            inked = glyphs * colours[:, : self.channels, None, None]
            canvas[here] = torch.maximum(canvas[here], inked)
        canvas = canvas.round().clamp(0, 255)
        return canvas.to(torch.uint8)

    def _glyphs(
        self, source: Int[Tensor, " M"], box: Float[Tensor, "M 4"]
    ) -> Float[Tensor, "M canvas canvas"]:
        """Draw each digit in its box on its own canvas, with values from 0 to 1."""
        canvas = self.world.canvas
        pixels = self.digits.pixels[source]
        _, height, width = pixels.shape
        # Of each box, and of the ink in its source: from left to right, and from top to bottom.
        across, down = box.unflatten(1, (2, 2)).unbind(2)
        ink = self.digits.ink[source]
        ink_across, ink_down = ink.unflatten(1, (2, 2)).unbind(2)
        rows = _spread(down, ink_down, canvas, height)
        columns = _spread(across, ink_across, canvas, width)
        stretched = torch.bmm(rows, pixels)
        return torch.bmm(stretched, columns.transpose(1, 2))

    def describe(self) -> str:
        """Return a short description: `1 to 3 of 60,000 digits of 12 to 22 pixels on 48 x 48`."""
        world = self.world
        counts = str(world.most)
        if world.fewest < world.most:
            counts = f"{world.fewest} to {counts}"
        digits = f"{len(self.digits.labels):,} digits"
        sides = f"{world.smallest} to {world.largest} pixels"
        return f"{counts} of {digits} of {sides} on {world.canvas} x {world.canvas}"

    def fingerprint(self) -> str:
        """Return the settings that decide all scenes."""
        facts = f"{self.world} {self.seed}"
        whole = hashlib.sha256(facts.encode())
        for part in (self.digits.pixels, self.digits.labels):
            whole.update(part.numpy().tobytes())
        return f"sha256 {whole.hexdigest()}"

    @property
    def channels(self) -> int:
        """The number of channels."""
        return 3 if self.world.colours else 1


def _apart(
    places: Float[Tensor, "B N T 2"],
    extent: Float[Tensor, "B N 2"],
    real: Bool[Tensor, "B N"],
    overlap: float,
) -> tuple[Float[Tensor, "B N 4"], Bool[Tensor, "B N"]]:
    """Place digits in order: each at the first candidate that overlaps no earlier digit by more than `overlap`.

    A digit without such a candidate is omitted.
    """
    opposite = places + extent.unsqueeze(2)
    tried = torch.cat((places, opposite), -1)
    boxes = tried[:, :, 0].clone()
    fits = real.clone()
    scene_B = torch.arange(len(boxes))
    for n in range(1, boxes.shape[1]):
        here_BT4 = tried[:, n]
        before_Bn4 = boxes[:, :n]
        apart_BTn = iou(here_BT4.unsqueeze(2), before_Bn4.unsqueeze(1)) <= overlap
        absent_B1n = ~fits[:, None, :n]
        free_BT = (apart_BTn | absent_B1n).all(-1)
        # The first candidate that fits; 0 if none does, and the digit is omitted below.
        first_B = free_BT.long().argmax(1)
        boxes[:, n] = tried[scene_B, n, first_B]
        fits[:, n] &= free_BT.any(1)
    return boxes, fits


def _spread(
    span: Float[Tensor, "M 2"], ink: Float[Tensor, "M 2"], canvas: int, length: int
) -> Float[Tensor, "M canvas length"]:
    """Weights of the `length` source pixels in each pixel of the canvas, along one axis, by linear interpolation.

    span: start and end on the canvas, which the ink fills. Weights outside are 0. ink: its start and end in the source.
    """
    start, stop = span.split(1, 1)  # each M 1
    first, end = ink.split(1, 1)
    scale = (end - first) / (stop - start)
    at = torch.arange(canvas) + 0.5
    inside = (at > start) & (at < stop)
    source = first + (at - start) * scale - 0.5
    source = source.minimum(end - 1).maximum(first)
    distance = source.unsqueeze(2) - torch.arange(length)
    # A digit that gets smaller is averaged over several source pixels.
    width = scale.clamp_min(1.0).unsqueeze(2)
    share = (1 - distance.abs() / width).clamp_min(0.0)
    total = share.sum(2, keepdim=True)
    return share / total * inside.unsqueeze(2)


def _uniform(seed: int, numbers: Int[Tensor, " B"], count: int) -> Tensor:
    """Return `(B, count)` float64 in [0, 1), a function of seed, number and column (SplitMix64, Steele et al. 2014)."""
    # A generator for each scene would take longer than the drawing.
    step = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        key = _mixed(np.array([seed], np.uint64) + step)
        rows = _mixed(numbers.numpy().astype(np.uint64))
        rows = _mixed(key ^ rows)[:, None]
        columns = np.arange(1, count + 1, dtype=np.uint64) * step
        bits = _mixed(rows + columns)
    highest = (bits >> np.uint64(11)).astype(np.float64)  # 53 bits, as many as a float64 holds
    return torch.from_numpy(highest * 2.0**-53)


def _mixed(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _check(world: SceneWorld) -> None:
    unknown_colours = [name for name in world.colours if name not in COLOURS]
    if unknown_colours:
        raise UserError(
            f"scenes know no colour {unknown_colours[0]!r}; known: {', '.join(COLOURS)}"
        )
    if not 0 <= world.fewest <= world.most or world.most < 1:
        raise UserError(
            f"a scene has fewest ... most digits, 0 <= fewest <= most; got {world.fewest} ... {world.most}"
        )
    if not 4 <= world.smallest <= world.largest <= world.canvas:
        raise UserError(
            f"digits of {world.smallest} ... {world.largest} pixels cannot stand on {world.canvas} pixels: expected "
            f"4 <= smallest <= largest <= {world.canvas}; choose other sizes or a larger canvas"
        )
