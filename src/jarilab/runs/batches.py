"""Rows of a data set as batches of a run's model, for studies of its heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from jarilab.core.errors import UserError
from jarilab.data.example_files import ExampleRow, Kind
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.probes import ProbeInput
from jarilab.runs.loaded import OpenRun

MAX_TOKENS = 2048
"""Tokens of an example: a map has their square."""


class RunBatches:
    """Reads rows as the run's task does, one at a time. kind: of the rows that it reads."""

    def __init__(self, opened: OpenRun):
        self.opened = opened
        self.model: nn.Module = opened.predictor.traced_model
        self.kind: Kind = "image" if opened.predictor.reads_files else "text"

    def about(self) -> dict[str, Any]:
        """The model of a study: the run's name, its experiment and its step."""
        run = self.opened
        return {
            "model": run.folder.resolve().name,
            "class": type(self.model).__name__,
            "model_digest": f"{run.experiment.hash} {run.step}",
        }

    def start_token(self, row: ExampleRow) -> str | None:
        """The token that the task puts in front of an answer; None if it adds none."""
        target = self._batch(row).tokens[0].get("target", [""])[0]
        return target if target and not row.text.startswith(target) else None

    def probe_input(self, row: ExampleRow) -> ProbeInput | None:
        """None: a task's own tokens have too little in common to draw them at random."""
        return None

    def check(self, row: ExampleRow) -> None:
        """Raises UserError, with the origin of the row, if the run cannot read it."""
        self._batch(row)

    def batches(self, rows: Iterable[ExampleRow], size: int) -> Iterator[Batch]:
        """Batches of one row each, in order."""
        yield from map(self._batch, rows)

    def _batch(self, row: ExampleRow) -> Batch:
        line = row.text if row.second is None else f"{row.text}\t{row.second}"
        try:
            trace = self.opened.predictor.trace(line, MAX_TOKENS)
        except UserError as error:
            raise UserError(f"{row.origin}: {error}") from None
        tokens = {side: list(each.names) for side, each in trace.sequences.items()}
        return Batch(trace.inputs, {}, [tokens], {}, [row.origin])
