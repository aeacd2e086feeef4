"""The layers of a stack and their common options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, TypedDict

from annotated_types import Ge, Gt, Le, Lt
from torch import nn

from jarilab.attention.cache import LayerCache
from jarilab.attention.geometry import Geometry
from jarilab.attention.heads import site_of
from jarilab.attention.kernels import Kernel, check
from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.compose import LayerEncodings
from jarilab.models.base import check_layers
from jarilab.nn.norms import EPSILON, NormKind, norm_of
from jarilab.nn.sublayers import Activation, FeedForward, NormPlace, Residual, Scale

Width = Annotated[int, Ge(1), Le(65536)]
"""D."""

Heads = Annotated[int, Ge(1), Le(1024)]
"""H."""

Layers = Annotated[int, Ge(1), Le(1000)]
"""Of one stack."""

Hidden = Annotated[int, Ge(1), Le(262144)]
"""F, the feed-forward dimension."""

Epsilon = Annotated[float, Gt(0), Le(1)]
"""Added to a norm's variance."""

Share = Annotated[float, Ge(0), Lt(1)]
"""Of dropped values."""


class StackKeywords(TypedDict, total=False):
    """The fields of `LayerOptions` that the constructor of a stack accepts."""

    d_ff: Hidden | None
    norm: NormPlace
    norm_kind: NormKind
    norm_eps: Epsilon
    activation: Activation
    gated: bool
    bias: bool
    d_head: Width | None
    n_kv_heads: Heads | None
    scale: Scale
    dropout: Share
    kernel: Kernel


class LayerKeywords(StackKeywords, total=False):
    """The fields of `LayerOptions` that the constructor of a model accepts."""

    d_model: Width
    n_heads: Heads


@dataclass(frozen=True)
class LayerOptions:
    """Options of the layers of a stack.

    d_model: model dimension.
    n_heads: attention heads.
    d_ff: dimension inside the feed-forward network (default: 4 d_model).
    norm: norm before each sublayer (pre) or after it (post, the original Transformer).
    norm_kind: layer norm, RMS norm (LLaMA, T5) or batch norm.
    norm_eps: added to the variance in norms.
    activation: activation of the feed-forward network.
    gated: gated feed-forward network (LLaMA, T5 1.1).
    bias: bias in the linear maps of attention and feed-forward network.
    d_head: dimension of each head (default: d_model / n_heads).
    n_kv_heads: heads of keys and values, each shared by several heads of queries (default: n_heads).
    scale: divide the scores q.k by the square root of d_head (sqrt), or not (none).
    dropout: dropout probability.
    kernel: attention kernel; all give the same result, and auto takes the fastest.

    drop_path: probability that an example skips a sublayer of the last layer in training; it rises linearly from 0 in
        the first layer.
    parallel: attention and feed-forward network read the same input and are added together (GPT-NeoX, PaLM).
    """

    d_model: int = 64
    n_heads: int = 8
    d_ff: int | None = None
    norm: NormPlace = "pre"
    norm_kind: NormKind = "layer"
    norm_eps: float = EPSILON
    activation: Activation = "relu"
    gated: bool = False
    bias: bool = True
    d_head: int | None = None
    n_kv_heads: int | None = None
    scale: Scale = "sqrt"
    dropout: float = 0.0
    kernel: Kernel = "auto"
    drop_path: float = 0.0
    parallel: bool = False

    def of_layer(self, layer: int, n_layers: int) -> LayerOptions:
        """Return the options of one layer of a stack."""
        if not self.drop_path:
            return self
        share = self.drop_path * layer / max(1, n_layers - 1)
        return replace(self, drop_path=share)

    def encodings(
        self, spec: str, n_layers: int, *, causal: bool = False, cross: bool = False
    ) -> LayerEncodings:
        """Return the encodings of one kind of attention in a stack. Raises UserError for an impossible combination."""
        site = site_of(self.d_model, self.n_heads, self.d_head, causal=causal, cross=cross)
        encodings = LayerEncodings(spec, site, check_layers(n_layers))
        check(self.kernel, encodings.by_layer, dropout=self.dropout)
        return encodings

    def attention(self, *, causal: bool = False, cross: bool = False) -> Attention:
        return Attention(
            self.d_model,
            self.n_heads,
            encoding=None,
            d_head=self.d_head,
            causal=causal,
            cross=cross,
            scale=self.scale,
            dropout=self.dropout,
            kernel=self.kernel,
            n_kv_heads=self.n_kv_heads,
            bias=self.bias,
        )

    def feed_forward(self) -> FeedForward:
        hidden = 4 * self.d_model if self.d_ff is None else self.d_ff
        return FeedForward(
            self.d_model, hidden, self.activation, self.dropout, gated=self.gated, bias=self.bias
        )

    def residual(self) -> Residual:
        return Residual(
            self.d_model, self.norm, self.dropout, self.drop_path, self.norm_kind, self.norm_eps
        )

    def last_norm(self) -> nn.Module:
        """Return the norm at the end of a stack."""
        return self.one_norm() if self.norm == "pre" else nn.Identity()

    def one_norm(self) -> nn.Module:
        """Return a norm outside the layers."""
        return norm_of(self.norm_kind, self.d_model, self.norm_eps)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward with residual connections.

    Raises UserError for parallel sublayers with norms after them, because they have no common normed input.
    """

    def __init__(self, options: LayerOptions):
        super().__init__()
        if options.parallel and options.norm != "pre":
            raise UserError(
                f"parallel sublayers read the normed input: expected norm=pre, got {options.norm}; use norm=pre"
            )
        self.parallel = options.parallel
        self.attention = options.attention()
        self.attention_residual = options.residual()
        self.feed_forward = options.feed_forward()
        self.feed_forward_residual = options.residual()

    def forward(
        self, x: Float[Tensor, "B L D"], geometry: Geometry, cache: LayerCache | None = None
    ) -> Float[Tensor, "B L D"]:

        def attention(x_BLD: Tensor) -> Tensor:
            return self.attention(x_BLD, geometry=geometry, cache=cache)

        if self.parallel:
            attended_BLD = self.attention_residual.added(x, attention)
            return x + attended_BLD + self.feed_forward_residual.added(x, self.feed_forward)
        x_BLD = self.attention_residual(x, attention)
        return self.feed_forward_residual(x_BLD, self.feed_forward)

    def of_first(
        self, x: Float[Tensor, "B L D"], geometry: Geometry, first: int
    ) -> Float[Tensor, "B R D"]:
        """Return `forward` of the first R tokens, with the others as keys only. `geometry` has R queries."""

        def attention(x_BLD: Tensor) -> Tensor:
            return self.attention(x_BLD[:, :first], x_BLD, geometry=geometry)

        x_BRD = self.attention_residual(x, attention, first)
        return self.feed_forward_residual(x_BRD, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, then feed-forward."""

    def __init__(self, options: LayerOptions):
        super().__init__()
        self.self_attention = options.attention(causal=True)
        self.self_residual = options.residual()
        self.cross_attention = options.attention(cross=True)
        self.cross_residual = options.residual()
        self.feed_forward = options.feed_forward()
        self.feed_forward_residual = options.residual()

    def forward(
        self,
        x: Float[Tensor, "R Q D"],
        memory: Float[Tensor, "B K D"],
        self_geometry: Geometry,
        cross: Geometry,
        self_cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Float[Tensor, "R Q D"]:
        """Return a vector for each target token; R = B * W for W hypotheses of each source.

        cross: geometry of the W * Q queries of each source.
        """

        def self_attention(x_RQD: Tensor) -> Tensor:
            return self.self_attention(x_RQD, geometry=self_geometry, cache=self_cache)

        def cross_attention(x_BLD: Tensor) -> Tensor:
            return self.cross_attention(x_BLD, memory, geometry=cross, cache=cross_cache)

        sources, width = memory.shape[0], x.shape[2]
        x_RQD = self.self_residual(x, self_attention)
        # All hypotheses of a source are queries of one row, so that its keys and values are not repeated.
        x_BLD = x_RQD.reshape(sources, -1, width)  # L = W * Q
        x_BLD = self.cross_residual(x_BLD, cross_attention)
        return self.feed_forward_residual(x_BLD.view(x.shape), self.feed_forward)
