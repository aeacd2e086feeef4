"""What a step leaves behind is there for the next one: memory, and kernels."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

# The numbers are those of glibc's malloc.h. The heap shrinks when more than this is free at its end; all arrays are
# taken from it, and none apart from it.
_TRIM_THRESHOLD, _KEPT = -1, 2**31 - 1
_MMAP_MAX, _NONE = -4, 0
_SET_BY_A_PERSON = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_"}

_KERNELS = "8192"


def peak_memory() -> int | None:
    """The most bytes that this process had in memory so far, the interpreter and PyTorch among them. None on Windows,
    where Python has nobody to ask."""
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # KiB elsewhere


def keep_freed_memory() -> None:
    """Tell glibc's allocator to keep what is freed for this process, unless 2 GiB at the end of the heap are free.

    Otherwise it hands much of it back to the system in every step, and the next step gets the pages anew, each filled
    with zeros first: up to 13 % of a step of a small Vision Transformer, 15 % of one of the default language model in
    float32. The process may become larger, since a few large arrays may take their place twice or more: 7 % smaller to
    25 % larger seen in trainings, 44 % larger where a beam's caches grow. It holds for the whole process and from then
    on; what the environment sets (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, MALLOC_MMAP_MAX_, or glibc.malloc of
    GLIBC_TUNABLES) is left alone. With another allocator this does nothing.
    """
    of_glibc = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or of_glibc or _SET_BY_A_PERSON & os.environ.keys():
        return
    with contextlib.suppress(AttributeError):  # musl has no such function
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_MAX, _NONE)


def keep_kernels() -> None:
    """Tell oneDNN, by which PyTorch multiplies in bfloat16 on a processor, to keep 8,192 kernels instead of 1,024.

    It generates one for each shape of its operands. Batches of sentences have some hundred shapes, which are some
    thousand kernels: each step would generate again what was dropped for others, 6 % of a step of a small translator.
    Each takes 0.3 to 0.6 MB (seen of 2,000 products, with AVX-512 BF16), so a training of many shapes is larger by it:
    ONEDNN_PRIMITIVE_CACHE_CAPACITY=1024 is oneDNN's own bound. It holds if nothing was multiplied so before; what the
    environment sets is left alone.
    """
    # By its older name, too, which oneDNN looks at where the other is not set.
    if "DNNL_PRIMITIVE_CACHE_CAPACITY" not in os.environ:
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KERNELS)
