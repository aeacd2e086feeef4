"""Images, as the page shows them: their pixels, the patches over them, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import UInt8
from torch.nn import functional

from jarilab.boxes import Detected, to_xyxy
from jarilab.errors import UserError
from jarilab.explorer import payload
from jarilab.explorer.kinds import Kind
from jarilab.patches import Images
from jarilab.shapes import Float, Tensor
from jarilab.tasks.classification import ImageTask
from jarilab.training.answering import Answered, grid

LARGEST = 320
"""Pixels along a side of an image that is shown."""
NOTHING = "nothing"


class OfImages(Kind[ImageTask]):
    """Runs that say what is in an image."""

    @property
    def vocabulary(self) -> str:
        return "\n".join(self.task.classes)

    def check_length(self, model: Any, read: Any, most: int) -> None:
        length = model.places(self.task.sources([read])).length
        if length > most:
            raise UserError(
                f"expected at most {most} patches, got {length}; look at a smaller image"
            )

    def sides(
        self, model: Any, read: Any, said: Answered, outputs: Any
    ) -> dict[str, dict[str, Any]]:
        source = {"tokens": said.source, "picture": image_of(model, said.inputs[0], read.pixels)}
        if not said.target:  # a class is said of the whole image
            return {"source": source}
        boxes = {"boxes": boxes_of(outputs)} if isinstance(outputs, Detected) else {}
        return {"source": source, "target": {"tokens": said.target, **boxes}}

    def written(self, said: Answered, scores: Float[Tensor, "L V"]) -> list[int]:
        return said.written

    def show(self, numbers: Sequence[int]) -> list[str]:
        """The names of classes, and of nothing."""
        classes = self.task.classes
        return [NOTHING if number == len(classes) else classes[number] for number in numbers]

    def expected(self, line: str) -> str | None:
        """What should be said, written the same way."""
        expected, task = self.task.expected(line), self.task
        if expected is None or not task.finds or not expected:
            return expected
        order = {name: number for number, name in enumerate(task.classes)}
        return ", ".join(sorted(expected.split(", "), key=lambda name: order.get(name, len(order))))


def image_of(model: Any, images: Images, pixels: UInt8[Tensor, "C H W"]) -> dict[str, Any]:
    """The pixels, and where the patches lie on them.

    first: the number of tokens before the first patch. height, width: of the image, in patches; less than rows and
    columns where padding was added. pool: what a class is read from, `mean` of the patches, `class` token, or null.
    """
    positions = model.places(images)
    first, rows, columns = grid(model, positions)
    extent = (rows, columns)
    if positions.extent is not None and positions.extent.shape[-1] == 2:
        sides = positions.extent.reshape(-1, 2)[0].tolist()
        extent = tuple(
            side if count - 1 < side <= count else count
            for side, count in zip(sides, (rows, columns), strict=True)
        )
    return {
        "pixels": shown(pixels),
        "rows": rows,
        "columns": columns,
        "height": extent[0],
        "width": extent[1],
        "first": first,
        "pool": getattr(model, "pool", None),
    }


def boxes_of(outputs: Detected) -> list[list[float]]:
    """Left, top, right and bottom of each query's box, as shares of the image."""
    return to_xyxy(outputs.boxes[-1][0].double()).clamp(0, 1).tolist()


def shown(pixels: UInt8[Tensor, "C H W"]) -> dict[str, Any]:
    """Its pixels as the page draws them, row by row."""
    return payload.block(_small(pixels).permute(1, 2, 0), "uint8")


def _small(pixels: UInt8[Tensor, "C H W"]) -> UInt8[Tensor, "C _ _"]:
    """At most `LARGEST` pixels along a side."""
    factor = max(pixels.shape[1:]) / LARGEST
    if factor <= 1:
        return pixels
    size = [max(1, round(side / factor)) for side in pixels.shape[1:]]
    smaller = functional.interpolate(
        pixels.unsqueeze(0).float(), size, mode="bilinear", antialias=True
    )
    return smaller[0].round().clamp(0, 255).to(pixels.dtype)
