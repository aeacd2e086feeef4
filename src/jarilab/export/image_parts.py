"""Models of images as one part, `model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import nn

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.export.parts import LONG, Exportable, Input, Pairs, Part, Run, by_definition
from jarilab.models.detector import STRIDE, Detector
from jarilab.models.vision import VisionTransformer
from jarilab.positions.patches import Images

ROWS = 2


class DetectorOutputs(nn.Module):
    """A detector whose outputs are the scores and boxes of its last layer. keep: pixels that are no padding."""

    def __init__(self, model: Detector):
        super().__init__()
        self.model = model

    def forward(
        self, pixels: Float[Tensor, "B C H W"], keep: Bool[Tensor, "B H W"]
    ) -> list[Tensor]:
        detected = self.model(Images(pixels, keep))
        return [detected.scores[-1], detected.boxes[-1]]


@final
class VisionParts(Exportable):
    """The part `model` of a Vision Transformer, for images of the size in training."""

    def __init__(self, model: VisionTransformer):
        self.model, self.plain = model, by_definition(model)

    def parts(self) -> list[Part]:
        pixels = Input("pixels", ("batch", *self.model.shape), self._drawn(ROWS))
        return [Part("model", self.plain, [pixels], ["scores"])]

    def compared(self, run: Run, longest: Mapping[str, int] = LONG) -> Pairs:
        for rows in (1, 3):
            pixels = self._drawn(rows)
            (scores,) = run("model", [pixels])
            yield scores, self.model(pixels)

    def _drawn(self, rows: int) -> Float[Tensor, "B C H W"]:
        return torch.randn(rows, *self.model.shape, generator=torch.Generator().manual_seed(rows))


@final
class DetectorParts(Exportable):
    """The part `model` of a detector, for images of any size that is a multiple of STRIDE."""

    def __init__(self, model: Detector):
        self.model, self.plain = model, by_definition(model)

    def parts(self) -> list[Part]:
        pixels, keep = self._drawn(ROWS, 3 * STRIDE, 4 * STRIDE)
        read = [
            Input("pixels", ("batch", self.model.channels, "height", "width"), pixels),
            Input("keep", ("batch", "height", "width"), keep),
        ]
        return [Part("model", DetectorOutputs(self.plain), read, ["scores", "boxes"])]

    def compared(self, run: Run, longest: Mapping[str, int] = LONG) -> Pairs:
        for rows, height, width in ((1, 2, 2), (3, 4, 2)):
            pixels, keep = self._drawn(rows, height * STRIDE, width * STRIDE)
            detected = self.model(Images(pixels, keep))
            expected = detected.scores[-1], detected.boxes[-1]
            yield from zip(run("model", [pixels, keep]), expected, strict=True)

    def _drawn(
        self, rows: int, height: int, width: int
    ) -> tuple[Float[Tensor, "B C H W"], Bool[Tensor, "B H W"]]:
        """Random images, of which the last is smaller."""
        generator = torch.Generator().manual_seed(rows)
        pixels = torch.randn(rows, self.model.channels, height, width, generator=generator)
        keep = torch.ones(rows, height, width, dtype=torch.bool)
        keep[-1, -3:] = False
        return pixels * keep.unsqueeze(1), keep
