"""Cross-entropy over a large vocabulary, without the many tensors of rows x vocabulary that autograd would keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from jarilab.shapes import Float, Int

AT_ONCE = 1 << 18  # scores taken to float32 at a time: they stay in a processor's cache


def cross_entropy(
    scores: Float[Tensor, "N V"], labels: Int[Tensor, " N"], *, ignore: int, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """The mean of -log softmax(scores)[label] over rows whose label is not `ignore`, in nats; 0 where there is none.

    smoothing: the share of a label's probability that is spread evenly over the vocabulary (Szegedy et al. 2016).
    The same as `torch.nn.functional.cross_entropy` of the scores in float32, which keeps them, their log-softmax and
    two gradients of that size. Here the gradient is worked out piece by piece on the way, in the dtype of the scores,
    and is all that is kept: half the time with a vocabulary of 8,000 and smoothing (docs/results/text.md). It cannot be
    differentiated again.
    """
    return _CrossEntropy.apply(scores, labels, ignore, smoothing)  # type: ignore[no-any-return]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, ignore: int, smoothing: float) -> Tensor:
        vocabulary = scores.shape[1]
        precise = torch.float64 if scores.dtype is torch.float64 else torch.float32
        (real,) = (labels != ignore).nonzero(as_tuple=True)
        share = 1 / max(1, len(real))
        gradient = torch.empty_like(scores) if scores.requires_grad else None
        if gradient is not None and len(real) < len(labels):
            gradient.index_fill_(0, (labels == ignore).nonzero()[:, 0], 0.0)
        total = torch.zeros((), dtype=torch.float64, device=scores.device)
        for rows in real.split(max(1, AT_ONCE // vocabulary)):
            label = labels[rows].unsqueeze(1)
            log_p = scores.index_select(0, rows).to(precise).log_softmax(1)
            right = log_p.gather(1, label).sum(dtype=torch.float64)
            total -= (1 - smoothing) * right
            if smoothing:
                total -= smoothing / vocabulary * log_p.sum(dtype=torch.float64)
            if gradient is not None:
                p = log_p.exp_().mul_(share)
                p.scatter_add_(1, label, p.new_full(label.shape, (smoothing - 1) * share))
                p = p.sub_(smoothing / vocabulary * share) if smoothing else p
                gradient.index_copy_(0, rows, p.to(scores.dtype))
        ctx.save_for_backward(gradient)
        return (total * share).to(precise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (kept,), (gradient,) = ctx.saved_tensors, grad_outputs
        return kept if bool(gradient == 1) else kept * gradient.to(kept.dtype), None, None, None
