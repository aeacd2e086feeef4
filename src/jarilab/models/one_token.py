"""One token of each row through the layers of a stack, as plain functions.

With few numbers, an operation takes less time than the call of its module with hooks, options and shape checks. These
functions compute what `EncoderLayer` and `DecoderLayer` compute in evaluation, up to rounding. They are made once for
each cache, as are copies of the weights in the layout of oneDNN. With hooks or other modules, the modules are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from jarilab.nn.sublayers import FeedForward, Linear, Residual, linear

MAX_PLAIN_ROWS = 16
"""With more rows, products in float32 are faster with packed weights, also if these are packed for one answer."""

LAYERS = (
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
"""`linear` of an input, a weight and a bias."""
Sublayer = Callable[..., Tensor]
"""Maps the input `(R, D)`, a Product and the further arguments of a layer to its output."""


class OneToken:
    """The layers of a stack for one token of each row."""

    def __init__(self, layers: Sequence[nn.Module]):
        self.layers = [_LAYERS[type(layer)](layer) for layer in layers]
        # A module keeps its dictionaries of hooks, so all are checked at each token.
        self.hooks = hooks_of_modules(layers)
        self.packed: dict[torch.dtype, _Packed] = {}

    @property
    def is_unhooked(self) -> bool:
        """Whether no module has a hook."""
        return not any(self.hooks)

    def __call__(self, x_R1D: Float[Tensor, "R 1 D"], *of_layers: Sequence[Any]) -> Tensor:
        """Return the output of the last layer.

        of_layers: for each further argument of a layer, the values for all layers.
        """
        product = self.product(x_R1D)
        # `inference_mode` takes a tenth less time than `no_grad`, which is on already. Nothing made here is kept: a
        # cache allocates outside.
        with torch.inference_mode():
            x_RD = x_R1D.squeeze(1)
            for layer, *arguments in zip(self.layers, *of_layers, strict=True):
                x_RD = layer(x_RD, product, *arguments)
            return x_RD.unsqueeze(1)

    def product(self, x_R1D: Float[Tensor, "R 1 D"]) -> Product:
        """Return the fastest function for linear maps of so many rows, in the precision of autocast."""
        rounds = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if rounds else x_R1D.dtype
        few = x_R1D.shape[0] <= MAX_PLAIN_ROWS
        if not _packs(dtype):
            return functional.linear if few else linear
        if few and not rounds:
            return functional.linear
        return self.packed.setdefault(dtype, _Packed(dtype))


def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels of this dtype for this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    has_bfloat16: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16)


def hooks_of_modules(modules: Sequence[nn.Module]) -> list[Mapping[int, Any]]:
    """The dictionaries of forward hooks of these modules, of all within them, and of all modules everywhere."""
    parts = [part for module in modules for part in module.modules()]
    dictionaries = [(part._forward_hooks, part._forward_pre_hooks) for part in parts]
    return [hooks for both in (*dictionaries, EVERYWHERE) for hooks in both]


class _Packed:
    """Linear maps by oneDNN, each with a copy of its weight in the layout of oneDNN's kernels."""

    # On an AMD EPYC with AVX-512, a product of 160 rows takes 0.4 to 0.5 of MKL's time in float32, and 0.8 to 0.9 of
    # the time with plain weights in bfloat16. Packing 4.7 million weights takes 6 ms; a step of 16 rows saves 1 ms.

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.linear = torch.ops.mkldnn._linear_pointwise.default
        self._packed: dict[Tensor, tuple[Tensor, Tensor | None]] = {}

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, fused: str = "none"
    ) -> Tensor:
        """fused: the operation of oneDNN that follows the product."""
        packed = self._packed.get(weight)
        if packed is None:
            bias = None if bias is None else bias.detach().to(self.dtype)
            layout = torch.ops.mkldnn._reorder_linear_weight(
                weight.detach().to(self.dtype), x.shape[0]
            )
            packed = self._packed[weight] = layout, bias
        return self.linear(x.to(self.dtype), *packed, fused, [], "")


def readout(
    cache: KVCache | None,
    x: Float[Tensor, "*B D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
) -> Float[Tensor, "*B V"]:
    """Return the scores of tokens, with packed weights if the cache has them."""
    functions = None if cache is None or cache.writes is None else cache.writes[1]
    if functions is None or x.shape[1] != 1 or torch.is_grad_enabled():
        return functional.linear(x, weight, bias)
    return cast(OneToken, functions).product(x)(x, weight, bias)


def one_token(
    stack: nn.Module,
    in_order: Callable[[], Sequence[nn.Module]],
    x: Float[Tensor, "B L D"],
    cache: KVCache | None,
) -> OneToken | None:
    """Return the layers of a stack as functions, or None if `x` needs the modules. in_order: returns the modules."""
    if cache is None or x.shape[1] != 1 or torch.compiler.is_compiling():
        return None
    if torch.is_grad_enabled() or stack.training or x.device.type != "cpu":
        return None
    if cache.writes is None or cache.writes[0] is not stack:
        layers = in_order()
        known = all(_known(part) for layer in layers for part in layer.modules())
        cache.writes = stack, OneToken(layers) if known else None
    functions = cast("OneToken | None", cache.writes[1])
    return functions if functions is not None and functions.is_unhooked else None


def _known(part: nn.Module) -> bool:
    """Whether a module computes what its class here says.

    Subclasses, replaced `forward`s, modules in training and kernels that avoid a full mask do not.
    """
    computes = type(part) in (*LAYERS, *NORMS) and "forward" not in vars(part) and not part.training
    return computes and getattr(part, "kernel", "auto") not in ("blocks", "flex")


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
    self_attention = _residual(layer.self_residual, _attention(layer.self_attention))
    cross = _residual(layer.cross_residual, _cross_attention(layer.cross_attention))
    fed = _residual(layer.feed_forward_residual, _feed_forward(layer.feed_forward))

    def in_turn(
        x_RD: Tensor,
        product: Product,
        self_geometry: Geometry,
        cross_geometry: Geometry,
        *caches: LayerCache,
    ) -> Tensor:
        x_RD = self_attention(x_RD, product, self_geometry, caches[0])
        x_RD = cross(x_RD, product, cross_geometry, caches[1])
        return fed(x_RD, product)

    return in_turn


_LAYERS: dict[type[nn.Module], Callable[[Any], Sublayer]] = {
    EncoderLayer: _encoder_layer,
    DecoderLayer: _decoder_layer,
}


def _residual(residual: Residual, sublayer: Sublayer) -> Sublayer:
    norm = _norm(residual.norm)
    if residual.place == "pre":
        return lambda x_RD, *rest: x_RD + sublayer(norm(x_RD), *rest)
    return lambda x_RD, *rest: norm(x_RD + sublayer(x_RD, *rest))


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    if not isinstance(norm, nn.LayerNorm):
        return norm.forward
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x_RD: torch.layer_norm(x_RD, shape, weight, bias, eps)


def _parameters(module: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return module.weight, module.bias


def _feed_forward(module: FeedForward) -> Sublayer:
    (up, up_bias), (down, down_bias) = _parameters(module.up), _parameters(module.down)
    activation = module.activation
    if module.gate is None:
        return lambda x_RD, product: product(
            activation(product(x_RD, up, up_bias)), down, down_bias
        )
    gate, gate_bias = _parameters(module.gate)

    def gated(x_RD: Tensor, product: Product) -> Tensor:
        hidden_RF = activation(product(x_RD, gate, gate_bias)) * product(x_RD, up, up_bias)
        return product(hidden_RF, down, down_bias)

    return gated


def _attention(module: Attention) -> Sublayer:
    (query, query_bias), (key, key_bias) = _parameters(module.query), _parameters(module.key)
    (value, value_bias), (out, out_bias) = _parameters(module.value), _parameters(module.out)
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
    """Return cross-attention for W hypotheses of each source, R = B * W, with the source's keys in the cache."""
    (query, query_bias), (out, out_bias) = _parameters(module.query), _parameters(module.out)
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
