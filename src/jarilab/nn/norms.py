"""Norms: what a stack divides by, so that the size of its numbers does not grow from layer to layer."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from jarilab.errors import UserError, unknown
from jarilab.shapes import Float, Tensor

NormKind = Literal["layer", "batch"]
MOMENTUM, EPSILON = 0.1, 1e-5  # of torch.nn.BatchNorm1d


class BatchNorm(nn.Module):
    """Each of the D components over all tokens of a batch: *Batch Normalization*, Ioffe and Szegedy 2015.

    In training by the mean and the variance of these B * L tokens: padding is among them, and so are the tokens that a
    causal model is to predict. In evaluation by running means of both, which are buffers and saved with the weights.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Raises UserError for one token alone in training, which has no variance."""
        precise_BLD = x if x.dtype is torch.float64 else x.float()
        mean_D, variance_D = self._of_batch(precise_BLD) if self.training else self._running()
        normed_BLD = (precise_BLD - mean_D) * (variance_D + EPSILON).rsqrt()
        return (normed_BLD * self.weight + self.bias).to(x.dtype)

    def of_part(self, part: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """What a summand of an input adds to the output, in evaluation. The mean and the bias are no part's."""
        _, variance_D = self._running()
        return part * (variance_D + EPSILON).rsqrt() * self.weight

    def _running(self) -> tuple[Tensor, Tensor]:
        return self.mean, self.variance

    def _of_batch(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of these tokens, which the running ones follow."""
        x_ND = x_BLD.flatten(0, -2)
        count = len(x_ND)
        if count < 2:
            raise UserError(
                f"batch norm trains on the spread of a batch's tokens: expected 2 tokens or more, got {count}; "
                "use larger batches, or norm_kind=layer"
            )
        mean_D, variance_D = x_ND.mean(0), x_ND.var(0, unbiased=False)
        with torch.no_grad():
            self.mean.lerp_(mean_D.to(self.mean.dtype), MOMENTUM)
            unbiased_D = variance_D * count / (count - 1)
            self.variance.lerp_(unbiased_D.to(self.variance.dtype), MOMENTUM)
        return mean_D, variance_D

    def extra_repr(self) -> str:
        return str(len(self.weight))


def norm_of(kind: NormKind, width: int) -> nn.Module:
    """A norm over vectors of this width. Raises UserError for another kind than those of `NormKind`."""
    if kind not in get_args(NormKind):
        raise unknown("kind of norm", kind, get_args(NormKind))
    return nn.LayerNorm(width) if kind == "layer" else BatchNorm(width)
