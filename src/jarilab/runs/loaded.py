"""A trained run, opened: its experiment, its task, its model, and what answers with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from jarilab.core.devices import CPU
from jarilab.core.errors import UserError
from jarilab.runs import checkpoint as checkpoints
from jarilab.runs.artifacts import check_artifacts
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_experiment, read_run
from jarilab.runs.weights import check_built
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import Predictor, predictor_for

Checkpoint = Literal["last", "best"]


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A trained run: its experiment, task, and model in evaluation mode, in float32, as it was after `step`, by the
    `checkpoint` that was asked for."""

    folder: Path
    experiment: Experiment
    task: Task
    model: torch.nn.Module
    step: int
    checkpoint: Checkpoint = "last"

    @cached_property
    def predictor(self) -> Predictor:
        """The model as what answers."""
        return predictor_for(self.model, self.task)

    def example(self) -> str:
        """An input of the task, for whoever gives none. Raises UserError where the task has none."""
        examples = self.task.sample_inputs()
        if not examples:
            raise UserError(
                f"{self.folder}: its task has no example; say what to look at with --input"
            )
        return examples[0]


def load(
    run: str | Path,
    *,
    checkpoint: Checkpoint = "last",
    trust_code: bool = False,
    device: torch.device = CPU,
) -> OpenRun:
    """The model of a run.

    checkpoint: the newest whole one, `last`, or the `best` on the way to it. trust_code: execute the Python files that
    the run names as its task, model or encoding; without it, nothing of a run is executed. device: where the model is
    to be; to look inside is done on the processor, where there is float64.
    Raises UserError for a folder that is no run, has no checkpoint yet, or is damaged.
    """
    folder = Path(run)
    record = read_run(folder)
    experiment = read_experiment(record, folder / "run.json")
    experiment.trust(str(folder / "run.json"), trust_code)
    path = _checkpoint(folder, checkpoint)
    check_artifacts(record, folder)
    task = experiment.resolved.build_task(folder)
    model = load_checkpoint(path, experiment, task).to(device)
    step = int(path.name.removeprefix("step-"))
    return OpenRun(folder, experiment, task, model, step, checkpoint)


def load_checkpoint(path: Path, experiment: Experiment, task: Task) -> torch.nn.Module:
    """The model of an experiment with the weights of a checkpoint, in evaluation mode."""
    checkpoints.check_owner(path, experiment.hash)
    if not experiment.files:  # code of one's own may need what it computes while it builds
        check_built(path / "model.safetensors", lambda: experiment.resolved.build_model(task))
    model = experiment.resolved.build_model(task)
    checkpoints.load_model(path, model, experiment.hash)
    return model.eval()


def _checkpoint(folder: Path, which: Checkpoint) -> Path:
    path, problems = checkpoints.newest(folder / "checkpoints")
    if path is None:
        command = str(read_run(folder)["environment"].get("command", "jarilab train"))
        result = folder / "result.json"
        if result.exists():
            raise UserError(
                f"{folder} has a result and no checkpoint: put its checkpoints back, or remove {result} and train it "
                f"once more: {command}"
            )
        raise UserError(f"{folder} has no checkpoint yet; train it first: {command}")
    if problems:
        raise UserError(
            "; ".join(problems) + f"; {path} before it is whole: "
            f"`jarilab verify {folder} --repair` puts the damaged one aside to use that"
        )
    return checkpoints.best(folder / "checkpoints", path) if which == "best" else path
