"""Images for people: grids of them, and boxes with words on one."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from jaxtyping import UInt8

from jarilab.errors import UserError, needs
from jarilab.images.files import MOST_PIXELS
from jarilab.shapes import Tensor

COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
"""Told apart by the colour-blind too (Okabe and Ito 2008), black left out."""

Box = tuple[float, float, float, float]

_TEXT = 14
_GAP = 6
_CELL = 72  # pixels that the longer side of an image takes in a grid, at least
_SHEET = 480  # and alone, under boxes
_FONTS = (
    "NanumGothic.ttf", "NotoSansKR-Regular.ttf", "NotoSansCJK-Regular.ttc", "malgun.ttf", "AppleSDGothicNeo.ttc",
    "AppleGothic.ttf", "DejaVuSans.ttf",
)  # fmt: skip
_LONGEST = 200  # characters of which any can be seen


def grid(
    images: Sequence[UInt8[Tensor, "_ _ _"]], columns: int, captions: Sequence[str] | None = None
) -> Any:
    """Images in rows of `columns`, each with its caption below, as a Pillow image. Small ones are enlarged by a whole
    number; captions are cut to their place. Raises UserError where there is nothing to draw, or far too much."""
    library: Any = needs("PIL.Image", "vision")
    drawing: Any = needs("PIL.ImageDraw", "vision")
    if not images or columns < 1:
        raise UserError(
            f"expected images and a column or more; got {len(images)} in {columns}; give some"
        )
    if captions is not None and len(captions) != len(images):
        raise UserError(
            f"expected a caption for each of {len(images)} images; got {len(captions)}; give as many"
        )
    height, width = (max(image.shape[side] for image in images) for side in (1, 2))
    factor = math.ceil(_CELL / max(height, width))
    columns = min(columns, len(images))
    across, down = factor * width + _GAP, factor * height + _GAP + (_TEXT + _GAP if captions else 0)
    rows = math.ceil(len(images) / columns)
    if (whole := (across * columns + _GAP) * (down * rows + _GAP)) > MOST_PIXELS:
        raise UserError(
            f"expected a grid of at most {MOST_PIXELS:,} pixels; got {whole:,}; give fewer or smaller ones"
        )
    sheet = library.new("RGB", (across * columns + _GAP, down * rows + _GAP), "white")
    pen, font = drawing.Draw(sheet), _font(captions or ())
    for number, image in enumerate(images):
        left, top = number % columns * across + _GAP, number // columns * down + _GAP
        sheet.paste(_enlarged(image, factor), (left, top))
        if captions:
            place = (left, top + factor * height + 2)
            pen.text(place, cut(captions[number], factor * width, font), fill="black", font=font)
    return sheet


def boxes(image: UInt8[Tensor, "C H W"], found: Sequence[tuple[Box, str]]) -> Any:
    """An image with boxes, left, top, right, bottom in its pixels, each under its text, as a Pillow image.

    The colour goes by the text up to its last space, so that `cat 98%` and `cat 51%` have the same. Small images are
    enlarged by a whole number. Raises UserError for boxes that are not finite or inverted.
    """
    drawing: Any = needs("PIL.ImageDraw", "vision")
    for box, text in found:
        if not all(map(math.isfinite, box)) or box[2] < box[0] or box[3] < box[1]:
            raise UserError(
                f"expected a box as left, top, right, bottom; got {box} of {_plain(text)!r}; mend it"
            )
    factor = max(1, _SHEET // max(image.shape[1:]))
    sheet = _enlarged(image, factor).convert("RGB")
    pen, font = drawing.Draw(sheet), _font([text for _, text in found])
    kinds = {
        kind: number for number, kind in enumerate(dict.fromkeys(_kind(text) for _, text in found))
    }
    tags = []
    for box, text in found:
        colour = COLOURS[kinds[_kind(text)] % len(COLOURS)]
        corners = [
            float(min(max(factor * x, 0), most - 1))
            for x, most in zip(box, sheet.size * 2, strict=True)
        ]
        for line, widths in (("black", 4), ("white", 3), (colour, 2)):
            pen.rectangle(corners, outline=line, width=widths)
        tags.append((corners, text, colour))
    for corners, text, colour in tags:  # over all boxes, so that no line crosses a word
        _tag(pen, sheet.size, corners, text, colour, font)
    return sheet


def png(image: Any) -> bytes:
    """A Pillow image as a file."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def cut(text: str, width: int, font: Any) -> str:
    """As much of a text as fits into so many pixels, on one line, with ... where some is gone."""
    text = _plain(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..." if text else ""


def ink(colour: str) -> str:
    """Black or white, whichever is told better from a colour (WCAG 2.2, relative luminance)."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    luminance = sum(
        weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"


def _tag(
    pen: Any, size: tuple[int, int], corners: list[float], text: str, colour: str, font: Any
) -> None:
    """The text on a strip of the colour: above the box where there is room, else inside."""
    text = cut(text, size[0] - 6, font)
    if not text:
        return
    wide, high = math.ceil(font.getlength(text)) + 6, _TEXT + 5
    left = min(max(0, int(corners[0])), max(0, size[0] - wide))
    top = int(corners[1]) - high
    top = top if top >= 0 else min(int(corners[1]), max(0, size[1] - high))
    pen.rectangle((left, top, left + wide - 1, top + high - 1), fill=colour)
    pen.text((left + 3, top + 1), text, fill=ink(colour), font=font)


def _enlarged(image: UInt8[Tensor, "C H W"], factor: int) -> Any:
    library: Any = needs("PIL.Image", "vision")
    pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
    drawn = library.fromarray(pixels.contiguous().numpy())
    return drawn.resize((drawn.width * factor, drawn.height * factor), library.Resampling.NEAREST)


def _plain(text: str) -> str:
    """Text on one line that a font can draw: what is not printable, or half a character, becomes a box."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:_LONGEST])


def _kind(text: str) -> str:
    return text.rpartition(" ")[0] or text


def _font(texts: Iterable[str]) -> Any:
    """Pillow's own, which has ASCII alone; for other letters, such as Korean, one of the system's, if any."""
    library: Any = needs("PIL.ImageFont", "vision")
    if not all(_plain(text).isascii() for text in texts):
        for name in _FONTS:
            with contextlib.suppress(OSError):
                return library.truetype(name, _TEXT)
    return library.load_default(_TEXT)
