"""What a person has to know of a run to use its exported model without jari: tokens, classes, pixels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.base import Generates
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
