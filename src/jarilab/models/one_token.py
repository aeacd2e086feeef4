"""One token of each row through the layers of a stack, as plain functions: how tokens are written.

For so few numbers an operation takes less than what modules do around it, whose calls ask for hooks, options and
shapes. The functions here do what `EncoderLayer` and `DecoderLayer` do in evaluation, by the same operations on the
same parameters, so that the scores are the same. They are made once for each cache. Where somebody listens, or a module
is another than those here, the modules are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as of_modules

from jarilab.attention.cache import KVCache, LayerCache
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.attention.kernels import attend, attend_bare
from jarilab.attention.module import Attention, AttentionKernel
from jarilab.core.shapes import Float, Tensor
from jarilab.models.layers import DecoderLayer, EncoderLayer
from jarilab.nn.dropout import Dropout
from jarilab.nn.layers import FeedForward, Residual
from jarilab.nn.linear import Linear, linear

MOST_ROWS = 256
"""Of more, products take the time, and `Attention` makes one of three."""
FEW_ROWS = 16
"""Of more, `linear` adds the bias afterwards."""

OWN = (
    EncoderLayer,
    DecoderLayer,
    Residual,
    FeedForward,
    Attention,
    AttentionKernel,
    Linear,
    Dropout,
)
NORMS = (nn.LayerNorm, nn.RMSNorm)
EVERYWHERE = (of_modules._global_forward_hooks, of_modules._global_forward_pre_hooks)

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`linear`, or PyTorch's."""
Sublayer = Callable[..., Tensor]
"""Of the input `(R, D)`, the Product, and what a layer is given beside its input."""


class OneToken:
    """The layers of a stack for one token of each row."""

    def __init__(self, layers: Sequence[nn.Module]):
        self.layers = [_LAYERS[type(layer)](layer) for layer in layers]
        # The dictionaries that hooks are put into, which a module keeps: all are asked at each token.
        parts = [part for layer in layers for part in layer.modules()]
        own = [(part._forward_hooks, part._forward_pre_hooks) for part in parts]
        self.hooks = [hooks for both in (*own, EVERYWHERE) for hooks in both]

    @property
    def unheard(self) -> bool:
        """Whether nobody would notice that no module is called."""
        return not any(self.hooks)

    def __call__(self, x_R1D: Float[Tensor, "R 1 D"], *of_layers: Sequence[Any]) -> Tensor:
        """of_layers: for each argument of a layer behind its input, what each of the layers is given."""
        product = functional.linear if x_R1D.shape[0] <= FEW_ROWS else linear
        # A tenth of the time less than `no_grad`, which is on already. Nothing that is made here is kept: a cache makes
        # room outside it. Under it autocast would round the weights anew at each token.
        rounds = torch.is_autocast_enabled("cpu")
        with nullcontext() if rounds else torch.inference_mode():
            x_RD = x_R1D.squeeze(1)
            for layer, *given in zip(self.layers, *of_layers, strict=True):
                x_RD = layer(x_RD, product, *given)
            return x_RD.unsqueeze(1)


def one_token(
    stack: nn.Module,
    in_order: Callable[[], Sequence[nn.Module]],
    x: Float[Tensor, "B L D"],
    cache: KVCache | None,
) -> OneToken | None:
    """The layers of this stack, where its modules need not be called for `x`; None where they have to be. in_order:
    gives the modules."""
    if cache is None or x.shape[1] != 1 or x.shape[0] > MOST_ROWS or torch.compiler.is_compiling():
        return None
    if torch.is_grad_enabled() or stack.training or x.device.type != "cpu":
        return None
    if cache.writes is None or cache.writes[0] is not stack:
        layers = in_order()
        known = all(_known(part) for layer in layers for part in layer.modules())
        cache.writes = stack, OneToken(layers) if known else None
    found = cast("OneToken | None", cache.writes[1])
    return found if found is not None and found.unheard else None


def _known(part: nn.Module) -> bool:
    """Whether a module computes what its class here says: none of a subclass, none with a `forward` of its own, none
    that is trained by itself, and no kernel that was asked for so that no mask is written out."""
    own = type(part) in (*OWN, *NORMS) and "forward" not in vars(part) and not part.training
    return own and getattr(part, "kernel", "auto") not in ("blocks", "flex")


def _encoder_layer(layer: EncoderLayer) -> Sublayer:
    attention, feed_forward = _attention(layer.attention), _feed_forward(layer.feed_forward)
    residuals = layer.attention_residual, layer.feed_forward_residual
    if layer.parallel:
        first, second = (_norm(residual.norm) for residual in residuals)

        def both(x_RD: Tensor, product: Product, geometry: Geometry, cache: LayerCache) -> Tensor:
            attended = attention(first(x_RD), product, geometry, cache)
            return x_RD + attended + feed_forward(second(x_RD), product)

        return both
    attended, fed = map(_residual, residuals, (attention, feed_forward))

    def in_turn(x_RD: Tensor, product: Product, geometry: Geometry, cache: LayerCache) -> Tensor:
        return fed(attended(x_RD, product, geometry, cache), product)

    return in_turn


def _decoder_layer(layer: DecoderLayer) -> Sublayer:
    own = _residual(layer.self_residual, _attention(layer.self_attention))
    cross = _residual(layer.cross_residual, _cross_attention(layer.cross_attention))
    fed = _residual(layer.feed_forward_residual, _feed_forward(layer.feed_forward))

    def in_turn(
        x_RD: Tensor, product: Product, of_own: Geometry, of_source: Geometry, *caches: LayerCache
    ) -> Tensor:
        x_RD = own(x_RD, product, of_own, caches[0])
        x_RD = cross(x_RD, product, of_source, caches[1])
        return fed(x_RD, product)

    return in_turn


_LAYERS: dict[type[nn.Module], Callable[[Any], Sublayer]] = {
    EncoderLayer: _encoder_layer,
    DecoderLayer: _decoder_layer,
}


def _residual(residual: Residual, sublayer: Sublayer) -> Sublayer:
    norm = _norm(residual.norm)
    if residual.place == "pre":
        return lambda x_RD, *given: x_RD + sublayer(norm(x_RD), *given)
    return lambda x_RD, *given: norm(x_RD + sublayer(x_RD, *given))


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    if not isinstance(norm, nn.LayerNorm):
        return norm.forward
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x_RD: torch.layer_norm(x_RD, shape, weight, bias, eps)


def _held(module: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return module.weight, module.bias


def _feed_forward(module: FeedForward) -> Sublayer:
    (up, up_bias), (down, down_bias) = _held(module.up), _held(module.down)
    activation = module.activation
    if module.gate is None:
        return lambda x_RD, product: product(
            activation(product(x_RD, up, up_bias)), down, down_bias
        )
    gate, gate_bias = _held(module.gate)

    def gated(x_RD: Tensor, product: Product) -> Tensor:
        hidden_RF = activation(product(x_RD, gate, gate_bias)) * product(x_RD, up, up_bias)
        return product(hidden_RF, down, down_bias)

    return gated


def _attention(module: Attention) -> Sublayer:
    (query, query_bias), (key, key_bias) = _held(module.query), _held(module.key)
    (value, value_bias), (out, out_bias) = _held(module.value), _held(module.out)
    site, scale, kernel = module.site, module.scale, module.attend.kernel
    heads, width, value_width = site.n_heads, site.d_head, site.d_value
    copies = heads * width // module.key.out_features

    def attended(x_RD: Tensor, product: Product, geometry: Geometry, cache: LayerCache) -> Tensor:
        encoding, rows, read = geometry.encoding, x_RD.shape[0], x_RD
        if "inject" in encoding.hooks:
            read = encoding.inject(x_RD.unsqueeze(1), geometry.q_pos).squeeze(1)
        q_RH1E = product(read, query, query_bias).view(rows, heads, 1, width)
        k_RH1E = product(read, key, key_bias).view(rows, -1, 1, width)
        v_RH1E = product(x_RD, value, value_bias).view(rows, -1, 1, value_width)
        if copies > 1:
            k_RH1E, v_RH1E = (each.repeat_interleave(copies, 1) for each in (k_RH1E, v_RH1E))
        by = scale * encoding.scale_factor
        if geometry.bare:
            k_RHKE, v_RHKE = cache.append(k_RH1E, v_RH1E)
            y_RH1E = attend_bare(q_RH1E, k_RHKE, v_RHKE, geometry, by, kernel)
        else:
            q_RH1E, k_RHKE, v_RHKE, *states = module.rotate_and_cache(
                x_RD.unsqueeze(1), q_RH1E, k_RH1E, v_RH1E, geometry, cache
            )
            call = AttentionCall(q_RH1E, k_RHKE, v_RHKE, geometry, by, states=tuple(states))
            y_RH1E = attend(call, kernel)
        return product(y_RH1E.reshape(rows, -1), out, out_bias)

    return attended


def _cross_attention(module: Attention) -> Sublayer:
    """For W hypotheses about each source, R = B * W, whose keys are in the cache."""
    (query, query_bias), (out, out_bias) = _held(module.query), _held(module.out)
    heads, width = module.site.n_heads, module.site.d_head
    scale, kernel = module.scale, module.attend.kernel

    def attended(x_RD: Tensor, product: Product, geometry: Geometry, cache: LayerCache) -> Tensor:
        encoding = geometry.encoding
        k_BHKE, v_BHKE, *states = cache.filled()
        sources = k_BHKE.shape[0]
        if "inject" in encoding.hooks:
            x_BWD = encoding.inject(x_RD.view(sources, -1, x_RD.shape[1]), geometry.q_pos)
            x_RD = x_BWD.view(x_RD.shape)
        q_BWHE = product(x_RD, query, query_bias).view(sources, -1, heads, width)
        q_BHWE = encoding.rotate(q_BWHE.transpose(1, 2), geometry.q_rotation)
        by = scale * encoding.scale_factor
        y_BHWE = attend(
            AttentionCall(q_BHWE, k_BHKE, v_BHKE, geometry, by, states=tuple(states)), kernel
        )
        return product(y_BHWE.transpose(1, 2).reshape(x_RD.shape[0], -1), out, out_bias)

    return attended
