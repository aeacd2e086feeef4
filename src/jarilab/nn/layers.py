"""The parts around attention: embeddings, feed-forward, residual connections."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import nn
from torch.nn import functional

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.nn.dropout import Dropout
from jarilab.nn.linear import Linear
from jarilab.nn.norms import EPSILON, NormKind, norm_of

NormPlace = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
Scale = Literal["sqrt", "none"]
"""What scores are divided by, the square root of the head width, and embeddings multiplied by, that of the width; or
nothing."""


class TokenEmbedding(nn.Module):
    """A vector for each token, scaled by sqrt(D) (section 3.4 of the paper) whether positions are added or not.

    scale: none leaves them as they are. Raises UserError for ids that are no whole numbers and, on a CPU, for ids
    outside the vocabulary.
    """

    def __init__(self, vocabulary: int, width: int, scale: Scale = "sqrt"):
        super().__init__()
        if scale not in get_args(Scale):
            raise unknown("scale of embeddings", scale, get_args(Scale))
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(vocabulary, width), std=width**-0.5))
        self.scale = width**0.5 if scale == "sqrt" else 1.0

    def forward(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        if ids.dtype not in (torch.int64, torch.int32):
            raise UserError(
                f"ids are whole numbers: expected int64 or int32, got {ids.dtype}; convert with .long()"
            )
        try:
            return functional.embedding(ids, self.weight) * self.scale
        except IndexError:
            # Afterwards: to look through the ids first would cost every step.
            count, lowest, highest = len(self.weight), int(ids.min()), int(ids.max())
            raise UserError(
                f"ids are the numbers of {count} tokens: expected 0 to {count - 1}, got {lowest} to {highest}; build "
                "the model with a larger vocabulary, or map them"
            ) from None


class Table(nn.Module):
    """Learned vectors that stand for themselves, `(rows, D)`: object queries, a class token."""

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(rows, width)))

    def forward(self, batch: int) -> Float[Tensor, "B R D"]:
        """The same vectors in each row of a batch."""
        return self.weight.expand(batch, -1, -1)


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between (section 3.3): D -> F -> D at each position alone.

    gated: the nonlinearity goes through a map of its own, whose output the first map's is multiplied by (*GLU Variants
    Improve Transformer*, Shazeer 2020): with silu LLaMA's, with gelu_tanh that of T5 1.1. bias: of all maps.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: Activation = "relu",
        dropout: float = 0.0,
        *,
        gated: bool = False,
        bias: bool = True,
    ):
        super().__init__()
        self.up = Linear(width, hidden, bias)
        self.gate = Linear(width, hidden, bias) if gated else None
        self.down = Linear(hidden, width, bias)
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        up_BLF = self.up(x)
        hidden_BLF = (
            self.activation(up_BLF) if self.gate is None else self.activation(self.gate(x)) * up_BLF
        )
        return self.down(self.dropout(hidden_BLF))


class Residual(nn.Module):
    """The connection around a sublayer.

    post: `norm(x + f(x))`, the original. pre: `x + f(norm(x))`, which needs no warm-up to be stable; a stack of these
    ends with a norm of its own. drop_path: the share of examples whose sublayer is omitted in a training step
    (*Deep Networks with Stochastic Depth*, Huang et al. 2016); the others count for more, to keep the mean.
    kind, eps: of the norm.
    """

    def __init__(
        self,
        width: int,
        place: NormPlace,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        kind: NormKind = "layer",
        eps: float = EPSILON,
    ):
        super().__init__()
        if place not in ("pre", "post"):
            raise unknown("place of the norm", place, ("pre", "post"))
        if not 0 <= drop_path < 1:
            raise UserError(f"drop_path expects a share from 0 to below 1, got {drop_path:g}")
        self.place, self.drop_path = place, drop_path
        self.norm = norm_of(kind, width, eps)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        sublayer: Callable[[Tensor], Tensor],
        first: int | None = None,
    ) -> Float[Tensor, "B R D"]:
        """first: the sublayer answers for no more than this many of the first tokens, R, and they alone come back."""
        into = x if first is None else x[:, :first]
        if self.place == "pre":
            return into + self.added(x, sublayer)
        return self.norm(into + self._some(self.dropout(sublayer(x))))

    def added(
        self, x: Float[Tensor, "B L D"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "B R D"]:
        """What a pre-norm sublayer adds to `x`."""
        return self._some(self.dropout(sublayer(self.norm(x))))

    def _some(self, added: Float[Tensor, "B R D"]) -> Float[Tensor, "B R D"]:
        if not self.training or not self.drop_path:
            return added
        chance_B11 = torch.rand(len(added), 1, 1, device=added.device)
        used_B11 = chance_B11 >= self.drop_path
        return added * used_B11.to(added.dtype) / (1 - self.drop_path)

    def extra_repr(self) -> str:
        drop_path = f", drop_path={self.drop_path:g}" if self.drop_path else ""
        return f"place={self.place}{drop_path}"
