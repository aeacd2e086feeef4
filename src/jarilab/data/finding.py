"""What a check of data says before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from jarilab.core.errors import MissingFileError, UserError, counted

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
WARNING_SHARE = 0.01
"""From this share of the examples on, what is counted is a warning, and what spoils a measurement is serious."""


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    severity: serious if training refuses the data, or if they spoil a measurement, such as held-out texts that are
    trained on. topic: what was checked, in a word or two. text: what was found. remedy: what to do; empty for a note.
    count, total: how many of how many, if the finding counts something.
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


def refused(error: UserError) -> Finding:
    """The finding that training refuses the data. A path that does not exist is raised again: no data were read."""
    if isinstance(error, MissingFileError):
        raise error
    return Finding("serious", "training", f"training refuses these data: {error}")


def overlap_severity(count: int, total: int) -> Severity:
    """Return how serious it is that `count` of `total` examples spoil a measurement."""
    return "serious" if count >= WARNING_SHARE * total else "warning"


def share(count: int, total: int, nouns: str, verb: str) -> str:
    """Return `3 of 40 lines (7.5 %) are`, or `1 of 40 lines (2.5 %) is`. nouns, verb: in the plural."""
    agreeing = counted(count, "", verb).split()[-1]
    return f"{count:,} of {counted(total, nouns)} ({100 * count / max(1, total):.1f} %) {agreeing}"
