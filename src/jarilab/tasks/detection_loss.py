"""What a detector should have said: the loss of *End-to-End Object Detection with Transformers* (Carion et al. 2020,
section 3.1), in which each object is first matched with the query that comes nearest to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from jarilab.boxes import Detected, iou_and_giou, to_xyxy
from jarilab.shapes import Bool, Float, Int, Tensor

COST_CLASS, COST_L1, COST_GIOU = 1.0, 5.0, 2.0
"""What a class, a box's numbers and its overlap count for, in matching and in the loss: the paper's."""


@dataclass(frozen=True, eq=False)
class Objects:
    """What is in B images, at most M objects each; real: False where an image has fewer.

    labels: numbers of classes, 0 where not real. boxes: centre, width and height as shares of the image.
    """

    labels: Int[Tensor, "B M"]
    boxes: Float[Tensor, "B M 4"]
    real: Bool[Tensor, "B M"]

    def __len__(self) -> int:
        return len(self.labels)


@torch.no_grad()
def matched(found: Detected, objects: Objects) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The cheapest pairs of queries and objects, each in one pair at most, for every layer and image afresh.

    Gives the numbers of layer, image, query and object of each pair. Where there are more objects than queries, those
    that cost most stay without one.
    """
    from scipy.optimize import linear_sum_assignment

    layers, batch, queries, _ = found.scores.shape
    most = objects.labels.shape[1]
    index_SBNM = objects.labels[None, :, None].expand(layers, batch, queries, most)
    # Not its logarithm, so that it is of the size of the others (section 3.1).
    cost = -COST_CLASS * found.scores.softmax(-1).gather(-1, index_SBNM)
    boxes, there = found.boxes.unsqueeze(3), objects.boxes[None, :, None]
    cost += COST_L1 * (boxes - there).abs().sum(-1)
    cost -= COST_GIOU * iou_and_giou(to_xyxy(boxes), to_xyxy(there))[1]
    # What is not finite is told by the loss; the assignment would only say that it cannot be.
    cost_SBNM = torch.nan_to_num(cost, nan=1e6, posinf=1e6, neginf=-1e6).numpy()
    pairs: list[tuple[list[int], ...]] = []
    for image, count in enumerate(objects.real.sum(1).tolist()):
        for layer in range(layers) if count else ():
            query, thing = linear_sum_assignment(cost_SBNM[layer, image, :, :count])
            pairs.append(
                ([layer] * len(query), [image] * len(query), query.tolist(), thing.tolist())
            )
    columns = [
        torch.tensor([n for pair in pairs for n in pair[i]], dtype=torch.int64) for i in range(4)
    ]
    return columns[0], columns[1], columns[2], columns[3]


def loss(
    found: Detected, objects: Objects, nothing: float, smoothing: float = 0.0
) -> dict[str, Float[Tensor, ""]]:
    """The parts of the loss, summed over the layers: classes, l1, giou, each as it counts.

    nothing: the weight of "nothing" among the classes, since most queries should say it. Boxes are averaged over the
    objects of the batch (over 1 where there are none).
    """
    layer, image, query, thing = matched(found, objects)
    classes = found.scores.shape[-1] - 1
    labels_SBN = torch.full(found.scores.shape[:3], classes)
    labels_SBN[layer, image, query] = objects.labels[image, thing]
    weight = found.scores.new_ones(classes + 1)
    weight[classes] = nothing
    of_classes = sum(
        functional.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), weight, label_smoothing=smoothing
        )
        for scores, labels in zip(found.scores, labels_SBN, strict=True)
    )
    boxes, there = found.boxes[layer, image, query], objects.boxes[image, thing]
    count = max(1, int(objects.real.sum()))
    giou = iou_and_giou(to_xyxy(boxes), to_xyxy(there))[1]
    return {
        "classes": COST_CLASS * of_classes,  # type: ignore[dict-item]
        "l1": COST_L1 * (boxes - there).abs().sum() / count,
        "giou": COST_GIOU * (1 - giou).sum() / count,
    }
