"""Images of single handwritten digits: scikit-learn's scans, or MNIST's from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.data.images import idx

Part = Literal["training", "held_out"]


@dataclass(frozen=True, eq=False)
class DigitImages:
    """Images of single digits. pixels: `(N, h, w)` float32, 0 for background and 1 for ink. labels: `(N,)`.

    ink: `(N, 4)`, the smallest box around each digit: left, top, right, bottom.
    """

    pixels: Float[Tensor, "N h w"]
    labels: Int[Tensor, " N"]
    ink: Float[Tensor, "N 4"]

    @property
    def extent(self) -> Float[Tensor, "N 2"]:
        """Return width and height of the box around each digit."""
        low, high = self.ink.split(2, 1)
        return high - low

    def scaled(
        self, sources: Int[Tensor, "B N"], sides: Float[Tensor, "B N"], *, least: float
    ) -> Float[Tensor, "B N 2"]:
        """Return width and height in pixels if the longer side is `sides`, and at least `least`."""
        extent = self.extent[sources]
        longer = extent.amax(-1, keepdim=True)
        scaled = extent / longer * sides.unsqueeze(-1)
        return scaled.round().clamp_min(least)

    @staticmethod
    def load(folder: str | None, part: Part) -> DigitImages:
        """Read MNIST from a folder, or scikit-learn's scans without one. Raises UserError."""
        return DigitImages.mnist(Path(folder), part) if folder else DigitImages.scans(part)

    @staticmethod
    def scans(part: Part) -> DigitImages:
        """Read scikit-learn's 1,797 scans of 8 x 8 pixels. The last fifth is held out."""
        pixels, labels = scans()
        start = len(labels) * 4 // 5
        chosen = slice(None, start) if part == "training" else slice(start, None)
        return DigitImages.of(pixels[chosen], labels[chosen])

    @staticmethod
    def mnist(folder: Path, part: Part) -> DigitImages:
        """Read MNIST from a folder of idx files. Its 10,000 test digits are held out.

        Raises UserError for missing or damaged files.
        """
        path = idx.find(folder, part == "held_out") if folder.is_dir() else None
        if path is None or path.name.startswith("train") != (part == "training"):
            raise UserError(
                f"{folder}: expected a folder with MNIST's four idx files; got no such; name another"
            )
        pixels, labels = idx.read_pair(path)
        return DigitImages.of(pixels.float() / 255, labels.long())

    @staticmethod
    def of(
        pixels: Float[Tensor, "N h w"], labels: Int[Tensor, " N"], *, threshold: float = 0.25
    ) -> DigitImages:
        """Keep images with pixels brighter than `threshold`, which count as ink."""
        bright = pixels > threshold
        has_ink = bright.any(-1).any(-1)
        pixels, labels = pixels[has_ink], labels[has_ink]
        bright = bright[has_ink]
        left, right = ink_span(bright.any(1))
        top, bottom = ink_span(bright.any(2))
        ink = torch.stack((left, top, right, bottom), 1).float()
        return DigitImages(pixels, labels, ink)


def ink_span(ink: Bool[Tensor, "N L"]) -> tuple[Tensor, Tensor]:
    """Return the first True of each row and one past the last."""
    number = ink.long()
    behind = number.flip(1).argmax(1)
    return number.argmax(1), ink.shape[1] - behind


@cache
def scans() -> tuple[Float[Tensor, "N 8 8"], Int[Tensor, " N"]]:
    """Return scikit-learn's scans, 1 for ink, and their digits. Raises UserError without scikit-learn."""
    read = import_optional("sklearn.datasets", "vision").load_digits()
    pixels = torch.from_numpy(read["images"]).float() / 16  # values from 0 to 16
    return pixels, torch.from_numpy(read["target"]).long()
