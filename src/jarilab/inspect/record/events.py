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

    @property
    def missing(self) -> dict[str, str]:
        """Paths of modules that seem to attend and of which nothing was reported, each with the reason."""
        return self._not_recorded(is_partial=False)

    @property
    def partial(self) -> dict[str, str]:
        """Paths of modules of which some calls were reported and others not, each with the reason."""
        return self._not_recorded(is_partial=True)

    def _not_recorded(self, *, is_partial: bool) -> dict[str, str]:
        recorded = {event.path for event in self._events if event.recorded}
        return {
            event.path: event.reason
            for event in self._events
            if not event.recorded and (event.path in recorded) is is_partial
        }
