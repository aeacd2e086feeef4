"""A study: what is compared, the same model under several encodings and seeds, with equal budgets; and its file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jarilab.comparison.trial import Trial
from jarilab.comparison.tuning import SEED, check_rates
from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.core.storage.files import check_format, read_json, write_json
from jarilab.runs.experiment import Experiment, as_file_name
from jarilab.runs.options import Precision
from jarilab.runs.resolved_encodings import overriding
from jarilab.runs.task_settings import trust_encoding
from jarilab.tasks.base import registry as tasks

RECORD = "study.json"
FORMAT = "jari study 1"
FIELDS = {
    "format": Literal["jari study 1"],
    "experiment": dict[str, Any],
    "encodings": list[str],
    "seeds": int,
    "snapshots": int,
    "rates": list[float],
}
"""What study.json holds."""


@dataclass(frozen=True)
class Study:
    """experiment: the first trial; all others differ from it by encoding and seed alone. encodings: their specs.
    seeds: how many, from 1. snapshots: of the weights of each trial. rates: learning rates, of which
    each encoding gets its best; none where they are not tuned."""

    experiment: Experiment
    encodings: tuple[str, ...]
    seeds: int
    snapshots: int = 0
    rates: tuple[float, ...] = ()

    @staticmethod
    def of(
        task: str,
        encodings: Sequence[str],
        seeds: int,
        settings: Mapping[str, Any],
        precision: Precision = "auto",
        model: str | None = None,
        snapshots: int = 0,
        rates: Sequence[float] = (),
    ) -> Study:
        """The study that a person asked for. Raises UserError."""
        _check_seeds(seeds)
        check_rates(rates, settings)
        of_each = [Experiment.of(task, spec, settings, 1, precision, model) for spec in encodings]
        for experiment in of_each:
            _check_compared(experiment)
        specs = [experiment.model_options["encoding"] for experiment in of_each]
        return Study(of_each[0], tuple(specs), seeds, snapshots, tuple(rates))

    @staticmethod
    def read(folder: Path) -> Study:
        """The study in a folder; nothing that it names is executed. Raises UserError."""
        path = folder / RECORD
        record = read_json(path)
        check_format(path, FORMAT, record)
        check_fields(str(path), FIELDS, record)
        experiment = Experiment.read(record["experiment"], str(path))
        encodings, rates = tuple(record["encodings"]), tuple(record["rates"])
        study = Study(experiment, encodings, record["seeds"], record["snapshots"], rates)
        if not study.encodings or "encoding" not in experiment.model_options:
            raise UserError(f"{path} names no encodings")
        _check_seeds(study.seeds)
        check_rates(study.rates, {})
        return study

    def trusted(self, folder: Path, told: bool) -> Study:
        """Itself. told: whether to let the Python files that it names be executed; raises UserError where it names one
        and was not told."""
        for trial in self.trials(folder):
            trial.experiment.trust(str(folder / RECORD), told)
        return self

    def write(self, folder: Path) -> None:
        """Keep it, so that `jarilab compare FOLDER` goes on with it."""
        record = {"format": FORMAT, **asdict(self)}
        write_json(folder / RECORD, record)

    def extended(self, encodings: Sequence[str], seeds: int | None) -> Study:
        """With more encodings, each written as `+t5`, and as many seeds as are asked for. Raises UserError."""
        added = []
        for spec in encodings:
            if not spec.startswith("+"):
                raise UserError(
                    f"the study has {', '.join(self.encodings)}; what is added is written with a plus, "
                    f"such as --encodings +{spec}"
                )
            named = trust_encoding(spec.removeprefix("+"))
            added += [named] if named not in (*self.encodings, *added) else []
        seeds = self.seeds if seeds is None else seeds
        if seeds < self.seeds:
            raise UserError(
                f"the study has {self.seeds} seeds, got {seeds}; give more, or omit --seeds"
            )
        return replace(self, encodings=(*self.encodings, *added), seeds=seeds)

    def check_folder(self, folder: Path) -> None:
        """Raise UserError if the folder holds another study; encodings and seeds may differ."""
        if not (folder / RECORD).exists():
            return
        study = Study.read(folder)
        held = study.experiment
        mine = self._under(held.model_options["encoding"], held.seed)
        different = mine.difference(held)
        if study.rates != self.rates:
            different.append(
                f"learning rates to choose among: {self.rates} here, {study.rates} there"
            )
        if different:
            lines = "\n  ".join(different)
            raise UserError(
                f"{folder} holds another study than this comparison asks for; choose another --out, or give its "
                f"settings:\n  {lines}"
            )

    def _under(self, encoding: str, seed: int, rate: float | None = None) -> Experiment:
        options = {**self.experiment.model_options, "encoding": encoding}
        training = self.experiment.training
        if rate is not None:
            training = {**training, "lr": rate}
        return replace(self.experiment, model_options=options, training=training, seed=seed)

    def tuning(self, folder: Path) -> list[Trial]:
        """The trials that learning rates are chosen by."""
        trials = []
        for spec, rate in itertools.product(self.encodings, self.rates):
            experiment = self._under(spec, SEED, rate)
            name = f"{as_file_name(experiment.encoding)}-rate={rate:g}"
            trials.append(Trial(name, experiment, folder / "tuning" / name))
        return trials

    def trials(self, folder: Path, rates: Mapping[str, float] | None = None) -> list[Trial]:
        """All of them, seed by seed, so that a study that is cut off has whole pairs. rates: the learning rate of each
        encoding, by its label, where they are tuned. Raises UserError for two of one name."""
        trials: list[Trial] = []
        for seed, spec in itertools.product(range(1, self.seeds + 1), self.encodings):
            label = self._under(spec, seed).encoding
            experiment = self._under(spec, seed, (rates or {}).get(label))
            name = f"{as_file_name(experiment.encoding)}-{seed}"
            trials.append(Trial(name, experiment, folder / name))
        taken = [trial.name for trial in trials]
        for name in taken:
            if taken.count(name) > 1:
                twice = [trial.experiment.encoding for trial in trials if trial.name == name]
                raise UserError(
                    f"two trials would be called {name}, of {' and '.join(twice)}; name each encoding once, and give "
                    "files of your own different names"
                )
        return trials


def _check_seeds(seeds: int) -> None:
    if seeds < 1:
        raise UserError(f"a comparison needs at least one seed, got {seeds}")


def _check_compared(experiment: Experiment) -> None:
    """Raises UserError where other options leave nothing to the encodings that are compared."""
    instead = overriding(experiment.model, experiment.model_options)
    if not instead:
        return
    chosen = [f"model.{name}={experiment.model_options[name]}" for name in instead]
    omitted = [f"model.{name}" for name in instead]
    raise UserError(
        f"--encodings would change nothing: {' and '.join(chosen)} take the place of it in every attention; omit "
        f"{' or '.join(omitted)}"
    )


def is_study(task: str | Path) -> bool:
    """Whether this is the folder of a study, and not the name of a task. Raises UserError for any other folder."""
    folder = Path(task)
    if (folder / RECORD).is_file():
        return True
    if folder.is_dir() and str(task) not in tasks.names():
        raise UserError(
            f"{folder} is a folder and holds no study: it has no {RECORD}; name a task, such as arithmetic, with "
            "--encodings and --out"
        )
    return False
