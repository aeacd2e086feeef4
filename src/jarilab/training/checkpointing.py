"""Save the state of a training as a checkpoint of its run, and load it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.runs import checkpoint
from jarilab.runs.folder import Run
from jarilab.training.determinism import random_states, restore_random_states
from jarilab.training.distributed.parallel import cut_like, gathered
from jarilab.training.state import Progress, TrainingState


class Checkpointer:
    """Saves the state of a training into its run folder, and loads it again."""

    def __init__(self, state: TrainingState):
        self.state = state

    def save(self, run: Run) -> None:
        """Write a checkpoint. All ranks must call it, and raise UserError if the first one cannot write."""
        run.check_exists()
        state, world, folder = self.state, self.state.world, run.checkpoints
        progress = state.progress
        keep = set() if progress.best is None else {progress.best["step"]}
        weights = gathered(state.saved.state_dict(), keep=world.is_writer)
        tensors, groups = checkpoint.training_tensors(state.optimizers, state.raw)
        tensors = gathered(tensors, keep=world.is_writer)
        random = random_states(world)
        progress.rows = run.rows
        record = {**asdict(progress), "groups": groups, "run": state.experiment.hash}
        run.fsync()  # first, so that no checkpoint survives a power cut without its rows of the curve
        with world.shared_errors():
            if world.is_writer:
                checkpoint.save(folder, progress.step, weights, tensors | random, record, keep)

    def load(self, run: Run) -> None:
        """Load the newest undamaged checkpoint of a run, if it has one, and drop rows of the curve after it."""
        state, path = self.state, self._newest_for_all(run)
        if path is not None:
            self.load_weights(path)
            record, random = checkpoint.load_training(path, state.optimizers, state.raw, cut_like)
            state.progress = read_progress(record, str(path / "state.json"))
            self._check_best(path)
            step = state.progress.step
            try:
                missing = restore_random_states(random, state.world, state.experiment.seed, step)
            except RuntimeError as error:
                raise UserError(
                    f"{path}: expected the state of a random generator, got one that is not: {error}; put back a copy"
                ) from None
            if missing is not None:
                run.notice(f"from here on not bit-exact, because {missing}")
            if state.averaged is not None:
                state.averaged.n_averaged.fill_(step)
        if state.world.is_writer:
            run.cut_metrics(state.progress.step, state.progress.rows)

    def load_weights(self, path: Path) -> None:
        """Load the saved model from a checkpoint; a sharded one takes its own rows."""
        checkpoint.load_model(path, self.state.saved, self.state.experiment.hash, cut_like)

    def _newest_for_all(self, run: Run) -> Path | None:
        """The newest undamaged checkpoint as rank 0 finds it, the same for all ranks."""
        name = ""
        world = self.state.world
        with world.shared_errors():
            if world.is_writer:
                path, problems = checkpoint.newest(run.checkpoints)
                for problem in problems:
                    run.notice(problem)
                name = "" if path is None else path.name
        name = world.all_gather_text(name)[0]
        return run.checkpoints / name if name else None

    def _check_best(self, path: Path) -> None:
        """Raises UserError if a checkpoint's best evaluation lacks its step or this task's metric."""
        best = self.state.progress.best
        if best is None:
            return
        steps = Annotated[int, Ge(1), Le(self.state.progress.step)]
        hints: dict[str, Any] = {"step": steps, self.state.task.metric.name: float}
        check_fields(f"{path / 'state.json'}: best", hints, best)


def read_progress(record: Mapping[str, Any], where: str = "state.json") -> Progress:
    """The progress that a checkpoint records. Raises UserError that names the first wrong field."""
    check_fields(where, get_type_hints(Progress, include_extras=True), record)
    return Progress(**{field.name: record[field.name] for field in fields(Progress)})
