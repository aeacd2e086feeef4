"""A trial: one training of a study, and the command that trains it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from jarilab.runs.experiment import Experiment
from jarilab.runs.lock import is_training
from jarilab.runs.results import read_result
from jarilab.runs.training_options import deciding


@dataclass(frozen=True)
class Trial:
    """One training of a study. lengths: other lengths at which it is measured."""

    name: str
    experiment: Experiment
    folder: Path
    lengths: tuple[int, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether it has a result, at all its lengths."""
        if not (self.folder / "result.json").exists():
            return False
        if not self.lengths:
            return True
        result = read_result(self.folder, self.experiment.hash)
        return set(map(str, self.lengths)) <= result.get("lengths", {}).keys()

    @property
    def is_training(self) -> bool:
        """Whether a process trains it, such as one that outlived its comparison."""
        return is_training(self.folder)

    @property
    def log(self) -> Path:
        """The file of its output."""
        return self.folder.parent / f"{self.name}.log"

    @property
    def command(self) -> list[str]:
        """The command that trains it, as a user would type it."""
        experiment = self.experiment
        words = ["jarilab", "train", experiment.task]
        # One thread: trials share the cores, and the number of threads decides bits.
        words += ["--out", str(self.folder), "--threads", "1"]
        words += ["--seed", str(experiment.seed), "--precision", experiment.precision]
        words += ["--model", experiment.model]
        if self.lengths:
            words += ["--eval-lengths", ",".join(map(str, self.lengths))]
        sections = {
            "task": experiment.task_options,
            "model": experiment.model_options,
            "training": deciding(experiment.training),
        }
        for section, options in sections.items():
            for name, value in sorted(options.items()):
                in_json = value is None or isinstance(value, list | tuple)
                text = json.dumps(value) if in_json else value
                words += ["--set", f"{section}.{name}={text}"]
        return words

    def words(self, snapshots: int) -> list[str]:
        """The arguments of `jarilab` that train it. snapshots: weights to keep, which change nothing else."""
        _, *words = self.command
        return [*words, "--snapshots", str(snapshots)]
