"""The folder of a run for the processes that do not write it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from jarilab.runs.folder import Run


@final
class ReadOnlyRun(Run):
    """A run folder that is read and never written; it prints no notices.

    result: the result of the run if it is finished.
    """

    def __init__(self, folder: Path, result: dict[str, Any] | None):
        self.folder, self.result, self.record = folder, result, {}
        self.checkpoints = folder / "checkpoints"
        self._lines = 0

    def __exit__(self, *_: object) -> None:
        return

    def notice(self, text: str) -> None:
        return

    def note_kernels(self, kernels: dict[str, str]) -> None:
        return

    def check_exists(self) -> None:
        return

    def fsync(self) -> None:
        return

    def log(self, row: Mapping[str, Any]) -> None:
        return

    def cut_metrics(self, step: int, rows: int | None) -> None:
        return

    def finish(self, result: dict[str, Any]) -> None:
        self.result = result
