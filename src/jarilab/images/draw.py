"""Images for people: grids of them, and boxes with words on one."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    if not images or columns < 1:
        raise UserError(
            f"expected images and a column or more; got {len(images)} in {columns}; give some"
        )
    if captions is not None and len(captions) != len(images):
        raise UserError(
            f"expected a caption for each of {len(images)} images; got {len(captions)}; give as many"
        )
    cells = _cells(images, columns, bool(captions))
    library: Any = needs("PIL.Image", "vision")
    drawing: Any = needs("PIL.ImageDraw", "vision")
    sheet = library.new("RGB", cells.sheet, "white")
    pen, font = drawing.Draw(sheet), _font(captions or ())
    for number, image in enumerate(images):
        left, top = cells.corner(number)
        sheet.paste(_enlarged(image, cells.factor), (left, top))
        if captions:
            text = cut(captions[number], cells.width, font)
            pen.text((left, top + cells.height + 2), text, fill="black", font=font)
    return sheet


@dataclass(frozen=True)
class _Cells:
    """Where the images of a grid stand. factor: what they are enlarged by. height, width: of an enlarged one.
    across, down: from one to the next. sheet: width and height of all."""

    columns: int
    factor: int
    height: int
    width: int
    across: int
    down: int
    sheet: tuple[int, int]

    def corner(self, number: int) -> tuple[int, int]:
        """Left and top of an image."""
        row, column = divmod(number, self.columns)
        return column * self.across + _GAP, row * self.down + _GAP


def _cells(images: Sequence[UInt8[Tensor, "_ _ _"]], columns: int, with_captions: bool) -> _Cells:
    height = max(image.shape[1] for image in images)
    width = max(image.shape[2] for image in images)
    factor = math.ceil(_CELL / max(height, width))
    height, width = factor * height, factor * width
    across, down = width + _GAP, height + _GAP
    if with_captions:
        down += _TEXT + _GAP
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    sheet = (across * columns + _GAP, down * rows + _GAP)
    if (pixels := math.prod(sheet)) > MOST_PIXELS:
        raise UserError(
            f"expected a grid of at most {MOST_PIXELS:,} pixels; got {pixels:,}; give fewer or smaller ones"
        )
    return _Cells(columns, factor, height, width, across, down, sheet)


def boxes(image: UInt8[Tensor, "C H W"], found: Sequence[tuple[Box, str]]) -> Any:
    """An image with boxes, left, top, right, bottom in its pixels, each under its text, as a Pillow image.

    The colour goes by the text up to its last space, so that `cat 98%` and `cat 51%` have the same. Small images are
    enlarged by a whole number. Raises UserError for boxes that are not finite or inverted.
    """
    drawing: Any = needs("PIL.ImageDraw", "vision")
    for box, text in found:
        left, top, right, bottom = box
        if not all(map(math.isfinite, box)) or right < left or bottom < top:
            raise UserError(
                f"expected a box as left, top, right, bottom; got {box} of {_plain(text)!r}; mend it"
            )
    factor = max(1, _SHEET // max(image.shape[1:]))
    sheet = _enlarged(image, factor).convert("RGB")
    texts = [text for _, text in found]
    pen, font = drawing.Draw(sheet), _font(texts)
    colours = _colours(texts)
    on_sheet = [_on_sheet(box, factor, sheet.size) for box, _ in found]
    for corners, colour in zip(on_sheet, colours, strict=True):
        for line, width in (("black", 4), ("white", 3), (colour, 2)):
            pen.rectangle(corners, outline=line, width=width)
    # Over all boxes, so that no line crosses a word.
    for corners, text, colour in zip(on_sheet, texts, colours, strict=True):
        _tag(pen, sheet.size, corners, text, colour, font)
    return sheet


def _colours(texts: Sequence[str]) -> list[str]:
    """A colour for each text: the same for equal ones, but for what stands behind the last space."""
    kinds = [text.rpartition(" ")[0] or text for text in texts]
    order = list(dict.fromkeys(kinds))
    return [COLOURS[order.index(kind) % len(COLOURS)] for kind in kinds]


def _on_sheet(box: Box, factor: int, size: tuple[int, int]) -> list[float]:
    """A box on the enlarged image, cut at its rim."""
    corners = []
    for place, end in zip(box, (*size, *size), strict=True):
        inside = min(max(factor * place, 0), end - 1)
        corners.append(float(inside))
    return corners


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
    red, green, blue = (_linear(part) for part in bytes.fromhex(colour[1:]))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    beside_black = (luminance + 0.05) / 0.05
    beside_white = 1.05 / (luminance + 0.05)
    return "black" if beside_black > beside_white else "white"


def _linear(byte: int) -> float:
    """A channel of sRGB as light, from 0 to 1."""
    share = byte / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def _tag(
    pen: Any, size: tuple[int, int], corners: list[float], text: str, colour: str, font: Any
) -> None:
    """The text on a strip of the colour: above the box where there is room, else inside."""
    text = cut(text, size[0] - 6, font)
    if not text:
        return
    wide, high = math.ceil(font.getlength(text)) + 6, _TEXT + 5
    furthest, lowest = max(0, size[0] - wide), max(0, size[1] - high)
    left = min(max(0, int(corners[0])), furthest)
    rim = int(corners[1])
    top = rim - high if rim >= high else min(rim, lowest)
    pen.rectangle((left, top, left + wide - 1, top + high - 1), fill=colour)
    pen.text((left + 3, top + 1), text, fill=ink(colour), font=font)


def _enlarged(image: UInt8[Tensor, "C H W"], factor: int) -> Any:
    library: Any = needs("PIL.Image", "vision")
    pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
    drawn = library.fromarray(pixels.contiguous().numpy())
    return drawn.resize((drawn.width * factor, drawn.height * factor), library.Resampling.NEAREST)


def _plain(text: str) -> str:
    """Text on one line that a font can draw: what is not printable, or half a character, becomes a box."""
    box = "\N{REPLACEMENT CHARACTER}"
    return "".join(c if c.isprintable() else box for c in text[:_LONGEST])


def _font(texts: Iterable[str]) -> Any:
    """Pillow's own, which has ASCII alone; for other letters, such as Korean, one of the system's, if any."""
    library: Any = needs("PIL.ImageFont", "vision")
    if not all(_plain(text).isascii() for text in texts):
        for name in _FONTS:
            with contextlib.suppress(OSError):
                return library.truetype(name, _TEXT)
    return library.load_default(_TEXT)
