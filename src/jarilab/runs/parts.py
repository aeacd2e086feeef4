"""A safetensors file of tensors whose rows several processes hold: each writes its own rows, and one joins the files.

torch.distributed.checkpoint joins such files too, but as of PyTorch 2.13 what it joins is not what was saved: a tensor
without dimensions, as AdamW's number of steps is, becomes 0, and whole numbers are refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from jarilab.core.storage.files import write_weights
from jarilab.runs.weights import TYPES

NAMES = {held: name for name, held in TYPES.items()}


def write_joined(own: Mapping[str, Tensor], others: Sequence[Path], path: Path) -> None:
    """Write tensors whose first rows are here and whose next ones are in these files, in this order. No more than a
    part of one tensor is read at a time."""
    if not others:
        write_weights(own, path)
        return
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(other, "pt")) for other in others]
        having: dict[str, list[Any]] = {name: [] for name in own}
        for file in files:
            for name in list(file.keys()):
                having[name].append(file)
        # The larger numbers first, so that all are aligned.
        ordered = sorted(own, key=lambda name: (-own[name].itemsize, name))
        with path.open("wb") as out:
            out.write(_header({name: (own[name], having[name]) for name in ordered}))
            for name in ordered:
                out.write(_bytes(own[name]))
                for file in having[name]:
                    out.write(_bytes(file.get_tensor(name)))


def _header(tensors: Mapping[str, tuple[Tensor, list[Any]]]) -> bytes:
    """What safetensors begins with: the length of some JSON, and the JSON."""
    entries: dict[str, Any] = {}
    begin = 0
    for name, (own, files) in tensors.items():
        shape = list(own.shape)
        for file in files:
            shape[0] += file.get_slice(name).get_shape()[0]
        end = begin + own.itemsize * torch.Size(shape).numel()
        entries[name] = {"dtype": NAMES[own.dtype], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    padded = text + b" " * (-len(text) % 8)
    return struct.pack("<Q", len(padded)) + padded


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data
