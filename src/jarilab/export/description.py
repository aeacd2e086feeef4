"""A description of a run for other programs: its tokens, classes and pixels, and options they lack."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.base import Generates
from jarilab.models.layers import EncoderLayer
from jarilab.nn.norms import BatchNorm
from jarilab.nn.sublayers import FeedForward
from jarilab.nn.token_before import TokenBefore
from jarilab.runs.loaded import OpenRun


def described(loaded: OpenRun) -> dict[str, Any]:
    """The fields `tokens` for a model of tokens, or `classes` and `pixels` for a model of images."""
    model: Any = loaded.model
    task: Any = loaded.task
    if isinstance(model, Generates):
        return {"tokens": _tokens(model, task)}
    return {"classes": [str(name) for name in task.classes], "pixels": _pixels(model, task)}


def source_ends(task: Any, sources: int) -> bool:
    """Whether each source ends with END. sources: the number of source tokens."""
    last = task.sources([[sources - 1]]).ids[0, -1]
    return int(last) == END


def _tokens(model: Any, task: Any) -> dict[str, Any]:
    """The token names by ID, and how an answer starts and ends.

    one_sequence: the answer follows its source and `first` in one sequence. longest: the lengths of training data.
    """
    is_alone = "source" not in model.max_positions()
    targets = (model.embedding if is_alone else model.target_embedding).weight.shape[0]
    tokens = {
        "target": task.show_target(range(targets)),
        "first": FIRST,
        "end": END,
        "padding": PADDING,
        "longest": task.longest,
        "positions": model.max_positions(),
        "one_sequence": task.one_sequence,
    }
    if is_alone:
        return tokens
    sources = model.embeddings[0].weight.shape[0]
    names = task.show_source(range(sources))
    return {"source": names, "source_ends": source_ends(task, sources), **tokens}


def _pixels(model: Any, task: Any) -> dict[str, Any]:
    """The shape of images, and the map from bytes to numbers, `byte / 255 * factor + offset`, by channel."""
    shape = getattr(model, "shape", None) or (model.channels, 8, 8)
    black, white = (_normalised(task, shape, byte) for byte in (0, 255))
    factor = white - black
    return {"shape": list(shape), "factor": factor.tolist(), "offset": black.tolist()}


def _normalised(task: Any, shape: tuple[int, ...], byte: int) -> torch.Tensor:
    image = SimpleNamespace(pixels=torch.full(shape, byte, dtype=torch.uint8))
    return task.sources([image]).pixels[0, :, 0, 0]


def check_answer(model: nn.Module) -> None:
    """Raises UserError for a language model that answers with a class."""
    classes = getattr(model, "classes", None)
    if classes is not None:
        raise UserError(
            f"a {type(model).__name__} of classes cannot be exported: expected one that scores tokens, got one that "
            f"scores {classes} classes of a text; answer with `jarilab predict`, or for other programs with `jarilab "
            "serve`"
        )


def unsupported_options(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Options that the original Transformer lacks, and the flags that turn them off."""
    for module in model.modules():
        yield from _of(module)
    if getattr(model, "generator_bias", None) is not None:
        yield "generator_bias=true", "--set model.generator_bias=false"


def _of(module: nn.Module) -> Iterator[tuple[str, str]]:
    if isinstance(module, TokenBefore):
        yield "token_before=true", "--set model.token_before=false"
    if getattr(module, "kept_patches", None) is not None:
        yield f"kept_patches={module.kept_patches}", "--set model.kept_patches=null"
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
