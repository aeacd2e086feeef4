"""Attributes of an image found by rules on pixels, and whether the image matches its caption.

A classifier reads the digits (`digit_classifier.py`). This module locates and cuts them out for it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import UInt8
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.data.captions.digit_images import DigitImages, ink_span
from jarilab.data.captions.scenes import COLOURS, Plan, Scenes, SceneWorld
from jarilab.data.captions.styles import Style

INK_THRESHOLD = 0.3  # fraction of full brightness
MIN_INK_PIXELS = 8  # the thinnest digits have a dozen
GLYPH = 20  # longer side of a digit for the classifier, in pixels
FRAME = 24  # side of the frame around it, in pixels

Pixels = UInt8[Tensor, "B 3 H W"]

_WORLD = SceneWorld(canvas=FRAME, most=1, smallest=GLYPH, largest=GLYPH)


def glyphs(style: Style, images: Pixels) -> Float[Tensor, "B N 24 24"]:
    """Cut out the digits of images for the classifier: grey, one size, centred in a frame.

    An image or square of a row without ink is empty here too.
    """
    squares = _squares(style, images).flatten(0, 1)
    has_ink = drawn(style, images).flatten()
    frames = torch.zeros(len(squares), FRAME, FRAME)
    if has_ink.any():
        frames[has_ink] = _framed(squares[has_ink])
    return frames.unflatten(0, (len(images), -1))


def _framed(squares: Float[Tensor, "M h w"]) -> Float[Tensor, "M 24 24"]:
    """Enlarge the ink of each square to GLYPH pixels, centred in a frame, drawn as a scene of one digit."""
    labels = torch.zeros(len(squares), dtype=torch.long)  # which digit it is does not matter here
    digits = DigitImages.of(squares, labels, threshold=INK_THRESHOLD)
    sources = torch.arange(len(digits.labels)).unsqueeze(1)
    extent = digits.scaled(sources, torch.full(sources.shape, float(GLYPH)), least=1.0)
    corner = ((FRAME - extent) / 2).floor()
    boxes = torch.cat((corner, corner + extent), -1)
    zero = torch.zeros_like(sources)
    plan = Plan(zero == 0, sources, zero, boxes, zero)
    scenes = Scenes(_WORLD, digits, seed=0).draw(plan)
    return scenes[:, 0].float() / 255


def drawn(style: Style, images: Pixels) -> Bool[Tensor, "B N"]:
    """Whether each square of a row has enough ink to read a digit."""
    ink = _squares(style, images) > INK_THRESHOLD
    return ink.sum((2, 3)) >= MIN_INK_PIXELS


def _squares(style: Style, images: Pixels) -> Float[Tensor, "B N h w"]:
    """Return the squares with digits, in grey."""
    grey_BHW = images.amax(1).float() / 255
    count = len(style.digits)
    return grey_BHW.unflatten(2, (count, -1)).movedim(2, 1)


def attributes(style: Style, images: Pixels) -> dict[str, Int[Tensor, " B"]]:
    """Return the attributes of each image's single digit, as word indices; -1 for an image without ink.

    Colour by the direction of the mean colour of the ink, size by the longer side of the box around it, place by its
    centre of mass. Nothing in a style whose words are digits alone.
    """
    if len(style.parts) == len(style.digits):
        return {}
    pixels_BCHW = images.float() / 255
    grey_BHW = pixels_BCHW.amax(1)
    ink_BHW = grey_BHW > INK_THRESHOLD
    values = {
        "size": _size(style, ink_BHW),
        "colour": _colour(style, pixels_BCHW, ink_BHW),
        "place": _corner(style, grey_BHW * ink_BHW),
    }
    empty_B = ~drawn(style, images).any(1)
    return {name: value_B.masked_fill(empty_B, -1) for name, value_B in values.items()}


def _size(style: Style, ink_BHW: Bool[Tensor, "B H W"]) -> Int[Tensor, " B"]:
    """Return the size by the longer side of the ink's box; limits lie halfway between two sizes."""
    limits = []
    for (_, largest), (smallest, _) in pairwise(style.sides):
        limits.append((largest + smallest) / 2)
    width_B = _length(ink_BHW.any(1))
    height_B = _length(ink_BHW.any(2))
    side_B = torch.maximum(width_B, height_B)
    return torch.bucketize(side_B.float(), torch.tensor(limits))


def _colour(style: Style, pixels_BCHW: Tensor, ink_BHW: Tensor) -> Int[Tensor, " B"]:
    """Return the colour by the direction of the ink's mean colour."""
    # The direction alone: the length depends on the amount and brightness of the ink.
    colours = [COLOURS[name] for name in style.colours]
    palette_KC = functional.normalize(torch.tensor(colours).float(), dim=-1)
    inked_BCHW = pixels_BCHW * ink_BHW.unsqueeze(1)
    total_BC = inked_BCHW.sum((2, 3))
    likeness_BK = total_BC @ palette_KC.T
    return likeness_BK.argmax(-1)


def _corner(style: Style, weight_BHW: Float[Tensor, "B H W"]) -> Int[Tensor, " B"]:
    """Return the corner by the centre of mass: 0 top left, 1 top right, 2 bottom left, 3 bottom right."""
    weight_BHW = weight_BHW.clamp_min(1e-9)  # an empty image has no mass to divide by
    mass_B = weight_BHW.sum((1, 2))
    row_H = torch.arange(style.height) + 0.5
    column_W = torch.arange(style.width) + 0.5
    row_B = (weight_BHW.sum(2) @ row_H) / mass_B
    column_B = (weight_BHW.sum(1) @ column_W) / mass_B
    is_low = row_B >= style.height / 2
    is_right = column_B >= style.width / 2
    return 2 * is_low.long() + is_right.long()


def _length(ink: Bool[Tensor, "B L"]) -> Int[Tensor, " B"]:
    """Return the length from the first to the last True of each row."""
    first, end = ink_span(ink)
    return end - first


def describe_images(style: Style, images: Pixels, digits: Int[Tensor, "B N"]) -> list[str | None]:
    """Describe images as captions of this style, with a dash for an empty square: "one - five".

    None for an image without ink. digits: as read by a classifier.
    """
    drawn_BN = drawn(style, images)
    digits = digits.masked_fill(~drawn_BN, -1)
    words = attributes(style, images)
    for number, part in enumerate(style.digits):
        words[style.names[part]] = digits[:, number]
    columns = [words[name] for name in style.names]
    values_BP = torch.stack(columns, 1)
    anything_B = drawn_BN.any(1).tolist()
    captions = []
    for values_P, anything in zip(values_BP, anything_B, strict=True):
        captions.append(style.caption(values_P) if anything else None)
    return captions


def matches_caption(
    style: Style,
    values: Int[Tensor, "B P"],
    images: Pixels,
    digits: Int[Tensor, "B N"],
) -> dict[str, Float[Tensor, " B"]]:
    """For each image, whether it matches its caption.

    Returns `digit` (fraction of right digits), each attribute (0 or 1), and `exact_match` (1 if all are right). values:
    word indices of the captions. digits: as read by a classifier; a square without ink is wrong.
    """
    captioned_BN = values[:, list(style.digits)]
    right_BN = (captioned_BN == digits) & drawn(style, images)
    exact_B = right_BN.all(1)
    shares = {"exact_match": exact_B, "digit": right_BN.float().mean(1)}
    for name, value_B in attributes(style, images).items():
        captioned_B = values[:, style.names.index(name)]
        right_B = value_B == captioned_B
        exact_B = exact_B & right_B
        shares[name] = right_B.float()
    shares["exact_match"] = exact_B.float()
    return shares
