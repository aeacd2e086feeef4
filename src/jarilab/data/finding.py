"""What a check of data says before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    topic: what was checked, in a word or two. text: what was found. remedy: what to do; empty for a note. count, total:
    how many of how many, if the finding counts something.
    """

    severity: Severity
    topic: str
    text: str
    remedy: str = ""
    count: int | None = None
    total: int | None = None

    @property
    def line(self) -> str:
        """The finding in a line, without its severity."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


def percent(count: int, total: int) -> str:
    """Return `3 of 40 (7.5 %)`."""
    return f"{count:,} of {total:,} ({100 * count / max(1, total):.1f} %)"
