"""Loading a run: its experiment, task, model and predictor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from jarilab.core.devices import CPU
from jarilab.core.errors import UserError
from jarilab.runs import checkpoint as checkpoints
from jarilab.runs.environment import recorded_command
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import check_artifacts, read_experiment, read_run
from jarilab.runs.task_settings import trust_encoding
from jarilab.runs.weights import check_built, kinds_of
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import Predictor, predictor_for

Checkpoint = Literal["last", "best"]


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A trained run with its model in evaluation mode, in float32.

    step: the training step of the weights. checkpoint: which checkpoint they are from.
    """

    folder: Path
    experiment: Experiment
    task: Task
    model: torch.nn.Module
    step: int
    checkpoint: Checkpoint = "last"

    @cached_property
    def predictor(self) -> Predictor:
        """The predictor that the task uses for the model."""
        return predictor_for(self.model, self.task)

    def example(self) -> str:
        """An example input of the task. Raises UserError if it has none."""
        examples = self.task.sample_inputs()
        if not examples:
            raise UserError(
                f"{self.folder}: expected an input, and its task has no example; give one with --input"
            )
        return examples[0]


def load(
    run: str | Path,
    *,
    checkpoint: Checkpoint = "last",
    trust_code: bool = False,
    device: torch.device = CPU,
) -> OpenRun:
    """Load the model of a run.

    checkpoint: `last`, the newest undamaged one, or `best`, by the task's metric. trust_code: whether to execute Python
    files that the run names as its task, model or encoding; without it nothing of a run is executed. device: device of
    the model; explanations are computed on the CPU, in float64. Raises UserError for a folder that is not a run, has no
    checkpoint yet, or is damaged.
    """
    folder = Path(run)
    record = read_run(folder)
    experiment = read_experiment(record, folder / "run.json")
    experiment.trust(str(folder / "run.json"), trust_code)
    path = checkpoint_of(folder, checkpoint)
    check_artifacts(record, folder)
    task = experiment.resolved.build_task(folder)
    model = load_checkpoint(path, experiment, task).to(device)
    step = int(path.name.removeprefix("step-"))
    return OpenRun(folder, experiment, task, model, step, checkpoint)


def load_checkpoint(path: Path, experiment: Experiment, task: Task) -> torch.nn.Module:
    """The model of an experiment with the weights of a checkpoint, in evaluation mode. Raises UserError."""
    checkpoints.check_owner(path, experiment.hash)
    # Code in other files may need real tensors while it builds a model.
    if not experiment.files:
        check_built(path / "model.safetensors", lambda: experiment.resolved.build_model(task))
    model = experiment.resolved.build_model(task)
    checkpoints.load_model(path, model, experiment.hash)
    return model.eval()


def with_encoding(run: OpenRun, encoding: str) -> OpenRun:
    """The run with another encoding of the same parameters, such as YaRN in place of rotary.

    The Python files in its name are trusted. Raises UserError for an encoding with other parameters, which are not
    trained.
    """
    options = run.experiment.model_options
    if "encoding" not in options:
        raise UserError(
            f"expected a model with the option encoding, got {run.experiment.model} of {run.folder}; give no other "
            "encoding"
        )
    options = options | {"encoding": trust_encoding(encoding)}
    experiment = replace(run.experiment, model_options=options)
    model = experiment.resolved.build_model(run.task)
    weights, kinds = run.model.state_dict(), kinds_of(model)
    others = sorted(dict(kinds_of(run.model).items() ^ kinds.items()))
    if others:
        raise UserError(
            f"expected an encoding with the parameters of {run.experiment.encoding}, got {encoding}, for which "
            f"{others[0]} is {'not trained' if others[0] in kinds else 'left over'}; train a model with it instead"
        )
    model.load_state_dict(weights)
    device = next(run.model.parameters()).device
    return replace(run, experiment=experiment, model=model.to(device).eval())


def checkpoint_of(folder: Path, which: Checkpoint) -> Path:
    """The newest or the best checkpoint of a run. Raises UserError if it has none, or a newer one is damaged."""
    path, problems = checkpoints.newest(folder / "checkpoints")
    if path is None:
        command = recorded_command(read_run(folder)["environment"])
        result = folder / "result.json"
        if result.exists():
            raise UserError(
                f"{folder} has a result and no checkpoint: put its checkpoints back, or remove {result} and train it "
                f"again: {command}"
            )
        raise UserError(f"{folder} has no checkpoint yet; train it first: {command}")
    if problems:
        raise UserError(
            "; ".join(problems) + f"; {path} before it is undamaged: "
            f"`jarilab verify {folder} --repair` moves the damaged one aside, so that it is used"
        )
    return checkpoints.best(folder / "checkpoints", path) if which == "best" else path
