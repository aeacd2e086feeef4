"""Arrays of files that are mapped into memory."""

from __future__ import annotations

import mmap

import numpy as np


def release(array: np.ndarray) -> None:
    """Let the system drop the pages of a mapped file from this process; it maps them again when they are read.

    It does nothing for an array in memory, and on systems without such advice.
    """
    # Slices and fields of a memmap have it too; NumPy has no public name for it.
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
