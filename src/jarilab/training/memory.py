"""Keeps freed memory and compiled oneDNN kernels between steps, and measures memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

# Parameters of mallopt in glibc's malloc.h, and their values here: free bytes at the heap's end from which it shrinks,
# and how many arrays may be allocated outside the heap.
_TRIM_THRESHOLD, _MAX_FREE = -1, 2**31 - 1
_MMAP_MAX, _NO_ARRAYS = -4, 0
_MALLOC_VARIABLES = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_"}

_CACHED_KERNELS = "8192"


def peak_memory() -> int | None:
    """Peak resident memory of this process in bytes, the interpreter and PyTorch included; None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In bytes on macOS, in KiB elsewhere.
    return peak if sys.platform == "darwin" else 1024 * peak


def keep_freed_memory() -> None:
    """Make glibc's allocator keep freed memory for this process, up to 2 GiB at the end of the heap.

    It changes the whole process from then on. It does nothing with another allocator, or if the environment has one of
    MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, MALLOC_MMAP_MAX_, or glibc.malloc in GLIBC_TUNABLES.
    """
    # By default glibc returns memory to the system in each step, and the system fills the pages of the next step with
    # zeros: up to 13 % of a step of a small Vision Transformer, 15 % of one of the default language model in float32.
    # The price is memory, since large arrays fragment the heap: 7 % less to 25 % more in trainings, 44 % more where the
    # caches of a beam grow.
    of_glibc = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or of_glibc or _MALLOC_VARIABLES & os.environ.keys():
        return
    # musl has no mallopt.
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _MAX_FREE)
        mallopt(_MMAP_MAX, _NO_ARRAYS)


def grow_onednn_cache() -> None:
    """Let oneDNN, PyTorch's library for bfloat16 products on a CPU, keep 8,192 kernels instead of 1,024.

    It works if no bfloat16 product was computed before. ONEDNN_PRIMITIVE_CACHE_CAPACITY in the environment wins.
    """
    # oneDNN compiles a kernel for each shape of operands. Batches of sentences have some hundred shapes and some
    # thousand kernels: with its default of 1,024 each step compiles dropped kernels again, 6 % of a step of a small
    # translator. A kernel takes 0.3 to 0.6 MB (of 2,000 products, with AVX-512 BF16).
    # DNNL_... is the variable's older name; oneDNN reads it if the other is not set.
    if "DNNL_PRIMITIVE_CACHE_CAPACITY" not in os.environ:
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _CACHED_KERNELS)
