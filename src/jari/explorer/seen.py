"""Pictures, as the page shows them: their pixels, the patches over them, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import UInt8
from torch.nn import functional

from jari.boxes import Detected, corners
from jari.errors import UserError
from jari.explorer import payload
from jari.inspect.inputs import scores_of
from jari.patches import Pictures, patch_names
from jari.positions import Positions
from jari.shapes import Tensor
from jari.tasks.pictures import PictureTask
from jari.training.answering import Answered, answered, seen

LARGEST = 320
"""Pixels along a side of a picture that is shown."""
SURE = 0.5
"""The probability from which a detector is said to have found something."""
NOTHING = "nothing"


def answered_of(model: Any, task: PictureTask, read: Any, most: int) -> Answered:
    """What the model says of a picture: its class; or, of each object query, the class or nothing, which comes after
    the classes. Patches are named by row and column whatever the encoding sees. Raises UserError for more than `most`
    tokens."""
    positions = model.places(task.sources([read]))
    if positions.length > most:
        raise UserError(f"expected at most {most} patches, got {positions.length}; look at a smaller picture")
    said = answered(model, task, read)
    first, rows, columns = _grid(model, positions)
    names = patch_names(positions)[:first] + [f"{row},{column}" for row in range(rows) for column in range(columns)]
    if not task.finds:
        return replace(said, source=names)
    with torch.no_grad():
        numbers = scores_of(model(*said.inputs))[0].argmax(-1).tolist()
    return replace(said, source=names, target=[f"q{number}" for number in range(len(numbers))], written=numbers)


def said_of(model: Any, task: PictureTask, read: Any) -> str:
    """The class of a picture, or those of all that was found in it, in their own order."""
    (said,) = seen(model, task, [read])
    if not task.finds:
        return task.write([said[0].number])
    return task.write(sorted(one.number for one in said if one.probability >= SURE))


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
    first, rows, columns = _grid(model, positions)
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


def _grid(model: Any, positions: Positions) -> tuple[int, int, int]:
    """How many tokens have no place, and the rows and columns of those that have."""
    first = 0
    if positions.placeless is not None:
        first = int(positions.placeless.reshape(-1, positions.length)[0].sum())
    coordinates = positions.coordinates.reshape(-1, positions.length, len(positions.axes))[0, first:]
    if coordinates.shape[1] == 2:
        rows, columns = (len(side.unique()) for side in coordinates.unbind(1))
    else:
        rows, columns = model.grid
    return first, rows, columns


def _small(pixels: UInt8[Tensor, "C H W"]) -> UInt8[Tensor, "C _ _"]:
    """At most `LARGEST` pixels along a side."""
    factor = max(pixels.shape[1:]) / LARGEST
    if factor <= 1:
        return pixels
    size = [max(1, round(side / factor)) for side in pixels.shape[1:]]
    smaller = functional.interpolate(pixels.unsqueeze(0).float(), size, mode="bilinear", antialias=True)
    return smaller[0].round().clamp(0, 255).to(pixels.dtype)
