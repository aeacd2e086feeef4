"""Tasks whose answer is one of several classes, for images and texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.nn import functional

from jarilab.core.shapes import Float, Int, Tensor
from jarilab.tasks.base import Batch, Learner, Task, evenly
from jarilab.tasks.metrics import METRICS


@dataclass(frozen=True)
class ClassLabel:
    """A class that a model assigns. number: its index. box: left, top, right, bottom in pixels, for objects."""

    number: int
    probability: float
    box: tuple[float, float, float, float] | None = None


class LabelTask(Task):
    """A task whose answer is one of several classes. A subclass provides the data and the saved facts."""

    metric = METRICS["accuracy"]
    _facts: dict[str, Any]
    _at_once = 256

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""
        return self._facts["classes"]

    @property
    @abstractmethod
    def held_out(self) -> Any:
        """The held-out examples, read on first use, with the index of each one's class as `labels`."""

    @abstractmethod
    def _held_out_batch(self, indices: Int[Tensor, " B"]) -> Batch:
        """Return the held-out examples at these indices, with their labels."""

    @final
    def loss(
        self, scores: Float[Tensor, "B V"], batch: Batch, smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        return functional.cross_entropy(scores.float(), batch.labels, label_smoothing=smoothing)

    @final
    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        """Return accuracy, macro-F1 and mean cross-entropy; on all data also the `outcomes` and the `confusion`."""
        indices = evenly(len(self.held_out), examples)
        labels, predicted, loss = [], [], 0.0
        for some in indices.split(self._at_once):
            batch = self._held_out_batch(some)
            scores = learner.scores(batch)
            labels.append(batch.labels)
            predicted.append(scores.argmax(-1))
            loss += float(functional.cross_entropy(scores, batch.labels, reduction="sum"))
        label_N, predicted_N = torch.cat(labels), torch.cat(predicted)
        hits = label_N == predicted_N
        size = len(self.classes)
        counts_VV = torch.bincount(label_N * size + predicted_N, minlength=size**2).view(size, size)
        metrics: dict[str, Any] = {
            "accuracy": int(hits.sum()) / len(indices),
            "macro_f1": macro_f1(counts_VV),
            "loss": loss / len(indices),
            "examples": float(len(indices)),
        }
        if examples is not None:
            return metrics
        confusion = {
            name: self._counted(row) for name, row in zip(self.classes, counts_VV, strict=True)
        }
        return {**metrics, "outcomes": hits.tolist(), "confusion": confusion}

    def _counted(self, counts_V: Int[Tensor, " V"]) -> dict[str, int]:
        """Return how often each class was the answer, without those that never were."""
        pairs = zip(self.classes, counts_V.tolist(), strict=True)
        return {name: count for name, count in pairs if count}

    def interpret(
        self, outputs: Float[Tensor, "B V"], images: Sequence[Any]
    ) -> list[list[ClassLabel]]:
        """Return the classes of each example from the model's outputs, most probable first."""
        probabilities_BV = outputs.float().softmax(-1)
        ranked = probabilities_BV.sort(dim=-1, descending=True, stable=True)
        rows = zip(ranked.indices.tolist(), ranked.values.tolist(), strict=True)
        return [list(map(ClassLabel, numbers, shares)) for numbers, shares in rows]


def macro_f1(counts_VV: Int[Tensor, "V V"]) -> float:
    """Return the mean of F1 over the classes that occur as label (row) or as answer (column)."""
    both_V = counts_VV.sum(0) + counts_VV.sum(1)
    f1_V = 2 * counts_VV.diagonal() / both_V.clamp_min(1)
    return float(f1_V[both_V > 0].double().mean())
