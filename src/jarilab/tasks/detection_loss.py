"""The loss of *End-to-End Object Detection with Transformers* (Carion et al. 2020, section 3.1).

Each object is first matched with one query, at the lowest total cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.positions.boxes import Detected, covered, iou_and_giou, to_xyxy

COST_CLASS, COST_L1, COST_GIOU = 1.0, 5.0, 2.0
"""The paper's weights of class, box and overlap, in matching and in the loss."""

IGNORED_SHARE = 0.5
"""A box with this share in an ignored region is not wrong, by the smallest overlap of COCO's AP."""


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of B images, at most M each. real: False where an image has fewer.

    labels: class numbers, 0 where there is nothing. boxes: centre, width and height in shares of the image. ignored:
    regions such as crowds, which are neither objects nor nothing; None for none.
    """

    labels: Int[Tensor, "B M"]
    boxes: Float[Tensor, "B M 4"]
    real: Bool[Tensor, "B M"]
    ignored: Bool[Tensor, "B M"] | None = None

    def __len__(self) -> int:
        return len(self.labels)


@torch.no_grad()
def matched(detected: Detected, objects: Objects) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Match queries and objects one to one at the lowest cost, for every layer and image.

    Returns layer, image, query and object of each pair. With more objects than queries, the most expensive stay
    unmatched.
    """
    from scipy.optimize import linear_sum_assignment

    cost_SBNM = _cost(detected, objects).numpy()
    layers = len(cost_SBNM)
    pairs: list[tuple[int, int, int, int]] = []
    for image, real_M in enumerate(objects.real.numpy()):
        present = real_M.nonzero()[0]
        for layer in range(layers):
            cost_NM = cost_SBNM[layer, image][:, present]
            queries, matches = linear_sum_assignment(cost_NM)
            numbers = present[matches].tolist()
            for query, number in zip(queries.tolist(), numbers, strict=True):
                pairs.append((layer, image, query, number))
    columns = torch.tensor(pairs, dtype=torch.int64).view(-1, 4)
    layer, image, query, number = columns.unbind(1)
    return layer, image, query, number


def _cost(detected: Detected, objects: Objects) -> Float[Tensor, "S B N M"]:
    """Return the cost of matching each query with each object."""
    layers, batch, queries, _ = detected.scores.shape
    most = objects.labels.shape[1]
    label_1B1M = objects.labels[None, :, None]
    label_SBNM = label_1B1M.expand(layers, batch, queries, most)
    # The probability, not its logarithm, which would outweigh the other costs (section 3.1).
    probability_SBNK = detected.scores.softmax(-1)
    probability_SBNM = probability_SBNK.gather(-1, label_SBNM)
    boxes = detected.boxes.unsqueeze(3)
    truth = objects.boxes[None, :, None]
    _, giou_SBNM = iou_and_giou(to_xyxy(boxes), to_xyxy(truth))
    l1_SBNM = (boxes - truth).abs().sum(-1)
    cost_SBNM = -COST_CLASS * probability_SBNM
    cost_SBNM += COST_L1 * l1_SBNM
    cost_SBNM -= COST_GIOU * giou_SBNM
    # The assignment fails for NaN and infinity. The loss reports them.
    return torch.nan_to_num(cost_SBNM, nan=1e6, posinf=1e6, neginf=-1e6)


def loss(
    detected: Detected, objects: Objects, nothing: float, smoothing: float = 0.0
) -> dict[str, Float[Tensor, ""]]:
    """Return the terms of the loss, summed over the layers and weighted: classes, l1, giou.

    nothing: the weight of "nothing", which most queries should predict. Boxes are averaged over the objects of the
    batch (over 1 without objects). A query without an object in an ignored region adds nothing.
    """
    layer, image, query, number = matched(detected, objects)
    classes = detected.scores.shape[-1] - 1
    labels_SBN = torch.full(detected.scores.shape[:3], classes)
    labels_SBN[layer, image, query] = objects.labels[image, number]
    boxes = detected.boxes[layer, image, query]
    truth = objects.boxes[image, number]
    _, giou = iou_and_giou(to_xyxy(boxes), to_xyxy(truth))
    l1 = (boxes - truth).abs().sum()
    count = max(1, int(objects.real.sum()))
    free_SBN = _in_ignored(detected, objects) & (labels_SBN == classes)
    of_classes = _of_classes(detected.scores, labels_SBN, free_SBN, nothing, smoothing)
    return {
        "classes": COST_CLASS * of_classes,
        "l1": COST_L1 * l1 / count,
        "giou": COST_GIOU * (1 - giou).sum() / count,
    }


def loss_counts(detected: Detected, objects: Objects, nothing: float) -> tuple[float, float, float]:
    """Return what each term averages over: the weights of the queries' classes, and the objects."""
    queries = detected.scores.shape[2]
    objects_B = objects.real.sum(1)
    count, matches = float(objects_B.sum()), float(objects_B.clamp(max=queries).sum())
    unmatched = len(objects) * queries - matches
    return matches + nothing * unmatched, count, count


@torch.no_grad()
def _in_ignored(detected: Detected, objects: Objects) -> Bool[Tensor, "S B N"]:
    """Return whether IGNORED_SHARE of each query's box lies in an ignored region of any class."""
    if objects.ignored is None:
        return torch.zeros(detected.scores.shape[:3], dtype=torch.bool)
    boxes_SBN14 = to_xyxy(detected.boxes).unsqueeze(3)
    share_SBNM = covered(boxes_SBN14, to_xyxy(objects.boxes)[None, :, None])
    return ((share_SBNM >= IGNORED_SHARE) & objects.ignored[None, :, None]).any(-1)


def _of_classes(
    scores_SBNK: Tensor, labels_SBN: Tensor, free_SBN: Tensor, nothing: float, smoothing: float
) -> Float[Tensor, ""]:
    """Return the cross-entropy with a smaller weight for "nothing", the last class, summed over the layers.

    free_SBN: queries whose loss is 0. They still count in the average, which then depends on no prediction.
    """
    weight_K = scores_SBNK.new_ones(scores_SBNK.shape[-1])
    weight_K[-1] = nothing
    total = scores_SBNK.new_zeros(())
    for scores_BNK, labels_BN, free_BN in zip(scores_SBNK, labels_SBN, free_SBN, strict=True):
        is_free = bool(free_BN.any())
        part = functional.cross_entropy(
            scores_BNK.flatten(0, 1),
            labels_BN.masked_fill(free_BN, -100).flatten(),  # a class that PyTorch leaves out
            weight_K,
            label_smoothing=smoothing,
            reduction="sum" if is_free else "mean",
        )
        total = total + (part / weight_K[labels_BN].sum() if is_free else part)
    return total
