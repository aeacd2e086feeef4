"""COCO's average precision of a detector."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jarilab.core.errors import import_optional
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.positions.boxes import Detected, to_xyxy
from jarilab.tasks.detection_loss import Objects

Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class ImageBoxes:
    """Boxes of one image: left, top, right, bottom in pixels. Probabilities of true boxes are 1.

    ignored: which true boxes are regions to ignore, as COCO's crowds; None for none.
    """

    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]
    probabilities: Float[Tensor, " N"]
    ignored: Bool[Tensor, " N"] | None = None

    def regions(self) -> list[bool]:
        """Return `ignored` of each box."""
        return [False] * len(self.labels) if self.ignored is None else self.ignored.tolist()

    def rows(self) -> Iterator[tuple[int, float, Box]]:
        """Yield class, probability and box of each."""
        for label, probability, box in zip(
            self.labels.tolist(), self.probabilities.tolist(), self.boxes.tolist(), strict=True
        ):
            left, top, right, bottom = box
            yield label, probability, (left, top, right, bottom)


def detected_boxes(outputs: Detected, sizes: Sequence[tuple[int, int]]) -> list[ImageBoxes]:
    """Return the boxes from the last layer for images of these heights and widths."""
    scores_BNK = outputs.scores[-1].float().softmax(-1)
    probabilities_BN, labels_BN = scores_BNK[..., :-1].max(-1)  # the last is "nothing"
    shares_BN4 = to_xyxy(outputs.boxes[-1].float())
    detections = []
    for row, size in enumerate(sizes):
        boxes = shares_BN4[row] * _sides(size)
        detections.append(ImageBoxes(boxes, labels_BN[row], probabilities_BN[row]))
    return detections


def true_boxes(objects: Objects, sizes: Sequence[tuple[int, int]]) -> list[ImageBoxes]:
    """Return the true boxes and ignored regions in images of these heights and widths."""
    ignored = torch.zeros_like(objects.real) if objects.ignored is None else objects.ignored
    truth = []
    for row, size in enumerate(sizes):
        some = objects.real[row] | ignored[row]
        boxes = to_xyxy(objects.boxes[row, some]) * _sides(size)
        labels = objects.labels[row, some]
        truth.append(ImageBoxes(boxes, labels, torch.ones(len(labels)), ignored[row, some]))
    return truth


def _sides(size: tuple[int, int]) -> Tensor:
    height, width = size
    return torch.tensor([width, height, width, height])


def average_precision(
    detections: Sequence[ImageBoxes], truth: Sequence[ImageBoxes], classes: int
) -> dict[str, float]:
    """Return COCO's `ap`, the mean over classes and IoU 0.50, 0.55 ... 0.95, with `ap50` and `ap75`, by pycocotools.

    detections: all detections of the images in `truth`. What is detected in ignored regions is neither right nor wrong.
    The result is 0 without any object.
    """
    coco: Any = import_optional("pycocotools.coco", "vision").COCO
    evaluator: Any = import_optional("pycocotools.cocoeval", "vision").COCOeval
    names = ("ap", "ap50", "ap75")
    if all(all(boxes.regions()) for boxes in truth):
        return dict.fromkeys(names, 0.0)
    images = [{"id": number + 1} for number in range(len(truth))]
    categories = [{"id": number} for number in range(classes)]
    datasets = {"images": images, "categories": categories}
    # pycocotools prints its progress.
    with contextlib.redirect_stdout(io.StringIO()):
        expected, submitted = coco(), coco()
        for annotations, boxes in ((expected, truth), (submitted, detections)):
            annotations.dataset = {**datasets, "annotations": _as_coco(boxes)}
            annotations.createIndex()
        judged = evaluator(expected, submitted, "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return {name: max(0.0, float(judged.stats[i])) for i, name in enumerate(names)}


def _as_coco(images: Sequence[ImageBoxes]) -> list[dict[str, Any]]:
    annotations: list[dict[str, Any]] = []
    for number, boxes in enumerate(images, 1):
        rows = zip(boxes.rows(), boxes.regions(), strict=True)
        for (label, probability, (left, top, right, bottom)), is_ignored in rows:
            width, height = right - left, bottom - top
            annotation = {"id": len(annotations) + 1, "image_id": number, "category_id": label}
            annotation |= {"bbox": [left, top, width, height], "area": width * height}
            annotations.append({**annotation, "iscrowd": int(is_ignored), "score": probability})
    return annotations
