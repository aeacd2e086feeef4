"""Bounding boxes: two formats, area, IoU and GIoU.

`cxcywh`: centre, width and height, relative to the image. `xyxy`: left, top, right, bottom, in any unit.
Values and gradients are finite for degenerate boxes too, since sides are at least MIN_SIDE.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.core.shapes import Float, Tensor

MIN_SIDE = 1e-6

Boxes = Float[Tensor, "... 4"]


@dataclass(frozen=True, eq=False)
class Detected:
    """Output of a detector for each of S layers, of which the last counts, and N object queries.

    scores: logits of K classes, the last of which is "no object". boxes: cxcywh.
    """

    scores: Float[Tensor, "S B N K"]
    boxes: Float[Tensor, "S B N 4"]


def to_xyxy(boxes: Boxes) -> Boxes:
    """Convert cxcywh to xyxy. Sides below MIN_SIDE become MIN_SIDE."""
    centre, sides = boxes.split(2, -1)
    half = sides.clamp_min(MIN_SIDE) / 2
    low = centre - half
    high = centre + half
    return torch.cat((low, high), -1)


def to_cxcywh(boxes: Boxes) -> Boxes:
    """Convert xyxy to cxcywh."""
    low, high = boxes.split(2, -1)
    centre = (low + high) / 2
    sides = high - low
    return torch.cat((centre, sides), -1)


def area(boxes: Boxes) -> Float[Tensor, "*N"]:
    """Area of boxes in xyxy."""
    low, high = boxes.split(2, -1)
    return _area(low, high)


def iou(one: Boxes, other: Boxes) -> Tensor:
    """Intersection over union of boxes in xyxy, with broadcasting."""
    ratio, _ = _iou_and_union(*one.split(2, -1), *other.split(2, -1))
    return ratio


def covered(one: Boxes, other: Boxes) -> Tensor:
    """Share of the first box's area that lies within the second, for boxes in xyxy, with broadcasting."""
    low, high = one.split(2, -1)
    other_low, other_high = other.split(2, -1)
    sides = torch.minimum(high, other_high) - torch.maximum(low, other_low)
    return sides.clamp_min(0.0).prod(-1) / _area(low, high)


def iou_and_giou(one: Boxes, other: Boxes) -> tuple[Tensor, Tensor]:
    """IoU and generalized IoU (Rezatofighi et al. 2019) of boxes in xyxy, with broadcasting.

    GIoU subtracts the fraction of the smallest enclosing box that neither box covers. It lies in -1 ... 1 and depends
    on the distance of boxes that do not overlap.
    """
    one_low, one_high = one.split(2, -1)
    other_low, other_high = other.split(2, -1)
    iou, union = _iou_and_union(one_low, one_high, other_low, other_high)
    low = torch.minimum(one_low, other_low)
    high = torch.maximum(one_high, other_high)
    around = _area(low, high)
    uncovered = (around - union) / around
    return iou, iou - uncovered


def _iou_and_union(
    one_low: Tensor, one_high: Tensor, other_low: Tensor, other_high: Tensor
) -> tuple[Tensor, Tensor]:
    low = torch.maximum(one_low, other_low)
    high = torch.minimum(one_high, other_high)
    sides = (high - low).clamp_min(0.0)  # 0 if they do not overlap
    shared = sides.prod(-1)
    union = _area(one_low, one_high) + _area(other_low, other_high) - shared
    return shared / union, union


def _area(low: Tensor, high: Tensor) -> Tensor:
    sides = (high - low).clamp_min(MIN_SIDE)
    return sides.prod(-1)
