"""What was computed for an input, kept at hand for the next question about it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

REMEMBERED = 8
"""How many inputs and models are kept at hand, the last used ones."""

T = TypeVar("T")


def remembered(held: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """What was made for this key before; only the last few are kept."""
    if key not in held:
        held[key] = make()
        while len(held) > REMEMBERED:
            held.popitem(last=False)
    held.move_to_end(key)
    return held[key]
