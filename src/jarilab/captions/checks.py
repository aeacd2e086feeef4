"""What rules find in an image of a style, and whether it shows what its caption says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import UInt8

from jarilab.captions.scenes import COLOURS, Digits, Plan, Scenes, World
from jarilab.captions.styles import Style
from jarilab.shapes import Bool, Float, Int, Tensor

INK = 0.3  # of full brightness: what a rule calls drawn
LEAST = 8  # pixels of ink, else nothing is drawn: the thinnest digits have a dozen
GLYPH, FRAME = (
    20,
    24,
)  # pixels of the longer side of a digit as a judge sees it, and of what is around it


def glyphs(style: Style, images: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B N 24 24"]:
    """The digits of images of this style as a judge sees them: grey, all of one size, in the middle of a frame.

    An image or square of a row without ink is empty here too.
    """
    flat, inked = _squares(style, images).flatten(0, 1), drawn(style, images).flatten()
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
    return found.unflatten(0, (len(images), -1))


def drawn(style: Style, images: UInt8[Tensor, "B 3 H W"]) -> Bool[Tensor, "B N"]:
    """Whether there is anything to read where the digits stand: a few pixels of ink, in each square of a row."""
    return (_squares(style, images) > INK).sum((2, 3)) >= LEAST


def _squares(style: Style, images: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B N h w"]:
    """Where the digits stand, in grey."""
    return (images.amax(1).float() / 255).unflatten(2, (len(style.digits), -1)).movedim(2, 1)


def attributes(style: Style, images: UInt8[Tensor, "B 3 H W"]) -> dict[str, Int[Tensor, " B"]]:
    """What rules on pixels find of an image's one digit, as numbers of words; -1 in an image without ink.

    Colour by the direction of the mean colour of the ink, size by the longer side of the box around it, place by its
    centre of mass. Nothing in a style whose words are digits alone.
    """
    if len(style.parts) == len(style.digits):
        return {}
    pixels = images.float() / 255
    ink = pixels.amax(1) > INK
    some = drawn(style, images).any(1)
    weight = (pixels.amax(1) * ink).clamp_min(1e-9)
    mass = weight.sum((1, 2))
    palette = torch.nn.functional.normalize(
        torch.tensor([COLOURS[name] for name in style.colours]).float(), dim=-1
    )
    colour = ((pixels * ink.unsqueeze(1)).sum((2, 3)) @ palette.T).argmax(-1)
    rows, columns = torch.arange(style.height) + 0.5, torch.arange(style.width) + 0.5
    down = (weight.sum(2) @ rows) / mass >= style.height / 2
    right = (weight.sum(1) @ columns) / mass >= style.width / 2
    side = torch.maximum(_length(ink.any(1)), _length(ink.any(2)))
    limits = [
        (low[1] + high[0]) / 2 for low, high in zip(style.sides, style.sides[1:], strict=False)
    ]
    size = torch.bucketize(side.float(), torch.tensor(limits))
    found = {"size": size, "colour": colour, "place": 2 * down.long() + right.long()}
    return {name: value.masked_fill(~some, -1) for name, value in found.items()}


def worded(
    style: Style, images: UInt8[Tensor, "B 3 H W"], digits: Int[Tensor, "B N"]
) -> list[str | None]:
    """What the images show, as captions of this style, with a dash for a square of a row that is empty: "one - five";
    None for an image without ink, of which no word is right. digits: what a judge reads in them."""
    seen_BN = drawn(style, images)
    digits = digits.masked_fill(~seen_BN, -1)
    found = attributes(style, images)
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
    style: Style,
    values: Int[Tensor, "B P"],
    images: UInt8[Tensor, "B 3 H W"],
    digits: Int[Tensor, "B N"],
) -> dict[str, Float[Tensor, " B"]]:
    """For each image, whether it shows what the words say: `digit` (the share of them), each attribute, and
    `exact_match`, all of it. digits: what a judge reads in the images; where nothing is drawn, all are wrong."""
    right_BN = (values[:, list(style.digits)] == digits) & drawn(style, images)
    names: Sequence[str] = [name for name, _ in style.parts]
    found = {
        name: (value == values[:, names.index(name)])
        for name, value in attributes(style, images).items()
    }
    exact = torch.stack([right_BN.all(1), *found.values()]).all(0)
    return {"exact_match": exact.float(), "digit": right_BN.float().mean(1)} | {
        n: v.float() for n, v in found.items()
    }
