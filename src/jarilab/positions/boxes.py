"""Boxes around objects: two ways to write them, and how much two of them agree.

`cxcywh`: centre, width and height, as shares of the image. `xyxy`: left, top, right, bottom, in whatever unit.
Everything here is defined for degenerate boxes too, with finite values and gradients: sides count as SMALLEST at least.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.core.shapes import Float, Tensor

SMALLEST = 1e-6

Boxes = Float[Tensor, "... 4"]


@dataclass(frozen=True, eq=False)
class Detected:
    """What a detector says, for each of its S layers, the last one counting, and each of N queries.

    scores: of the classes and, the last of K, of "nothing". boxes: centre, width and height as shares of the image.
    """

    scores: Float[Tensor, "S B N K"]
    boxes: Float[Tensor, "S B N 4"]


def to_xyxy(boxes: Boxes) -> Boxes:
    """Centre, width and height as left, top, right, bottom. Sides below SMALLEST, negative ones too, become that."""
    centre, sides = boxes.split(2, -1)
    half = sides.clamp_min(SMALLEST) / 2
    low = centre - half
    high = centre + half
    return torch.cat((low, high), -1)


def to_cxcywh(boxes: Boxes) -> Boxes:
    """Left, top, right, bottom as centre, width and height."""
    low, high = boxes.split(2, -1)
    centre = (low + high) / 2
    sides = high - low
    return torch.cat((centre, sides), -1)


def area(boxes: Boxes) -> Float[Tensor, "*N"]:
    """Of boxes as left, top, right, bottom."""
    low, high = boxes.split(2, -1)
    return _area(low, high)


def iou(one: Boxes, other: Boxes) -> Tensor:
    """The share of what two boxes, left, top, right, bottom, cover that both cover; by broadcasting."""
    found, _ = _iou_and_union(*one.split(2, -1), *other.split(2, -1))
    return found


def iou_and_giou(one: Boxes, other: Boxes) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU (Rezatofighi et al. 2019) of boxes as left, top, right, bottom, by broadcasting.

    GIoU is IoU less the share of the smallest box around both that neither covers: -1 ... 1, and it tells two boxes
    that are far apart from two that nearly touch.
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
    sides = (high - low).clamp_min(0.0)  # nothing where they do not meet
    shared = sides.prod(-1)
    union = _area(one_low, one_high) + _area(other_low, other_high) - shared
    return shared / union, union


def _area(low: Tensor, high: Tensor) -> Tensor:
    sides = (high - low).clamp_min(SMALLEST)
    return sides.prod(-1)
