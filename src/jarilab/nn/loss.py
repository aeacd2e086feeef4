"""Cross-entropy over a large vocabulary, without the many tensors of rows x vocabulary that autograd would keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from jarilab.shapes import Float, Int

AT_ONCE = 1 << 18  # scores taken to float32 at a time: they stay in a processor's cache
AT_ONCE_BESIDE = (
    1 << 28
)  # the same on an accelerator, where a piece is a launch: they take a gigabyte


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
        if scores.device.type != "cpu":
            return _without_waiting(ctx, scores, labels, ignore, smoothing)
        vocabulary = scores.shape[1]
        precise = torch.float64 if scores.dtype is torch.float64 else torch.float32
        real = (labels != ignore).nonzero()[:, 0]
        share = 1 / max(1, len(real))
        gradient = torch.empty_like(scores) if scores.requires_grad else None
        if gradient is not None and len(real) < len(labels):
            ignored = (labels == ignore).nonzero()[:, 0]
            gradient.index_fill_(0, ignored, 0.0)
        total = torch.zeros((), dtype=torch.float64, device=scores.device)
        for rows in real.split(max(1, AT_ONCE // vocabulary)):
            label_R1 = labels[rows].unsqueeze(1)
            log_p_RV = scores.index_select(0, rows).to(precise).log_softmax(1)
            right = log_p_RV.gather(1, label_R1).sum(dtype=torch.float64)
            total -= (1 - smoothing) * right
            if smoothing:
                every = log_p_RV.sum(dtype=torch.float64)
                total -= smoothing / vocabulary * every
            if gradient is not None:
                of_rows = _gradient(log_p_RV, label_R1, share, smoothing)
                gradient.index_copy_(0, rows, of_rows.to(scores.dtype))
        ctx.save_for_backward(gradient)
        return (total * share).to(precise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (of_scores,), (factor,) = ctx.saved_tensors, grad_outputs
        if of_scores.device.type != "cpu" or not bool(factor == 1):
            of_scores = of_scores * factor.to(of_scores.dtype)
        return of_scores, None, None, None


def _without_waiting(
    ctx: Any, scores: Tensor, labels: Tensor, ignore: int, smoothing: float
) -> Tensor:
    """The same where the processor would have to wait for an accelerator to know which rows count: all rows are
    computed, and those that do not count have the share 0."""
    rows, vocabulary = scores.shape
    precise = torch.float64 if scores.dtype is torch.float64 else torch.float32
    counts_N1 = (labels != ignore).unsqueeze(1)
    share_N1 = counts_N1.to(precise) / counts_N1.sum().clamp_min(1)
    label_N1 = labels.unsqueeze(1).masked_fill(~counts_N1, 0)
    gradient = torch.empty_like(scores) if scores.requires_grad else None
    total = torch.zeros((), dtype=precise, device=scores.device)
    for piece in torch.arange(rows).split(max(1, AT_ONCE_BESIDE // vocabulary)):
        some = slice(int(piece[0]), int(piece[-1]) + 1)
        share_R1, label_R1 = share_N1[some], label_N1[some]
        log_p_RV = scores[some].to(precise).log_softmax(1)
        right_R1 = log_p_RV.gather(1, label_R1)
        loss_R1 = (smoothing - 1) * right_R1
        if smoothing:
            loss_R1 = loss_R1 - smoothing / vocabulary * log_p_RV.sum(1, keepdim=True)
        total += (share_R1 * loss_R1).sum()
        if gradient is not None:
            of_rows = log_p_RV.exp_().mul_(share_R1)
            of_rows.scatter_add_(1, label_R1, (smoothing - 1) * share_R1)
            if smoothing:
                of_rows -= smoothing / vocabulary * share_R1
            gradient[some] = of_rows.to(scores.dtype)
    ctx.save_for_backward(gradient)
    return total


def _gradient(log_p_RV: Tensor, label_R1: Tensor, share: float, smoothing: float) -> Tensor:
    """Of the mean loss by the scores of these rows, in the place of their log-probabilities."""
    vocabulary = log_p_RV.shape[1]
    gradient_RV = log_p_RV.exp_().mul_(share)
    of_label = gradient_RV.new_full(label_R1.shape, (smoothing - 1) * share)
    gradient_RV.scatter_add_(1, label_R1, of_label)
    return gradient_RV.sub_(smoothing / vocabulary * share) if smoothing else gradient_RV
