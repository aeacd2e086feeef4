"""Join safetensors files, in which processes wrote their rows of tensors, into one."""

# torch.distributed.checkpoint joins files, too, but with PyTorch 2.13 not exactly: a tensor without dimensions, such as
# AdamW's number of steps, becomes 0, and integers are refused.

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
from jarilab.runs.weights import DTYPES

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_joined(tensors: Mapping[str, Tensor], shards: Sequence[Path], path: Path) -> None:
    """Write a safetensors file of whole tensors.

    tensors: the first rows of each. shards: files with the next rows, in this order. Only the rows of one tensor in
    one of them are in memory at a time.
    """
    if not shards:
        write_weights(tensors, path)
        return
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(shard, "pt")) for shard in shards]
        files_with: dict[str, list[Any]] = {name: [] for name in tensors}
        for file in files:
            for name in list(file.keys()):
                files_with[name].append(file)
        # Larger dtypes first, so that all tensors are aligned.
        names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
        with path.open("wb") as out:
            out.write(_header({name: (tensors[name], files_with[name]) for name in names}))
            for name in names:
                out.write(_bytes(tensors[name]))
                for file in files_with[name]:
                    out.write(_bytes(file.get_tensor(name)))


def _header(tensors: Mapping[str, tuple[Tensor, list[Any]]]) -> bytes:
    """The header of a safetensors file: the length of its JSON, and the JSON."""
    entries: dict[str, Any] = {}
    begin = 0
    for name, (first_rows, files) in tensors.items():
        shape = list(first_rows.shape)
        for file in files:
            shape[0] += file.get_slice(name).get_shape()[0]
        end = begin + first_rows.itemsize * torch.Size(shape).numel()
        dtype = DTYPE_NAMES[first_rows.dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    padded = text + b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return struct.pack("<Q", len(padded)) + padded


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data
