"""A fork with bounds on its memory and its time, and what it took."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drills.processes import Attempt, HungError, forked

MOST = 2 << 30
"""Bytes that a fork may hold beyond those that it began with."""
EXECUTED = 71
OUTCOMES = {0: "read", 2: "refused", EXECUTED: "executed"}


@dataclass(frozen=True)
class Bounds:
    """addresses: bytes of addresses beyond which there are none. seconds: of the processor; ten times as many by the
    clock, since the machine may be busy."""

    addresses: int = 6 << 30
    seconds: int = 20

    def apply(self) -> None:
        used = _pages(0)
        resource.setrlimit(resource.RLIMIT_AS, (used + self.addresses,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (self.seconds, self.seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Measured(Attempt):
    """A process, and the bytes that it held beyond those that it began with. outcome: `read`, `refused`, or what was
    wrong."""

    peak = 0
    outcome = ""

    @classmethod
    def of(
        cls, log: Path, call: Callable[[], int], bounds: Bounds, environment: dict[str, str] | None = None
    ) -> Measured:
        """A call in a fork of this process, once it has ended."""
        begun = log.with_suffix(".begun")

        def bounded() -> int:
            begun.write_text(str(_pages(1)))
            bounds.apply()
            return call()

        begun.unlink(missing_ok=True)
        one = cls(forked(log, environment or {}, bounded), log)
        try:
            code, hung = one.wait(10 * bounds.seconds), False
        except HungError:
            code, hung = -int(signal.SIGKILL), True
        one.outcome = one._meaning(code, hung=hung)
        return one

    def _meaning(self, code: int, *, hung: bool) -> str:
        if hung or code in (-signal.SIGXCPU, -signal.SIGKILL):
            return "endless"
        if "Traceback (most recent call last)" in self.said:
            return "traceback"
        if self.peak > MOST:
            return "above 2 GB"
        return OUTCOMES.get(code, "traceback" if code > 0 else "ended by a signal")

    def ended(self) -> int | None:
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not pid:
            return None
        begun = self.log.with_suffix(".begun")
        if begun.exists():
            self.peak = max(0, usage.ru_maxrss * 1024 - int(begun.read_text() or 0))
        return os.waitstatus_to_exitcode(status)


def _pages(place: int) -> int:
    """Bytes of addresses (0) or of memory (1) of this process."""
    return int(Path("/proc/self/statm").read_text().split()[place]) * resource.getpagesize()
