"""Layers around attention: embeddings, feed-forward networks, residual connections."""

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
"""sqrt: divide scores by sqrt(d_head), or multiply embeddings by sqrt(D). none: neither."""


class TokenEmbedding(nn.Module):
    """Token embedding, scaled by sqrt(D) (*Attention Is All You Need*, section 3.4).

    scale: none omits the scale. Raises UserError for IDs that are not integers and, on a CPU, for IDs outside the
    vocabulary.
    """

    def __init__(self, vocab_size: int, d_model: int, scale: Scale = "sqrt"):
        super().__init__()
        if scale not in get_args(Scale):
            raise unknown("embedding scale", scale, get_args(Scale))
        self.weight = nn.Parameter(
            nn.init.normal_(torch.empty(vocab_size, d_model), std=d_model**-0.5)
        )
        self.scale = d_model**0.5 if scale == "sqrt" else 1.0

    def forward(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        if ids.dtype not in (torch.int64, torch.int32):
            raise UserError(
                f"expected token IDs in int64 or int32, got {ids.dtype}; convert with .long()"
            )
        try:
            return functional.embedding(ids, self.weight) * self.scale
        except IndexError:
            # Checked only after the failure: scanning the IDs first would cost time in every step.
            count, lowest, highest = len(self.weight), int(ids.min()), int(ids.max())
            raise UserError(
                f"expected token IDs from 0 to {count - 1}, got {lowest} to {highest}; build the model with a larger "
                "vocabulary, or map the IDs"
            ) from None


class Table(nn.Module):
    """Learned vectors without an input, `(rows, D)`: object queries, class tokens."""

    def __init__(self, rows: int, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(rows, d_model)))

    def forward(self, batch: int) -> Float[Tensor, "B R D"]:
        """The vectors, repeated for each row of a batch."""
        return self.weight.expand(batch, -1, -1)


class FeedForward(nn.Module):
    """Position-wise feed-forward network D -> F -> D (*Attention Is All You Need*, section 3.3).

    d_ff: F. gated: multiply by a second linear map of the input, whose output goes through the activation (*GLU
    Variants Improve Transformer*, Shazeer 2020): LLaMA with silu, T5 1.1 with gelu_tanh. bias: of all linear maps.
    Raises UserError for an unknown activation.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Activation = "relu",
        dropout: float = 0.0,
        *,
        gated: bool = False,
        bias: bool = True,
    ):
        super().__init__()
        self.up = Linear(d_model, d_ff, bias)
        self.gate = Linear(d_model, d_ff, bias) if gated else None
        self.down = Linear(d_ff, d_model, bias)
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
    """Residual connection around a sublayer, with its norm.

    place: post is `norm(x + f(x))`, as in the original Transformer. pre is `x + f(norm(x))`, which is stable without
    warm-up; a stack of these ends with one more norm. drop_path: fraction of examples whose sublayer is skipped in
    training, the others scaled up to keep the mean (*Deep Networks with Stochastic Depth*, Huang et al. 2016).
    kind, eps: of the norm. Raises UserError for a drop_path outside 0 ... 1 and an unknown place or kind.
    """

    def __init__(
        self,
        d_model: int,
        place: NormPlace,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        kind: NormKind = "layer",
        eps: float = EPSILON,
    ):
        super().__init__()
        if place not in ("pre", "post"):
            raise unknown("norm place", place, ("pre", "post"))
        if not 0 <= drop_path < 1:
            raise UserError(
                f"expected a drop_path from 0 to below 1, got {drop_path:g}; choose one in that range"
            )
        self.place, self.drop_path = place, drop_path
        self.norm = norm_of(kind, d_model, eps)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        sublayer: Callable[[Tensor], Tensor],
        first: int | None = None,
    ) -> Float[Tensor, "B R D"]:
        """Output of the sublayer with its residual connection.

        first: R, if the sublayer returns only the first R tokens; None for all L.
        """
        skip_BRD = x if first is None else x[:, :first]
        if self.place == "pre":
            return skip_BRD + self.added(x, sublayer)
        return self.norm(skip_BRD + self._drop_path(self.dropout(sublayer(x))))

    def added(
        self, x: Float[Tensor, "B L D"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "B R D"]:
        """What a pre-norm sublayer adds to `x`."""
        return self._drop_path(self.dropout(sublayer(self.norm(x))))

    def _drop_path(self, added: Float[Tensor, "B R D"]) -> Float[Tensor, "B R D"]:
        if not self.training or not self.drop_path:
            return added
        chance_B11 = torch.rand(len(added), 1, 1, device=added.device)
        keep_B11 = chance_B11 >= self.drop_path
        return added * keep_B11.to(added.dtype) / (1 - self.drop_path)

    def extra_repr(self) -> str:
        drop_path = f", drop_path={self.drop_path:g}" if self.drop_path else ""
        return f"place={self.place}{drop_path}"


def linear(
    x: Float[Tensor, "*L D"], weight: Float[Tensor, "N D"], bias: Float[Tensor, " N"] | None
) -> Float[Tensor, "*L N"]:
    """`x @ weight.T + bias`; bias may be None."""
    # On a CPU PyTorch first copies the bias into every row of the result. Adding it afterwards saves 2 to 8 % of a
    # training step of narrow models in float32, but nothing in bfloat16 or with few rows.
    precise = x.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
    if bias is None or not precise or x.device.type != "cpu" or few_rows(x, 16):
        return functional.linear(x, weight, bias)
    return functional.linear(x, weight).add_(bias)


def few_rows(x: Float[Tensor, "*L D"], most: int) -> bool:
    """Whether `x` has at most `most` rows. False while torch.compile traces."""
    # A traced answer would be fixed for all later inputs.
    return not torch.compiler.is_compiling() and x.numel() <= most * x.shape[-1]


class Linear(nn.Linear):
    """`torch.nn.Linear` computed by `linear`."""

    def __init__(self, width: int, out: int, bias: bool = True):
        super().__init__(width, out, bias)

    def forward(self, input: Float[Tensor, "*L D"]) -> Float[Tensor, "*L N"]:
        return linear(input, self.weight, self.bias)
