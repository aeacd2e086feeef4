"""Random changes of training images of detection, with their boxes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from jarilab.core.shapes import Int
from jarilab.data.images.augment import CropWindows
from jarilab.positions.patches import Images
from jarilab.tasks.detection_loss import Objects

LEFT = 0.25
"""Objects with a smaller share of their box's area in a cropped image are dropped.

DETR keeps every sliver. Less than a quarter does not show what an object is, or how far it reaches.
"""


def flipped(images: Images, objects: Objects, generator: torch.Generator) -> tuple[Images, Objects]:
    """Mirror half of the images with their boxes. Padding stays."""
    mirrored_B = torch.rand(len(objects), generator=generator) < 0.5
    _, channels, height, _ = images.pixels.shape
    source_BW = _mirrored_columns(images, mirrored_B)
    index_BCHW = source_BW[:, None, None].expand(-1, channels, height, -1)
    pixels = images.pixels.gather(3, index_BCHW)
    boxes = objects.boxes.clone()
    boxes[mirrored_B, :, 0] = 1 - boxes[mirrored_B, :, 0]
    return Images(pixels, images.keep), replace(objects, boxes=boxes)


def _mirrored_columns(images: Images, mirrored_B: Tensor) -> Int[Tensor, "B W"]:
    """Return the source column of each column: real columns are reversed."""
    width = images.size[1]
    columns_W = torch.arange(width)
    real_B = torch.full((len(mirrored_B),), width)
    if images.keep is not None:
        real_B = images.keep[:, 0].sum(1)
    back_BW = real_B.unsqueeze(1) - 1 - columns_W
    return torch.where(mirrored_B.unsqueeze(1) & (back_BW >= 0), back_BW, columns_W)


def cropped(
    images: Images, objects: Objects, most: float, generator: torch.Generator
) -> tuple[Images, Objects]:
    """Cut half of the images to a window and enlarge it, with the objects that keep a share of at least LEFT."""
    windows = CropWindows.draw(len(objects), most, generator)
    boxes_BM4, left_BM = windows.boxes(objects.boxes)
    real_BM = objects.real & (left_BM >= LEFT)
    # Matching wants those that are real in front.
    order_BM = real_BM.int().argsort(dim=1, descending=True, stable=True)
    real_BM = real_BM.gather(1, order_BM)
    labels_BM = objects.labels.gather(1, order_BM) * real_BM
    boxes_BM4 = boxes_BM4.gather(1, order_BM.unsqueeze(-1).expand(-1, -1, 4))
    boxes_BM4 = boxes_BM4 * real_BM.unsqueeze(-1)
    return windows.pixels(images), Objects(labels_BM, boxes_BM4, real_BM)
