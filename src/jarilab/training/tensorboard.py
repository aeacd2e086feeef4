"""What TensorBoard is shown of a training: its curve, and maps and measures of some heads at each evaluation.

    tensorboard --logdir runs

Maps are those of a second model with the weights that a checkpoint would hold, on the processor: what is trained is not
touched, and no number of the run is another one because somebody looks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError, import_optional
from jarilab.inspect.measure.maps import Map, Scored, names_of_sides
from jarilab.inspect.measure.measures import measure
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.model_io import precise
from jarilab.nn.init import generator_for
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import Run
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import Trace, predictor_for
from jarilab.training.execution import Execution
from jarilab.training.heads import Head, described, first_heads, map_of, means_of, pixels_of
from jarilab.training.progress import UNITS
from jarilab.training.state import TrainingState

FOLDER = "tensorboard"
"""In the folder of a run."""
MOST_INPUTS = 3
"""Inputs whose maps are shown."""
LONGEST_INPUT = 512
"""Tokens of an input: a map has their square."""
OF_TRAINING = ("loss", "gradient_norm", "lr")
BESIDE = (*OF_TRAINING, *UNITS, "step", "steps", "seconds", "cpu_seconds", "held_out", "value")
"""The fields of a row of the curve that are none of the task's metrics."""
WRITER = "tensorboard.summary.writer.event_file_writer"


class Board:
    """TensorBoard's files of a training; without `--tensorboard` there are none, and nothing is done.

    heads: those that are shown. Raises UserError for heads that the model has not, and where the library is missing.
    """

    def __init__(self, experiment: Experiment, task: Task, execution: Execution):
        self.experiment, self.task = experiment, task
        self.asked = execution.tensorboard
        self.heads: list[Head] = []
        self._writer: Any = None
        self._run: Run | None = None
        self._unsaid: list[str] = []
        self._said: set[str] = set()
        self._before: tuple[float, int] | None = None
        self._left = contextlib.ExitStack()
        named = execution.tensorboard_heads
        if named is not None and not self.asked:
            raise UserError(
                "tensorboard_heads says which heads TensorBoard shows, and it was not asked for; add --tensorboard"
            )
        if self.asked:
            import_optional("tensorboard", "tensorboard")
            import_optional("PIL", "tensorboard")  # by which its writer makes images
            self.heads = self._chosen(named)

    def _chosen(self, named: str | None) -> list[Head]:
        """The heads to show, held against one forward of an example."""
        indices, generator = torch.arange(1), generator_for(0, "check")
        batch = self.task.training_batch(indices, generator)
        try:
            with self._model() as model, torch.no_grad(), record(model) as tape:
                model(*batch.inputs)
        except UserError as error:
            if named is not None:
                raise
            self._unsaid.append(f"TensorBoard is shown the curve alone: {error}")
            return []
        if named is None:
            return first_heads(tape)
        heads = [Head.read(text) for text in named.split(",")]
        for head in heads:
            tape.head(head.site, head.number)
        return heads

    @contextlib.contextmanager
    def _model(self, weights: Mapping[str, Any] | None = None) -> Iterator[nn.Module]:
        """A model like the one that is trained. What is drawn inside the block is not drawn from training."""
        with torch.random.fork_rng(devices=[]):
            model = self.experiment.resolved.build_model(self.task)
            if weights is not None:
                model.load_state_dict(weights)
            yield model.eval()

    def open(self, run: Run, step: int) -> None:
        """Write into the folder of a run from here on. What stands there of later steps, from before a kill, is not
        shown any more."""
        if not self.asked:
            return
        from torch.utils.tensorboard import SummaryWriter

        self._run = run
        for notice in self._unsaid:
            self._say(notice)
        self._left.enter_context(_without_tracebacks())
        try:
            self._writer = SummaryWriter(str(self.folder), purge_step=step + 1)
        except Exception as error:  # as in `_write`
            self._end(error)

    @property
    def folder(self) -> Path:
        assert self._run is not None, "open comes first"
        return self._run.folder / FOLDER

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("close")
        self._left.close()

    def log(self, row: Mapping[str, Any]) -> None:
        """A row of the curve."""
        if self._writer is None:
            return
        scalars = {f"curve/{name}": row[name] for name in OF_TRAINING}
        scalars |= self._speed(row)
        if "value" in row:
            numbers = {name: value for name, value in row.items() if name not in BESIDE}
            numbers[self.task.metric.name] = row["value"]  # which may be called loss, too
            scalars |= {f"curve, validation/{name}": value for name, value in numbers.items()}
        for tag, value in scalars.items():
            if type(value) in (int, float):
                self._write("add_scalar", tag, value, row["step"])

    def _speed(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Tokens, or examples, a second of training since the last row."""
        unit = next(unit for unit in UNITS if unit in row)
        before, self._before = self._before, (row["seconds"], row[unit])
        if before is None or row["seconds"] <= before[0]:
            return {}
        speed = (row[unit] - before[1]) / (row["seconds"] - before[0])
        return {f"curve/{unit}_per_second": speed}

    def look(self, state: TrainingState) -> None:
        """Maps and measures of the heads as the model is now, for a few inputs of the task. Of a model that is cut into
        parts each process has some: all of them take part."""
        if not self.heads:
            return
        weights, step = state.weights(), state.progress.step
        if self._writer is None:
            return
        lines = self.task.sample_inputs()[:MOST_INPUTS]
        if not lines:
            self._say(
                "TensorBoard is shown no maps: the task names no inputs worth looking at (sample_inputs)"
            )
        every: list[dict[str, dict[str, Scored]]] = []
        for number, line in enumerate(lines, 1):
            try:
                trace, maps = self._maps(line, weights)
            except (UserError, RuntimeError) as error:  # a model of one's own may know no float64
                self._say(f"TensorBoard is shown no maps of {line!r}: {error}")
                continue
            every.append({str(head): measure(map) for head, map in maps.items()})
            text = described(trace)
            images = {
                f"maps of {head}/input {number}": pixels_of(map) for head, map in maps.items()
            }
            self._write("add_text", f"inputs/{number}", text, step)
            for tag, pixels in images.items():
                self._write("add_image", tag, pixels, step, dataformats="HWC")
        for tag, value in means_of(every).items():
            self._write("add_scalar", tag, value, step)
        self.flush()

    @torch.no_grad()
    def _maps(self, line: str, weights: Mapping[str, Any]) -> tuple[Trace, dict[Head, Map]]:
        """An input, and what each head makes of it, in float64."""
        with self._model(weights) as model:
            predictor = predictor_for(model, self.task)
            trace = predictor.trace(line, LONGEST_INPUT)
            traced = predictor.traced_model.double()
            sites = {head.site for head in self.heads}
            with record(traced, sites) as tape:
                traced(*precise(trace.inputs))
        sequences = trace.sequences.items()
        names = names_of_sides(tape, {frame: list(one.names) for frame, one in sequences})
        return trace, {head: map_of(tape, head, names) for head in self.heads}

    def flush(self) -> None:
        """Wait until all is written: a checkpoint must not outlive the rows before it."""
        self._write("flush")

    def _write(self, how: str, *given: Any, **named: Any) -> None:
        """Ask the writer for something. Whatever goes wrong with its files ends no training: it may be TensorFlow that
        writes them, whose errors are others."""
        if self._writer is None:
            return
        try:
            getattr(self._writer, how)(*given, **named)
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        """Tell why, and write nothing more."""
        self._writer = None
        self._say(
            f"{self.folder} cannot be written: {error}; training goes on, and TensorBoard is shown no more of it"
        )

    def _say(self, text: str) -> None:
        """Once."""
        if self._run is not None and text not in self._said:
            self._said.add(text)
            self._run.notice(text)


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """The thread that writes prints no traceback where it ends: its next call raises what ended it."""
    before: Callable[[Any], object] = threading.excepthook

    def told(ended: Any) -> None:
        if type(ended.thread).__module__ != WRITER:
            before(ended)

    threading.excepthook = told
    try:
        yield
    finally:
        threading.excepthook = before
