"""Pictures, as the page shows them: their pixels, the patches over them, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import UInt8
from torch.nn import functional

from jari.boxes import Detected, corners
from jari.errors import UserError
from jari.explorer import payload
from jari.patches import Pictures
from jari.shapes import Tensor
from jari.tasks.pictures import PictureTask
from jari.training.answering import Answered, answered, grid

LARGEST = 320
"""Pixels along a side of a picture that is shown."""
NOTHING = "nothing"


def answered_of(model: Any, task: PictureTask, read: Any, most: int) -> Answered:
    """What the model says of a picture. Raises UserError for more than `most` tokens, before the model runs."""
    length = model.places(task.sources([read])).length
    if length > most:
        raise UserError(f"expected at most {most} patches, got {length}; look at a smaller picture")
    return answered(model, task, read)


def expected_of(task: PictureTask, line: str) -> str | None:
    """What should be said, written the same way."""
    expected = task.expected(line)
    if expected is None or not task.finds or not expected:
        return expected
    order = {name: number for number, name in enumerate(task.classes)}
    return ", ".join(sorted(expected.split(", "), key=lambda name: order.get(name, len(order))))


def names_of(task: PictureTask, numbers: Sequence[int]) -> list[str]:
    """The names of classes, and of nothing."""
    return [NOTHING if number == len(task.classes) else task.classes[number] for number in numbers]


def picture_of(model: Any, pictures: Pictures, pixels: UInt8[Tensor, "C H W"]) -> dict[str, Any]:
    """The pixels, and where the patches lie on them.

    first: the number of tokens before the first patch. height, width: of the picture, in patches; less than rows and
    columns where padding was added. pool: what a class is read from, `mean` of the patches, `class` token, or null.
    """
    positions = model.places(pictures)
    first, rows, columns = grid(model, positions)
    extent = (rows, columns)
    if positions.extent is not None and positions.extent.shape[-1] == 2:
        sides = positions.extent.reshape(-1, 2)[0].tolist()
        extent = tuple(
            side if count - 1 < side <= count else count for side, count in zip(sides, (rows, columns), strict=True)
        )
    small = _small(pixels)
    return {
        "pixels": payload.block(small.permute(1, 2, 0), "uint8"),
        "rows": rows,
        "columns": columns,
        "height": extent[0],
        "width": extent[1],
        "first": first,
        "pool": getattr(model, "pool", None),
    }


def boxes_of(outputs: Detected) -> list[list[float]]:
    """Left, top, right and bottom of each query's box, as shares of the picture."""
    return corners(outputs.boxes[-1][0].double()).clamp(0, 1).tolist()


def _small(pixels: UInt8[Tensor, "C H W"]) -> UInt8[Tensor, "C _ _"]:
    """At most `LARGEST` pixels along a side."""
    factor = max(pixels.shape[1:]) / LARGEST
    if factor <= 1:
        return pixels
    size = [max(1, round(side / factor)) for side in pixels.shape[1:]]
    smaller = functional.interpolate(pixels.unsqueeze(0).float(), size, mode="bilinear", antialias=True)
    return smaller[0].round().clamp(0, 255).to(pixels.dtype)
