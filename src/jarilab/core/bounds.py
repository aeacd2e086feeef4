"""Limits of memory and time for what files of strangers ask for. On Linux; elsewhere there are none."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from jarilab.core.errors import UserError

OPENING_BYTES = 3 << 29
MEMORY_FACTOR = 4
"""Memory that any folder may take, and how many times the bytes of its weights beside it."""
MAX_CPU_SECONDS, MAX_SECONDS = 20, 180
"""Time for loading or using a tokenizer or processor: of the processor, and of the clock."""
OUT_OF_MEMORY = 3  # exit code of a fork

_memory_limit: int | None = None
_lock = threading.Lock()
_bounded_blocks = 0
_limits_before = (-1, -1)


def use_memory(gigabytes: float | None) -> None:
    """Set the memory that opening a folder may take; None for the default. Raises UserError for none."""
    global _memory_limit
    if gigabytes is not None and not 0 < gigabytes < 1 << 20:
        raise UserError(
            f"--limit-memory: expected gigabytes above 0, got {gigabytes:g}; write such as 16"
        )
    _memory_limit = None if gigabytes is None else int(gigabytes * 2**30)


@contextmanager
def bounded_memory(folder: Path) -> Iterator[None]:
    """Refuse allocations of the block beyond the limit of memory, with a UserError. Linux only.

    Blocks of several threads share the limit of the first.
    """
    global _bounded_blocks, _limits_before
    if sys.platform != "linux":
        yield
        return
    import resource

    limit = memory_limit(folder)
    with _lock:
        if not _bounded_blocks:
            _limits_before = resource.getrlimit(resource.RLIMIT_DATA)
            _limit_growth(limit)
        _bounded_blocks += 1
    try:
        yield
    except Exception as error:
        if _is_out_of_memory(error):
            raise UserError(_needs_more_memory(folder, limit)) from None
        raise
    finally:
        with _lock:
            _bounded_blocks -= 1
            if not _bounded_blocks:
                resource.setrlimit(resource.RLIMIT_DATA, _limits_before)


def run_bounded(folder: Path, file: str, call: Callable[[], Any]) -> Any:
    """What `call` returns, once a fork has shown that it keeps the limits of memory and time. Linux only.

    file: name of the file that decides what it takes, for errors; a processor may have its settings elsewhere. Raises
    UserError for a call that exceeds a limit or ends its process.
    """
    if sys.platform == "linux":
        names = (file, "processor_config.json")
        path = next((folder / name for name in names if (folder / name).is_file()), folder)
        _run_in_fork(path, call, memory_limit(folder))
    return call()


def _run_in_fork(file: Path, call: Callable[[], Any], limit: int) -> None:
    with warnings.catch_warnings():
        # Of other threads, which the fork does not use.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if not process:
        _end_with(call, limit)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    except BaseException:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    if code == OUT_OF_MEMORY:
        raise UserError(_needs_more_memory(file, limit))
    if code in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL):
        raise UserError(
            f"{file}: expected settings that take at most {MAX_CPU_SECONDS} seconds of the processor and {MAX_SECONDS} "
            "of the clock, got ones that take longer; put back the file that was saved with the model"
        )
    if code:
        raise UserError(
            f"{file}: expected settings that keep to {limit >> 20:,} MB, got ones that end the process (code {code}), "
            "as for want of memory; put back the file that was saved with the model"
        )


def _end_with(call: Callable[[], Any], limit: int) -> NoReturn:
    """Run the call in this fork under limits, and end it. Errors are left to the caller, who will meet them, too."""
    import resource

    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()
        signal.alarm(MAX_SECONDS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS + 5))
        _limit_growth(limit)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        torch.set_num_threads(1)  # a fork has no other thread
        code = 0
        call()
    except BaseException as error:
        code = OUT_OF_MEMORY if _is_out_of_memory(error) else code
    finally:
        os._exit(code)


def _limit_growth(limit: int) -> None:
    """Refuse this process more than `limit` bytes beyond those that it has."""
    import resource

    # The limit counts what is written to; files that are mapped, and addresses alone, are free.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    used = int(Path("/proc/self/statm").read_text("ascii").split()[5]) * resource.getpagesize()
    most = used + limit if hard == resource.RLIM_INFINITY else min(used + limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from or during, is for want of memory."""
    if error is None:
        return False
    named = any(text in str(error) for text in ("allocate memory", "bad_alloc"))
    return isinstance(error, MemoryError) or named or _is_out_of_memory(error.__context__)


def _needs_more_memory(path: Path, limit: int) -> str:
    return (
        f"{path}: expected settings that need at most {limit >> 20:,} MB, got ones that need more; allow more with "
        "--limit-memory, such as --limit-memory 16 for 16 GB, if you trust it"
    )


def memory_limit(folder: Path) -> int:
    """Bytes that opening a folder may take. Linux only."""
    if _memory_limit is not None:
        return _memory_limit
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return min(free_memory() // 2, OPENING_BYTES + MEMORY_FACTOR * stored)


def free_memory() -> int:
    """Bytes that this machine has free. Linux only."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    return int(match[1]) << 10 if match else 1 << 40
