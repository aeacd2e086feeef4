"""What a person has to know of a run to use its exported model without jari: tokens, classes, pixels."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from jarilab.attention.module import Attention
from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.base import Generates
from jarilab.models.layers import EncoderLayer
from jarilab.nn.layers import FeedForward
from jarilab.nn.norms import BatchNorm
from jarilab.runs.loaded import OpenRun


def described(loaded: OpenRun) -> dict[str, Any]:
    """`tokens` of a task of tokens; `classes` and `pixels` of one of images."""
    model: Any = loaded.model
    task: Any = loaded.task
    if isinstance(model, Generates):
        return {"tokens": _tokens(model, task)}
    return {"classes": [str(name) for name in task.classes], "pixels": _pixels(model, task)}


def source_ends(task: Any, sources: int) -> bool:
    """Whether each source ends with END. sources: the tokens that there are."""
    last = task.sources([[sources - 1]]).ids[0, -1]
    return int(last) == END


def _tokens(model: Any, task: Any) -> dict[str, Any]:
    """The name of each token by its number, and how an answer starts and ends. one_sequence: an answer follows its
    source, behind `first`, in one sequence. longest: of what was trained on, in tokens."""
    alone = "source" not in model.max_positions()
    targets = (model.embedding if alone else model.target_embedding).weight.shape[0]
    found = {
        "target": task.show_target(range(targets)),
        "first": FIRST,
        "end": END,
        "padding": PADDING,
        "longest": task.longest,
        "positions": model.max_positions(),
        "one_sequence": task.one_sequence,
    }
    if alone:
        return found
    sources = (model.source_embedding or model.target_embedding).weight.shape[0]
    names = task.show_source(range(sources))
    return {"source": names, "source_ends": source_ends(task, sources), **found}


def _pixels(model: Any, task: Any) -> dict[str, Any]:
    """Numbers of a channel are `byte / 255 * factor + offset`."""
    shape = getattr(model, "shape", None) or (model.channels, 8, 8)
    black, white = (_normalised(task, shape, byte) for byte in (0, 255))
    factor = white - black
    return {"shape": list(shape), "factor": factor.tolist(), "offset": black.tolist()}


def _normalised(task: Any, shape: tuple[int, ...], byte: int) -> torch.Tensor:
    image = SimpleNamespace(pixels=torch.full(shape, byte, dtype=torch.uint8))
    return task.sources([image]).pixels[0, :, 0, 0]


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
