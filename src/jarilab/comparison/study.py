"""A study: one model under several encodings and seeds, with equal budgets, its study.json and its trials."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields, options_of
from jarilab.core.storage.files import check_format, read_json, write_json
from jarilab.runs.experiment import Experiment, as_file_name
from jarilab.runs.lock import is_training
from jarilab.runs.resolved_encodings import overriding
from jarilab.runs.results import read_result
from jarilab.runs.task_settings import trust_encoding
from jarilab.runs.training_options import Precision, Training, deciding
from jarilab.tasks.base import registry as tasks
from jarilab.tasks.metrics import Metric

RECORD = "study.json"
FORMAT = "jari study 1"
FIELDS = {
    "format": Literal["jari study 1"],
    "experiment": dict[str, Any],
    "encodings": list[str],
    "seeds": int,
    "snapshots": int,
    "rates": list[float],
    "eval_lengths": list[int],
}
"""The fields of study.json."""
SEED = 0
"""The seed of trials that choose a learning rate; the compared ones have seeds from 1."""


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


@dataclass(frozen=True)
class Study:
    """The encodings, seeds and settings to compare.

    experiment: the first trial; the others differ in encoding and seed alone. encodings: their specs. seeds: the number
    of seeds, from 1. snapshots: weights to keep of each trial. rates: learning rates to choose from for each encoding;
    empty without tuning. eval_lengths: other lengths at which trials are measured, in ascending order.
    """

    experiment: Experiment
    encodings: tuple[str, ...]
    seeds: int
    snapshots: int = 0
    rates: tuple[float, ...] = ()
    eval_lengths: tuple[int, ...] = ()

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
        eval_lengths: Sequence[int] = (),
    ) -> Study:
        """The study of these settings. Raises UserError as `Experiment.of`, and for wrong rates or seeds."""
        _check_seeds(seeds)
        check_rates(rates, settings)
        experiments = [
            Experiment.of(task, spec, settings, 1, precision, model) for spec in encodings
        ]
        for experiment in experiments:
            _check_compared(experiment)
        specs = [experiment.model_options["encoding"] for experiment in experiments]
        lengths = tuple(sorted(set(eval_lengths)))
        return Study(experiments[0], tuple(specs), seeds, snapshots, tuple(rates), lengths)

    @staticmethod
    def read(folder: Path) -> Study:
        """The study in a folder. Nothing that it names is executed. Raises UserError for a damaged study.json."""
        path = folder / RECORD
        record = read_json(path)
        check_format(path, FORMAT, record)
        record.setdefault("eval_lengths", [])  # studies without other lengths need not name them
        check_fields(str(path), FIELDS, record)
        experiment = Experiment.read(record["experiment"], str(path))
        encodings, rates = tuple(record["encodings"]), tuple(record["rates"])
        lengths = tuple(record["eval_lengths"])
        study = Study(experiment, encodings, record["seeds"], record["snapshots"], rates, lengths)
        if not study.encodings or "encoding" not in experiment.model_options:
            raise UserError(f"{path} names no encodings")
        _check_seeds(study.seeds)
        check_rates(study.rates, {})
        return study

    def trust(self, folder: Path, allowed: bool) -> Study:
        """Trust the Python files that the study names.

        allowed: whether they may be executed. Raises UserError if there is one and this is False.
        """
        for trial in self.trials(folder):
            trial.experiment.trust(str(folder / RECORD), allowed)
        return self

    def write(self, folder: Path) -> None:
        """Write study.json, so that `jarilab compare FOLDER` can continue."""
        record = {"format": FORMAT, **asdict(self)}
        write_json(folder / RECORD, record)

    def extend(
        self, encodings: Sequence[str], seeds: int | None, eval_lengths: Sequence[int] = ()
    ) -> Study:
        """A study with more encodings, each written as `+t5`, more seeds, and more lengths to measure.

        Raises UserError for an encoding without a plus and for fewer seeds.
        """
        added = []
        for spec in encodings:
            if not spec.startswith("+"):
                raise UserError(
                    f"the study has {', '.join(self.encodings)}; write an encoding to add with a plus, "
                    f"such as --encodings +{spec}"
                )
            spec_text = trust_encoding(spec.removeprefix("+"))
            added += [spec_text] if spec_text not in (*self.encodings, *added) else []
        seeds = self.seeds if seeds is None else seeds
        if seeds < self.seeds:
            raise UserError(
                f"the study has {self.seeds} seeds, got {seeds}; give more, or omit --seeds"
            )
        lengths = tuple(sorted({*self.eval_lengths, *eval_lengths}))
        encodings = (*self.encodings, *added)
        return replace(self, encodings=encodings, seeds=seeds, eval_lengths=lengths)

    def check_folder(self, folder: Path) -> None:
        """Raises UserError if the folder holds another study. Encodings and seeds may differ."""
        if not (folder / RECORD).exists():
            return
        study = Study.read(folder)
        saved = study.experiment
        requested = self._variant(saved.model_options["encoding"], saved.seed)
        differences = requested.difference(saved)
        if study.rates != self.rates:
            differences.append(
                f"learning rates to choose among: {self.rates} here, {study.rates} there"
            )
        if differences:
            lines = "\n  ".join(differences)
            raise UserError(
                f"{folder} holds another study than this comparison asks for; choose another --out, or give its "
                f"settings:\n  {lines}"
            )

    def _variant(self, encoding: str, seed: int, rate: float | None = None) -> Experiment:
        """The experiment of a trial. rate: its learning rate, if that is tuned."""
        options = {**self.experiment.model_options, "encoding": encoding}
        training = self.experiment.training
        if rate is not None:
            training = {**training, "lr": rate}
        return replace(self.experiment, model_options=options, training=training, seed=seed)

    def tuning(self, folder: Path) -> list[Trial]:
        """The trials that train each encoding with each learning rate."""
        trials = []
        for spec, rate in itertools.product(self.encodings, self.rates):
            experiment = self._variant(spec, SEED, rate)
            name = f"{as_file_name(experiment.encoding)}-rate={rate:g}"
            trials.append(Trial(name, experiment, folder / "tuning" / name))
        return trials

    def trials(self, folder: Path, rates: Mapping[str, float] | None = None) -> list[Trial]:
        """All trials to compare, seed by seed, so that an interrupted study has whole pairs.

        rates: the learning rate of each encoding by its label, if tuned. Raises UserError if two trials have one name.
        """
        trials: list[Trial] = []
        for seed, spec in itertools.product(range(1, self.seeds + 1), self.encodings):
            label = self._variant(spec, seed).encoding
            experiment = self._variant(spec, seed, (rates or {}).get(label))
            name = f"{as_file_name(experiment.encoding)}-{seed}"
            trials.append(Trial(name, experiment, folder / name, self.eval_lengths))
        names = [trial.name for trial in trials]
        for name in names:
            if names.count(name) > 1:
                labels = [trial.experiment.encoding for trial in trials if trial.name == name]
                raise UserError(
                    f"two trials would be called {name}, of {' and '.join(labels)}; name each encoding once, and give "
                    "files of your own different names"
                )
        return trials


def _check_seeds(seeds: int) -> None:
    if seeds < 1:
        raise UserError(f"a comparison needs at least one seed, got {seeds}")


def _check_compared(experiment: Experiment) -> None:
    """Raises UserError if other options override the encoding in every attention, or tell the order without it."""
    if experiment.model_options.get("token_before"):
        raise UserError(
            "model.token_before=true tells the order of tokens by itself, so no encoding could show what it is worth; "
            "omit model.token_before"
        )
    overrides = overriding(experiment.model, experiment.model_options)
    if not overrides:
        return
    assignments = [f"model.{name}={experiment.model_options[name]}" for name in overrides]
    names = [f"model.{name}" for name in overrides]
    raise UserError(
        f"--encodings would change nothing: {' and '.join(assignments)} take the place of it in every attention; omit "
        f"{' or '.join(names)}"
    )


def is_study(task: str | Path) -> bool:
    """Whether `task` is the folder of a study, not the name of a task. Raises UserError for any other folder."""
    folder = Path(task)
    if (folder / RECORD).is_file():
        return True
    if folder.is_dir() and str(task) not in tasks.names():
        raise UserError(
            f"{folder} is a folder and holds no study: it has no {RECORD}; name a task, such as arithmetic, with "
            "--encodings and --out"
        )
    return False


# Learning rates -----------------------------------------------------------------------------------------------------


def tuned_values(trials: Sequence[Trial], metric: Metric) -> list[dict[str, Any]]:
    """The result of each finished trial: its encoding, learning rate (`lr`) and value of the metric."""
    rows = []
    for trial in trials:
        if trial.finished:
            experiment = trial.experiment
            result = read_result(trial.folder, experiment.hash)
            rate = experiment.training["lr"]
            measurement = {"lr": rate, "value": result[metric.name]}
            rows.append({"encoding": experiment.encoding, **measurement})
    return rows


def best_rates(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, float]:
    """The best learning rate of each encoding; of equals, the first."""
    best: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        best_row = best.setdefault(row["encoding"], row)
        if metric.better(row["value"], best_row["value"]):
            best[row["encoding"]] = row
    return {encoding: row["lr"] for encoding, row in best.items()}


def check_rates(rates: Sequence[float], settings: Mapping[str, Any]) -> None:
    """Raises UserError for learning rates that cannot be compared."""
    invalid = [rate for rate in rates if not 0 < rate < float("inf")]
    if invalid or len(rates) == 1 or len(set(rates)) < len(rates):
        text = ", ".join(map(str, rates))
        raise UserError(
            f"expected two different learning rates above 0 or more to choose among, got {text}; such as 0.002,0.004"
        )
    for rate in rates:
        options_of(Training)["lr"].read_as("learning rates to choose among", rate)
    if rates and "training.lr" in settings:
        raise UserError("the learning rate is tuned, so it cannot be given too; omit training.lr")
