"""What lists and help print, kept in the cache folder, so that they need not load PyTorch again.

An entry holds as long as the installed code: its files are compared by time and size.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.storage.content_cache import cache_folder
from jarilab.core.storage.files import read_json, write_json

FILE = "listings.json"
MAX_ENTRIES = 2000


@contextmanager
def listings() -> Iterator[dict[str, Any]]:
    """The entries by name, which the block may change. Empty after the code changed, or if nothing can be read."""
    path, code = cache_folder() / FILE, _code()
    entries: dict[str, Any] = {}
    with suppress(UserError, OSError, TypeError, KeyError):
        record = read_json(path)
        entries = dict(record["entries"]) if record["code"] == code else {}
    before = dict(entries)
    yield entries
    if entries != before:
        newest = dict(list(entries.items())[-MAX_ENTRIES:])
        with suppress(UserError, OSError):  # a home that cannot be written
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"code": code, "entries": newest})


def _code() -> str:
    """A digest of the times and sizes of the package's files, and of the versions of Python and PyTorch."""
    facts: list[Any] = [sys.version]
    torch = find_spec("torch")
    if torch is not None and torch.origin is not None:
        facts.append((torch.origin, Path(torch.origin).stat().st_mtime_ns))
    for path in Path(__file__).parents[2].rglob("*.py"):
        status = path.stat()
        facts.append((str(path), status.st_mtime_ns, status.st_size))
    return hashlib.sha256(json.dumps(sorted(map(str, facts))).encode()).hexdigest()
