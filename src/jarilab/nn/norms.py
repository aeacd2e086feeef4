"""Normalization layers: layer norm, RMS norm, batch norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor

NormKind = Literal["layer", "rms", "batch"]
EPSILON = 1e-5
"""Added to a variance, as in PyTorch."""
MOMENTUM = 0.1  # of torch.nn.BatchNorm1d


class BatchNorm(nn.Module):
    """Batch normalization of each component over all tokens (Ioffe and Szegedy 2015).

    Training uses the mean and variance of the B * L tokens of the batch, padding and future tokens included. Evaluation
    uses running means of both, which are buffers and saved with the weights.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, d_model: int, eps: float = EPSILON):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("mean", torch.zeros(d_model))
        self.register_buffer("variance", torch.ones(d_model))

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Raises UserError in training for fewer than 2 tokens, which have no variance."""
        precise_BLD = x if x.dtype is torch.float64 else x.float()
        mean_D, variance_D = self._batch_moments(precise_BLD) if self.training else self._running()
        normed_BLD = (precise_BLD - mean_D) * (variance_D + self.eps).rsqrt()
        return (normed_BLD * self.weight + self.bias).to(x.dtype)

    def of_part(self, part: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Contribution of one summand of the input to the output, in evaluation, without mean and bias."""
        _, variance_D = self._running()
        return part * (variance_D + self.eps).rsqrt() * self.weight

    def _running(self) -> tuple[Tensor, Tensor]:
        return self.mean, self.variance

    def _batch_moments(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of these tokens; also updates the running ones."""
        x_ND = x_BLD.flatten(0, -2)
        count = len(x_ND)
        if count < 2:
            raise UserError(
                f"batch norm in training expected 2 tokens or more, got {count}; use larger batches, or "
                "norm_kind=layer"
            )
        mean_D, variance_D = x_ND.mean(0), x_ND.var(0, unbiased=False)
        with torch.no_grad():
            self.mean.lerp_(mean_D.to(self.mean.dtype), MOMENTUM)
            # As torch.nn.BatchNorm1d: the running variance is unbiased, that of the batch is not.
            unbiased_D = variance_D * count / (count - 1)
            self.variance.lerp_(unbiased_D.to(self.variance.dtype), MOMENTUM)
        return mean_D, variance_D

    def extra_repr(self) -> str:
        return str(len(self.weight))


_NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "batch": BatchNorm,
}


def norm_of(kind: NormKind, d_model: int, eps: float = EPSILON) -> nn.Module:
    """A norm of `kind` over vectors of `d_model`. Raises UserError for an unknown kind."""
    if kind not in _NORMS:
        raise unknown("norm kind", kind, _NORMS)
    return _NORMS[kind](d_model, eps)
