"""Drawing of image grids, and of labelled boxes on an image."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from jaxtyping import UInt8

from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.data.images.image_files import MAX_PIXELS

COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
"""Colour-blind-safe colours (Okabe and Ito 2008) without black."""

Box = tuple[float, float, float, float]

_TEXT = 14
_GAP = 6
_CELL = 72  # minimal longer side of an image in a grid, in pixels
_SHEET = 480  # minimal longer side of an image with boxes, in pixels
# Fonts with Korean letters on Linux, Windows and macOS, then one with many other scripts.
_FONTS = (
    "NanumGothic.ttf", "NotoSansKR-Regular.ttf", "NotoSansCJK-Regular.ttc", "malgun.ttf", "AppleSDGothicNeo.ttc",
    "AppleGothic.ttf", "DejaVuSans.ttf",
)  # fmt: skip
_MAX_CHARACTERS = 200


def grid(
    images: Sequence[UInt8[Tensor, "_ _ _"]], columns: int, captions: Sequence[str] | None = None
) -> Any:
    """Draw images in rows of `columns`, each above its caption, as a Pillow image.

    Small images are enlarged by an integer factor. Captions are cut to fit. Raises UserError for no or too many images.
    """
    if not images or columns < 1:
        raise UserError(
            f"expected images and a column or more; got {len(images)} in {columns}; give some"
        )
    if captions is not None and len(captions) != len(images):
        raise UserError(
            f"expected a caption for each of {len(images)} images; got {len(captions)}; give as many"
        )
    height = max(image.shape[1] for image in images)
    width = max(image.shape[2] for image in images)
    factor = math.ceil(_CELL / max(height, width))
    height, width = factor * height, factor * width
    # The steps from an image to the next one.
    across, down = width + _GAP, height + _GAP + (_TEXT + _GAP if captions else 0)
    columns = min(columns, len(images))
    size = across * columns + _GAP, down * math.ceil(len(images) / columns) + _GAP
    if math.prod(size) > MAX_PIXELS:
        raise UserError(
            f"expected a grid of at most {MAX_PIXELS:,} pixels; got {math.prod(size):,}; give fewer or smaller ones"
        )
    library: Any = import_optional("PIL.Image", "vision")
    drawing: Any = import_optional("PIL.ImageDraw", "vision")
    sheet = library.new("RGB", size, "white")
    pen = drawing.Draw(sheet)
    font = _font(captions or ())
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        left, top = column * across + _GAP, row * down + _GAP
        sheet.paste(_enlarged(image, factor), (left, top))
        if captions:
            text = cut(captions[number], width, font)
            pen.text((left, top + height + 2), text, fill="black", font=font)
    return sheet


def boxes(image: UInt8[Tensor, "C H W"], labelled_boxes: Sequence[tuple[Box, str]]) -> Any:
    """Draw an image with boxes (left, top, right, bottom in pixels), each with its text, as a Pillow image.

    The text up to its last space decides the colour, so `cat 98%` and `cat 51%` share one. Small images are enlarged by
    an integer factor. Raises UserError for boxes that are not finite or inverted.
    """
    drawing: Any = import_optional("PIL.ImageDraw", "vision")
    for box, text in labelled_boxes:
        left, top, right, bottom = box
        finite = all(map(math.isfinite, box))
        if not finite or right < left or bottom < top:
            raise UserError(
                f"expected a box as left, top, right, bottom; got {box} of {_plain(text)!r}; mend it"
            )
    factor = max(1, _SHEET // max(image.shape[1:]))
    sheet = _enlarged(image, factor).convert("RGB")
    texts = [text for _, text in labelled_boxes]
    pen = drawing.Draw(sheet)
    font = _font(texts)
    colours = _colours(texts)
    on_sheet = [_on_sheet(box, factor, sheet.size) for box, _ in labelled_boxes]
    for corners, colour in zip(on_sheet, colours, strict=True):
        # Three outlines, of which one contrasts with any image.
        for line, width in (("black", 4), ("white", 3), (colour, 2)):
            pen.rectangle(corners, outline=line, width=width)
    # Texts are drawn last, so no line crosses a word.
    for corners, text, colour in zip(on_sheet, texts, colours, strict=True):
        _tag(pen, sheet.size, corners, text, colour, font)
    return sheet


def _colours(texts: Sequence[str]) -> list[str]:
    """Return a colour for each text, equal if the texts agree up to the last space."""
    kinds = [text.rpartition(" ")[0] or text for text in texts]
    different = dict.fromkeys(kinds)
    colour_of = dict(zip(different, itertools.cycle(COLOURS), strict=False))
    return [colour_of[kind] for kind in kinds]


def _on_sheet(box: Box, factor: int, size: tuple[int, int]) -> list[float]:
    """Return a box on the enlarged image, cut at its edge."""
    corners = []
    for place, end in zip(box, (*size, *size), strict=True):
        inside = min(max(factor * place, 0), end - 1)
        corners.append(float(inside))
    return corners


def png(image: Any) -> bytes:
    """Return a Pillow image as PNG bytes."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def cut(text: str, width: int, font: Any) -> str:
    """Return a text on one line, cut with ... to fit into `width` pixels."""
    text = _plain(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..." if text else ""


def ink(colour: str) -> str:
    """Return black or white, whichever contrasts more with a colour (WCAG 2.2, relative luminance)."""
    red, green, blue = (_linear(part) for part in bytes.fromhex(colour[1:]))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    beside_black = (luminance + 0.05) / 0.05
    beside_white = 1.05 / (luminance + 0.05)
    return "black" if beside_black > beside_white else "white"


def _linear(byte: int) -> float:
    """Return the linear light of an sRGB channel, from 0 to 1."""
    share = byte / 255
    if share <= 0.04045:
        return share / 12.92
    return ((share + 0.055) / 1.055) ** 2.4


def _tag(
    pen: Any, size: tuple[int, int], corners: list[float], text: str, colour: str, font: Any
) -> None:
    """Draw the text on a coloured strip above the box, or inside it if there is no space above."""
    width, height = size
    text = cut(text, width - 6, font)
    if not text:
        return
    wide = math.ceil(font.getlength(text)) + 6
    high = _TEXT + 5
    furthest = max(0, width - wide)
    lowest = max(0, height - high)
    left = max(0, int(corners[0]))
    left = min(left, furthest)
    rim = int(corners[1])
    top = rim - high if rim >= high else min(rim, lowest)
    right, bottom = left + wide - 1, top + high - 1
    pen.rectangle((left, top, right, bottom), fill=colour)
    pen.text((left + 3, top + 1), text, fill=ink(colour), font=font)


def _enlarged(image: UInt8[Tensor, "C H W"], factor: int) -> Any:
    library: Any = import_optional("PIL.Image", "vision")
    grey = len(image) == 1
    pixels = image[0] if grey else image.permute(1, 2, 0)
    drawn = library.fromarray(pixels.contiguous().numpy())
    size = (drawn.width * factor, drawn.height * factor)
    return drawn.resize(size, library.Resampling.NEAREST)


def _plain(text: str) -> str:
    """Return a printable text: other characters become the replacement character."""
    box = "\N{REPLACEMENT CHARACTER}"
    letters = [letter if letter.isprintable() else box for letter in text[:_MAX_CHARACTERS]]
    return "".join(letters)


def _font(texts: Iterable[str]) -> Any:
    """Return Pillow's font for ASCII. For other letters, such as Korean, return a system font, if any."""
    library: Any = import_optional("PIL.ImageFont", "vision")
    if not all(_plain(text).isascii() for text in texts):
        for name in _FONTS:
            with contextlib.suppress(OSError):
                return library.truetype(name, _TEXT)
    return library.load_default(_TEXT)
