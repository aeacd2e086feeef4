"""What results depend on beside the seed: threads and deterministic kernels."""

from __future__ import annotations

import os

import torch
from torch import nn


def deterministic(threads: int | None) -> None:
    """Make results depend on the seed and the number of threads alone; on a GPU, for one type of GPU."""
    if threads is not None:
        torch.set_num_threads(threads)
    # Read at the first call of cuBLAS: without it deterministic algorithms refuse its products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # As `use_deterministic_algorithms(True)`, which imports all that compiles, half a second of it.
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def compiled(model: nn.Module) -> nn.Module:
    """By torch.compile, which is told here that results are to depend on nothing else."""
    torch.use_deterministic_algorithms(True)
    return torch.compile(model)  # type: ignore[return-value]
