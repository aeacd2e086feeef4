"""What looks like an attention while a model is recorded, and whether it was recorded."""

from __future__ import annotations

import threading


class AttentionEvents:
    """The events of a recording, numbered. Several threads may add events."""

    def __init__(self) -> None:
        self._events: list[tuple[str, str]] = []  # path and reason
        self._recorded: set[int] = set()
        self._lock = threading.Lock()

    def add(self, path: str, reason: str) -> int:
        """Add an event at the module `path` that is not recorded for this reason; returns its number."""
        with self._lock:
            self._events.append((path, reason))
            return len(self._events) - 1

    def mark_recorded(self, number: int) -> None:
        """Remember that an event was recorded."""
        self._recorded.add(number)

    def not_recorded(self, *, is_partial: bool) -> dict[str, str]:
        """Paths of modules of which calls were not reported, each with the reason.

        is_partial: those of which other calls were reported; else those that seem to attend and reported nothing.
        """
        recorded_paths = {self._events[number][0] for number in self._recorded}
        return {
            path: reason
            for number, (path, reason) in enumerate(self._events)
            if number not in self._recorded and (path in recorded_paths) is is_partial
        }
