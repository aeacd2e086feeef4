"""What looks like an attention while a model is recorded, and whether it was recorded."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(eq=False)
class _Event:
    """Something that looks like an attention: the module, why it was not recorded, and whether it was."""

    path: str
    reason: str
    recorded: bool = False


class AttentionEvents:
    """The events of a recording, numbered. Several threads may add events."""

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._lock = threading.Lock()

    def add(self, path: str, reason: str) -> int:
        """Add an event that is not recorded; returns its number."""
        with self._lock:
            self._events.append(_Event(path, reason))
            return len(self._events) - 1

    def mark_recorded(self, number: int) -> None:
        """Remember that an event was recorded."""
        self._events[number].recorded = True

    def not_recorded(self, *, is_partial: bool) -> dict[str, str]:
        """Paths of modules of which calls were not reported, each with the reason.

        is_partial: those of which other calls were reported; else those that seem to attend and reported nothing.
        """
        recorded = {event.path for event in self._events if event.recorded}
        return {
            event.path: event.reason
            for event in self._events
            if not event.recorded and (event.path in recorded) is is_partial
        }
