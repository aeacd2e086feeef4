"""Checks of images before training: equal and nearly equal ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from torch.nn import functional

from jarilab.core.errors import printable
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.data.finding import Finding, overlap_severity, share

SIDE = 8
"""Cells of a thumbnail on each side."""
TOLERANCE = 3.0
"""Root mean square difference of two thumbnails up to which images are nearly equal, in levels of 255."""
MAX_IMAGES = 20_000
"""More images are not compared: the time grows with the square."""
_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """Small grey versions of images, `(N, SIDE * SIDE)`, and the names of the images."""

    cells: Float[Tensor, "N P"]
    names: Sequence[str]

    @staticmethod
    def of(images: Iterable[UInt8[Tensor, "C _ _"]], names: Sequence[str]) -> Thumbnails:
        """Average the cells of the first MAX_IMAGES images."""
        rows = []
        for image, _ in zip(images, names[:MAX_IMAGES], strict=False):
            grey = image.float().mean(0)[None, None]
            rows.append(functional.adaptive_avg_pool2d(grey, SIDE).flatten())
        return Thumbnails(torch.stack(rows), names[: len(rows)])


def find_alike(train: Thumbnails, held_out: Thumbnails) -> Iterator[Finding]:
    """Yield a finding if training images repeat an earlier one, or held-out images are training images too."""
    kinds = (
        ("repeats", "training images", "an earlier one", "they count several times", train),
        ("overlap", "held-out images", "a training image", "they make scores too good", held_out),
    )
    for topic, which, other, remedy, images in kinds:
        matches = list(_matches(images, train, before=images is train))
        if matches:
            row, column = matches[0]
            names = printable(f"{images.names[row]} and {train.names[column]}")
            count, total = len(matches), len(images.names)
            text = f"{share(count, total, which, 'equal')} {other}, or nearly so, such as {names}"
            severity = "warning" if images is train else overlap_severity(count, total)
            yield Finding(severity, topic, text, f"{remedy}; remove them", count, total)


def _matches(images: Thumbnails, known: Thumbnails, *, before: bool) -> Iterator[tuple[int, int]]:
    """Yield each image that is like a known one, and the first such one. before: only earlier ones count."""
    for start in range(0, len(images.names), _AT_ONCE):
        near_BN: Bool[Tensor, "B N"] = (
            torch.cdist(images.cells[start : start + _AT_ONCE], known.cells) <= TOLERANCE * SIDE
        )
        if before:
            near_BN = near_BN.tril(start - 1)
        for row in near_BN.any(1).nonzero().flatten().tolist():
            yield start + row, int(near_BN[row].int().argmax())
