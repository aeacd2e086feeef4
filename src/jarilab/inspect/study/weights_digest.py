"""A digest of weights, by which two checkpoints of one model differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

SAMPLES = 1024
"""Elements of a tensor whose bytes are hashed, evenly spread over it."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""The type with which elements of so many bytes are summed; a complex number of 16 bytes is two of them."""


@torch.no_grad()
def weights_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of name, type and shape of each tensor, of bytes spread over it, and of the sum of all its bits.

    It is the same on every device and with any number of threads.
    """
    hashed = hashlib.sha256()
    for name, tensor in tensors:
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if not tensor.numel():
            continue
        flat = tensor.detach().flatten().view(INTEGERS[tensor.element_size()])
        # An odd stride does not stay in one column of a matrix.
        sample = flat[:: max(1, len(flat) // SAMPLES) | 1].contiguous().cpu()
        # A sum of integers, which wraps around, does not depend on its order, as one of floats does.
        total = int(flat.sum(dtype=torch.int64))
        hashed.update(f" {total} ".encode() + sample.numpy().tobytes())
    return hashed.hexdigest()
