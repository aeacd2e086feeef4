"""Options of layers that the formats of other programs have no place for."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from jarilab.attention.module import Attention
from jarilab.models.layers import EncoderLayer
from jarilab.nn.layers import FeedForward
from jarilab.nn.norms import BatchNorm


def beyond(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Settings of a model that are not the original Transformer's, and the flag that gives those."""
    for module in model.modules():
        yield from _of(module)
    if getattr(model, "generator_bias", None) is not None:
        yield "generator_bias=true", "--set model.generator_bias=false"


def _of(module: nn.Module) -> Iterator[tuple[str, str]]:
    if isinstance(module, BatchNorm):
        yield "norm_kind=batch", "--norm-kind layer"
    if isinstance(module, nn.RMSNorm):
        yield "norm_kind=rms", "--norm-kind layer"
    if isinstance(getattr(module, "embedding_norm", None), nn.LayerNorm):
        yield "embedding_norm=true", "--set model.embedding_norm=false"
    if isinstance(module, EncoderLayer) and module.parallel:
        yield "parallel=true", "--set model.parallel=false"
    if isinstance(module, FeedForward):
        yield from _of_feed_forward(module)
    if isinstance(module, Attention):
        yield from _of_attention(module)


def _of_feed_forward(module: FeedForward) -> Iterator[tuple[str, str]]:
    if module.gate is not None:
        yield "gated=true", "--set model.gated=false"
    if module.up.bias is None:
        yield "bias=false", "--set model.bias=true"


def _of_attention(module: Attention) -> Iterator[tuple[str, str]]:
    site = module.site
    if module.key.out_features != module.query.out_features:
        yield "n_kv_heads", "--set model.n_kv_heads=null"
    if site.n_heads * site.d_head != site.d_model:
        yield f"d_head={site.d_head}", "--set model.d_head=null"
