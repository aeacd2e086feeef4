"""Boxes around objects: two ways to write them, and how much two of them agree.

`cxcywh`: centre, width and height, as shares of the image. `xyxy`: left, top, right, bottom, in whatever unit.
Everything here is defined for degenerate boxes too, with finite values and gradients: sides count as SMALLEST at least.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.shapes import Float, Tensor

SMALLEST = 1e-6


@dataclass(frozen=True, eq=False)
class Detected:
    """What a detector says, for each of its S layers, the last one counting, and each of N queries.

    scores: of the classes and, the last of K, of "nothing". boxes: centre, width and height as shares of the image.
    """

    scores: Float[Tensor, "S B N K"]
    boxes: Float[Tensor, "S B N 4"]


def to_xyxy(boxes: Float[Tensor, "*N 4"]) -> Float[Tensor, "*N 4"]:
    """Centre, width and height as left, top, right, bottom. Sides below SMALLEST, negative ones too, become that."""
    centre = boxes[..., :2]
    half = boxes[..., 2:].clamp_min(SMALLEST) / 2
    return torch.cat((centre - half, centre + half), -1)


def to_cxcywh(boxes: Float[Tensor, "*N 4"]) -> Float[Tensor, "*N 4"]:
    """Left, top, right, bottom as centre, width and height."""
    low, high = boxes[..., :2], boxes[..., 2:]
    centre = (low + high) / 2
    return torch.cat((centre, high - low), -1)


def area(boxes: Float[Tensor, "*N 4"]) -> Float[Tensor, "*N"]:
    """Of boxes as left, top, right, bottom."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return _sides(low, high).prod(-1)


def iou_and_giou(one: Float[Tensor, "*N 4"], other: Float[Tensor, "*M 4"]) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU (Rezatofighi et al. 2019) of boxes as left, top, right, bottom, by broadcasting.

    GIoU is IoU less the share of the smallest box around both that neither covers: -1 ... 1, and it tells two boxes
    that are far apart from two that nearly touch.
    """
    # What both cover, which is nothing where they do not meet.
    low = torch.maximum(one[..., :2], other[..., :2])
    high = torch.minimum(one[..., 2:], other[..., 2:])
    shared = (high - low).clamp_min(0.0).prod(-1)
    union = area(one) + area(other) - shared
    iou = shared / union
    # The smallest box around both.
    low = torch.minimum(one[..., :2], other[..., :2])
    high = torch.maximum(one[..., 2:], other[..., 2:])
    around = _sides(low, high).prod(-1)
    return iou, iou - (around - union) / around


def _sides(low: Tensor, high: Tensor) -> Tensor:
    return (high - low).clamp_min(SMALLEST)
