"""Memory that a step frees is there for the next one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

# The numbers are those of glibc's malloc.h. The heap shrinks when more than the first amount is free at its end; arrays
# up to the second, the most that glibc allows, are taken from it.
_TRIM_THRESHOLD, _KEPT = -1, 2**31 - 1
_MMAP_THRESHOLD, _LARGEST = -3, 32 * 2**20


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
    with zeros first: up to 13 % of a step of a small Vision Transformer. Where batches differ in length the process may
    stay somewhat larger (6 to 9 % seen). It holds for the whole process and from then on; what the environment sets
    (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_) is left alone. With another allocator this does nothing.
    """
    if (
        sys.platform != "linux"
        or {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys()
    ):
        return
    with contextlib.suppress(AttributeError):  # musl has no such function
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
