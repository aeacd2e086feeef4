"""Reading of sources in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jarilab.core.errors import UserError

SHOWN = 80
"""Maximal characters shown of an unreadable source."""


@dataclass(frozen=True, eq=False)
class Source:
    """One source: its number from 1, its text, and the task's reading of it or the error."""

    number: int
    text: str
    read: Any = None
    error: str | None = None


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def read_each(sources: Iterable[str | UserError], read: Callable[[str], Any]) -> Iterator[Source]:
    """Yield each source as read by `read`, or with its error."""
    for number, source in enumerate(sources, 1):
        if isinstance(source, UserError):  # a line that could not even be decoded
            yield Source(number, "", error=str(source))
            continue
        try:
            yield Source(number, source, read(source))
        except UserError as error:
            yield Source(number, source, error=str(error))
