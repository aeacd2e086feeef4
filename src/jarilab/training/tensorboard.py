"""TensorBoard files of a training: its curve, and maps and measures of some heads at each evaluation.

    tensorboard --logdir runs

Maps are computed by a second model on the CPU with the saved weights, so they change no number of the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jarilab.core.devices import CPU
from jarilab.core.errors import UserError
from jarilab.inspect.measure.maps import Map, names_of_sides
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.model_io import to_float64
from jarilab.runs.folder import Run
from jarilab.runs.results import NOT_METRICS, TRAINING_SCALARS
from jarilab.tasks.predictors.base import Trace, predictor_for
from jarilab.training.batching import sample_batch
from jarilab.training.event_writer import EventWriter, check_is_installed
from jarilab.training.progress import UNITS
from jarilab.training.state import TrainingState
from jarilab.training.tensorboard_heads import (
    MAX_INPUT_LENGTH,
    MAX_INPUTS,
    HeadName,
    MeasuredInput,
    described,
    first_heads,
    map_of,
    write_heads,
)

FOLDER = "tensorboard"
"""Name of the folder in a run folder."""
"""Fields of a row of the curve that are not metrics of the task."""


class Board:
    """Writes TensorBoard's files of a training; without `--tensorboard` it does nothing.

    heads: the heads whose maps are shown. Raises UserError for unknown heads, and if the library is missing.
    """

    def __init__(self, state: TrainingState):
        self.state, self.task = state, state.task
        self.enabled = state.execution.tensorboard
        self.heads: list[HeadName] = []
        self._writer: EventWriter | None = None
        self._run: Run | None = None
        self._pending_notices: list[str] = []
        self._notices: set[str] = set()
        self._last_count: tuple[float, int] | None = None
        names = state.execution.tensorboard_heads
        if names is not None and not self.enabled:
            raise UserError(
                f"tensorboard_heads expects --tensorboard, got {names!r} without it; add --tensorboard"
            )
        if self.enabled:
            check_is_installed()
            self.heads = self._select_heads(names)

    def _select_heads(self, names: str | None) -> list[HeadName]:
        """The named heads, or the first ones; checked by a recorded forward."""
        batch = sample_batch(self.task, CPU)
        try:
            with self._copy() as model, torch.no_grad(), record(model) as tape:
                model(*batch.inputs)
        except UserError as error:
            if names is not None:
                raise
            self._pending_notices.append(f"TensorBoard shows only the curve: {error}")
            return []
        if names is None:
            return first_heads(tape)
        heads = [HeadName.read(text) for text in names.split(",")]
        for head in heads:
            tape.head(head.site, head.number)
        return heads

    @contextlib.contextmanager
    def _copy(self, weights: Mapping[str, Any] | None = None) -> Iterator[nn.Module]:
        """A second model with these weights. Random draws in the block do not change those of the training."""
        with torch.random.fork_rng(devices=[]):
            model = self.state.new_model()
            if weights is not None:
                model.load_state_dict(weights)
            yield model.eval()

    def open(self, run: Run, step: int) -> None:
        """Start writing into the folder of a run; TensorBoard then hides what it has of later steps."""
        if not self.enabled:
            return
        self._run = run
        for notice in self._pending_notices:
            self._notice_once(notice)
        self._writer = EventWriter(self.folder, step + 1, self._notice_once)

    @property
    def folder(self) -> Path:
        assert self._run is not None, "call open first"
        return self._run.folder / FOLDER

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def log(self, row: Mapping[str, Any]) -> None:
        """Write a row of the curve."""
        if self._writer is None:
            return
        scalars = {f"curve/{name}": row[name] for name in TRAINING_SCALARS}
        scalars |= self._speed(row)
        if "value" in row:
            numbers = {name: value for name, value in row.items() if name not in NOT_METRICS}
            # By `value`: the metric may be called loss, too.
            numbers[self.task.metric.name] = row["value"]
            scalars |= {f"curve, validation/{name}": value for name, value in numbers.items()}
        for tag, value in scalars.items():
            if type(value) in (int, float):
                self._writer.write("add_scalar", tag, value, row["step"])

    def _speed(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Tokens, or examples, per second of training since the last row."""
        unit = next(unit for unit in UNITS if unit in row)
        last, self._last_count = self._last_count, (row["seconds"], row[unit])
        if last is None or row["seconds"] <= last[0]:
            return {}
        speed = (row[unit] - last[1]) / (row["seconds"] - last[0])
        return {f"curve/{unit}_per_second": speed}

    def draw(self, state: TrainingState) -> None:
        """Write maps and measures of the heads for a few inputs of the task. All ranks must call it."""
        if not self.heads:
            return
        # Gathers the rows of a sharded model from all ranks.
        weights, step = state.weights(), state.progress.step
        if self._writer is None or not self._writer.is_open:
            return
        write_heads(self._writer, self._inputs(weights), step)

    def _inputs(self, weights: Mapping[str, Any]) -> Iterator[MeasuredInput]:
        lines = self.task.sample_inputs()[:MAX_INPUTS]
        if not lines:
            self._notice_once("TensorBoard shows no maps: the task has no sample_inputs")
        for number, line in enumerate(lines, 1):
            try:
                trace, maps = self._maps(line, weights)
            # RuntimeError: a model of another file may not compute in float64.
            except (UserError, RuntimeError) as error:
                self._notice_once(f"TensorBoard shows no maps of {line!r}: {error}")
                continue
            yield MeasuredInput(number, described(trace), maps)

    @torch.no_grad()
    def _maps(self, line: str, weights: Mapping[str, Any]) -> tuple[Trace, dict[HeadName, Map]]:
        """The trace of an input and the map of each head, in float64."""
        with self._copy(weights) as model:
            predictor = predictor_for(model, self.task)
            trace = predictor.trace(line, MAX_INPUT_LENGTH)
            traced = predictor.traced_model.double()
            sites = {head.site for head in self.heads}
            with record(traced, sites) as tape:
                traced(*to_float64(trace.inputs))
        sequences = trace.sequences.items()
        tokens = {frame: list(sequence.names) for frame, sequence in sequences}
        names = names_of_sides(tape, tokens)
        return trace, {head: map_of(tape, head, names) for head in self.heads}

    def flush(self) -> None:
        """Write what is buffered. Called before a checkpoint, which must not have later steps than the files."""
        if self._writer is not None:
            self._writer.write("flush")

    def _notice_once(self, text: str) -> None:
        if self._run is not None and text not in self._notices:
            self._notices.add(text)
            self._run.notice(text)
