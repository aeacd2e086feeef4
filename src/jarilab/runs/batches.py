"""Rows of a data set as batches of a run's model, for studies of its heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.data.example_files import ExampleRow, Kind
from jarilab.data.text import END
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.probes import ProbeInput, Rows, other_tokens
from jarilab.runs.loaded import OpenRun
from jarilab.tasks.predictors.base import Trace

MAX_TOKENS = 2048
"""Tokens of an example: a map has their square."""


class RunBatches:
    """Reads rows as the run's task does, one at a time. kind: of the rows. unread: as in `HuggingFaceBatches`."""

    def __init__(self, opened: OpenRun):
        self.opened = opened
        self.model: nn.Module = opened.predictor.traced_model
        self.kind: Kind = "image" if opened.predictor.reads_files else "text"
        self.unread: Kind | None = None

    def about(self) -> dict[str, Any]:
        """The model of a study: the run's name, its experiment and its step."""
        run = self.opened
        return {
            "model": run.folder.resolve().name,
            "class": type(self.model).__name__,
            "model_digest": f"{run.experiment.hash} {run.step}",
        }

    def start_token(self, row: ExampleRow) -> str | None:
        """The token that the task puts in front of an answer, or of a text with a class; None if it adds none."""
        first = list(self._batch(row).tokens[0].values())[-1][0]
        return first if first and not row.text.startswith(first) else None

    def probe_input(self, row: ExampleRow) -> ProbeInput | None:
        """How random sequences are drawn, with the special tokens of this row around them; None for images.

        A target has as many random tokens as its source, or as many as the task writes.
        """
        trace = self._trace(row)
        if not trace.is_text:
            return None
        task: Any = self.opened.task  # a `TokenTask`, or one of classes of texts
        source, target = trace.inputs[0].ids[0].tolist(), trace.inputs[-1].ids[0].tolist()
        start, end = _specials(source), _specials(source[::-1])[::-1]
        sizes = list(task.model_options.values())[: len(trace.inputs)]
        others = other_tokens(range(END + 1, sizes[0]), range(END + 1, sizes[-1]))
        if len(trace.inputs) == 1:
            (side,) = trace.sequences
            alone = partial(self._probe, side)
            return ProbeInput(alone, [*others], start, end, task.tokens_read(side), False)
        first = _specials(target)

        def probe(rows: Rows) -> Batch:
            room = max(1, task.tokens_read("target") - len(first))
            answers = []
            for each in map(result.inner, rows):
                answers.append([*first, *(others[token] for token in each[:room])])
            return self._probe("source", rows, answers)

        longest = task.tokens_read("source")
        result = ProbeInput(probe, [*others], start, end, longest, False, len(first))
        return result

    def _probe(self, side: str, rows: Rows, targets: Rows | None = None) -> Batch:
        """Rows of equal lengths as a batch. Tokens are named by their ids, special ones by their names."""
        task: Any = self.opened.task
        sides = {side: rows} if targets is None else {side: rows, "target": targets}
        ids = {side: torch.tensor(rows) for side, rows in sides.items()}
        inputs = [task.tokens(each, side) for side, each in ids.items()]
        names = []
        for each in zip(*sides.values(), strict=True):
            shown = [self._probe_names(*pair) for pair in zip(sides, each, strict=True)]
            names.append({"source": shown[0], "target": shown[-1]})
        return Batch(tuple(inputs), tokens=names, ids={"source": ids[side], **ids})

    def _probe_names(self, side: str, ids: list[int]) -> list[str]:
        task: Any = self.opened.task
        show = task.show_source if side == "source" else task.show_target
        special = dict(enumerate(show(range(END + 1))))
        return [special.get(number, str(number)) for number in ids]

    def check(self, row: ExampleRow) -> None:
        """Raises UserError, with the origin of the row, if the run cannot read it."""
        self._batch(row)

    def batches(self, rows: Iterable[ExampleRow], size: int) -> Iterator[Batch]:
        """Batches of one row each, in order."""
        yield from map(self._batch, rows)

    def _batch(self, row: ExampleRow) -> Batch:
        trace = self._trace(row)
        tokens = {side: list(each.names) for side, each in trace.sequences.items()}
        return Batch(trace.inputs, {}, [tokens], {}, [row.origin])

    def _trace(self, row: ExampleRow) -> Trace:
        line = row.text if row.second is None else f"{row.text}\t{row.second}"
        try:
            return self.opened.predictor.trace(line, MAX_TOKENS)
        except UserError as error:
            raise UserError(f"{row.origin}: {error}") from None


def _specials(ids: list[int]) -> list[int]:
    """The special tokens at the beginning."""
    return list(takewhile(lambda number: number <= END, ids))
