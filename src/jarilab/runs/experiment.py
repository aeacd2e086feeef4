"""Experiments: everything that decides what a run computes, as plain data, and the classes that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import torch
from annotated_types import Ge, Lt

from jarilab._version import __version__
from jarilab.core.devices import CPU
from jarilab.core.errors import UserError, unknown
from jarilab.core.options import check_fields, options_of, read_options
from jarilab.core.registry import spec_file, trust_code, trust_recorded_code
from jarilab.core.storage.files import sha256
from jarilab.encodings import compose
from jarilab.models.base import Checks
from jarilab.models.base import registry as models
from jarilab.nn.init import initialise
from jarilab.runs import resolved_encodings
from jarilab.runs.task_settings import (
    accepts,
    by_section,
    check_replaced,
    complete,
    encodings_in,
    look_up,
    trust_encoding,
    trust_specs,
)
from jarilab.runs.training_options import Precision, Training, checked_precision
from jarilab.tasks.base import Task, check_data
from jarilab.tasks.base import registry as tasks
from jarilab.tasks.policies import base as policies

BUDGET = ("examples", "epochs")
"""Options of training that may grow when a run is finished."""
EARLIER = {"examples": int, "epochs": float | None, "step": Annotated[int, Ge(1)]}


@dataclass(frozen=True)
class Experiment:
    """Task, model and training of a run, with all options.

    precision: the dtype in which the model computes. earlier: the budgets after which the run was finished before, each
    with its last step and the metric there.
    """

    # Defaults are written out, so that a later default does not change an old run.
    task: str
    task_options: dict[str, Any]
    model: str
    model_options: dict[str, Any]
    training: dict[str, Any]
    seed: Annotated[int, Ge(0), Lt(2**63)]
    precision: Literal["float32", "bfloat16"]
    earlier: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(
        task: str,
        encoding: str | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int = 1,
        precision: Precision = "auto",
        model: str | None = None,
        device: torch.device = CPU,
    ) -> Experiment:
        """The experiment of these names and settings, with every default written out.

        task: a spec such as `arithmetic` or `arithmetic:maximum=99`. settings: `{"model.d_model": 128, ...}`, with the
        sections task, model and training. encoding: the same as the setting `model.encoding`. model: the kind of model;
        the task's usual one by default. What is not set takes the task's default, then the general one; but
        `training.examples` overrides the task's epochs, and `training.batch_size` its tokens. Raises UserError for
        unknown or wrong values, and for a precision that the device lacks. Python files in the names are trusted.
        """
        if not 0 <= seed < 2**63:
            raise UserError(f"seed must be from 0 to 2^63 - 1, got {seed}")
        settings = settings or {}
        trust_specs(task, model)
        task_spec, model_spec = look_up(task, model)
        sections = by_section(task_spec, model_spec, settings)
        if encoding is not None:
            if settings.get("model.encoding", encoding) != encoding:
                raise UserError(
                    f"the encoding is given twice, {encoding} and {settings['model.encoding']}; give one"
                )
            sections["model"]["encoding"] = encoding
        owner = f"model ({model_spec.name})"
        usual = by_section(task_spec, model_spec, {})
        model_options = complete(owner, model_spec.target, sections["model"], usual["model"])
        for name, spec in encodings_in(model_options).items():
            model_options[name] = trust_encoding(spec)
        given_options = {**task_spec.options, **sections["task"]}
        task_options = complete(task_spec.name, task_spec.target, given_options, usual["task"])
        training = complete("training", Training, sections["training"], usual["training"])
        for path in policies.files_of(training["positions"]):
            trust_code(path)
        training["positions"] = policies.canonical(training["positions"])
        check_replaced(settings, training)
        return Experiment(
            task_spec.name,
            task_options,
            model_spec.name,
            model_options,
            training,
            seed,
            checked_precision(precision, model_options.get("d_model", 0), device),
        )

    @staticmethod
    def read(record: Mapping[str, Any], where: str) -> Experiment:
        """The experiment in a record of the file `where`. Nothing that it names is executed.

        Raises UserError that names the first wrong, missing or unknown field.
        """
        fields = get_type_hints(Experiment, include_extras=True)
        if "earlier" not in record:
            del fields["earlier"]
        check_fields(f"{where}: experiment", fields, record)
        for budget in record.get("earlier", []):
            check_fields(f"{where}: experiment: earlier", EARLIER, budget)
        experiment = Experiment(**{name: record[name] for name in fields})
        options = experiment.model_options
        hints: dict[str, Any] = {name: str | None for name in options if name.endswith("encoding")}
        # A model of another file need not have this option.
        if spec_file(record["model"]) is None:
            hints["encoding"] = str
        check_fields(f"{where}: experiment: model_options", hints, options)
        _check_recorded(f"{where}: experiment: training", Training, experiment.training)
        for section, registry in (("task", tasks), ("model", models)):
            name = record[section]
            # To read the options of a class in another file is to execute it; `resolved` checks them.
            if spec_file(name):
                continue
            if name not in registry:
                raise unknown(f"{section} in {where}", name, registry.names())
            key = f"{section}_options"
            target = registry.spec(name).target
            _check_recorded(f"{where}: experiment: {key}", target, record[key])
        return experiment

    def trust(self, where: str, allowed: bool) -> Experiment:
        """This experiment, with its Python files trusted if `allowed`. Raises UserError if it names one otherwise."""
        trust_recorded_code(self.files, where, allowed)
        return self

    @cached_property
    def resolved(self) -> Resolved:
        """Its classes and their checked options, looked up once. Raises UserError for code that is not trusted."""
        task_class, model_class = tasks.spec(self.task).target, models.spec(self.model).target
        return Resolved(
            self,
            task_class,
            model_class,
            _checked(self.task, task_class, self.task_options),
            _checked(f"model ({self.model})", model_class, self.model_options),
        )

    @property
    def encoding(self) -> str:
        """The label of the model's encodings, as tables show it."""
        return resolved_encodings.label(self.model, self.model_options)

    @property
    def files(self) -> list[Path]:
        """The Python files that it names."""
        spec_files = map(spec_file, (self.task, self.model))
        files = [path for path in spec_files if path is not None]
        for spec in encodings_in(self.model_options).values():
            files += compose.files_of(spec)
        return files + policies.files_of(self.options.positions)

    @property
    def metric(self) -> str | None:
        """The name of the task's metric; None for a task of another file, which is not executed."""
        if spec_file(self.task) is not None:
            return None
        target = tasks.spec(self.task).target
        return target(**_checked(self.task, target, self.task_options)).metric.name

    @property
    def folder(self) -> str:
        """The default folder of its run."""
        task = as_file_name(self.task)
        encoding, init = as_file_name(self.encoding), self.training["init"]
        origin = "" if init is None else f"-from-{as_file_name(str(Path(init).resolve()))}"
        return f"runs/{task}-{encoding}-{self.seed}{origin}"

    @cached_property
    def options(self) -> Training:
        """The options of training. Raises UserError for a wrong one."""
        return Training(**_checked("training", Training, self.training))

    @property
    def restart(self) -> int:
        """The step from which the learning rate rises again, in a run that was continued; 0 in others."""
        return self.earlier[-1]["step"] if self.earlier else 0

    def as_dict(self) -> dict[str, Any]:
        record = asdict(self)
        if not self.earlier:
            del record["earlier"]
        return record

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of all fields, which stay when a run is continued."""
        record = self.as_dict()
        for first in record.pop("earlier", [])[:1]:
            record["training"] |= {name: first[name] for name in BUDGET}
        text = json.dumps(record, sort_keys=True)  # two orders of the same options are equal
        return sha256(text.encode())[:12]

    def difference(self, other: Experiment) -> list[str]:
        """What differs, a line each: `model.d_model: 64 here, 128 there`."""
        here, there = _flat(self.as_dict()), _flat(other.as_dict())
        return [
            f"{key}: {here.get(key, 'nothing')} here, {there.get(key, 'nothing')} there"
            for key in sorted(here.keys() | there.keys())
            if here.get(key) != there.get(key)
        ]


@dataclass(frozen=True, eq=False)
class Resolved:
    """The classes that an experiment names, with their options checked.

    task_options, model_options: keyword arguments of the classes' constructors.
    """

    experiment: Experiment
    task_class: type[Task]
    model_class: type[torch.nn.Module]
    task_options: dict[str, Any]
    model_options: dict[str, Any]

    def check_data(self) -> list[Any]:
        """The findings of `tasks.base.check_data` for this task. Raises UserError."""
        return check_data(self.task_class(**self.task_options))

    def build_task(self, run: Path | None = None) -> Task:
        """The task with its data, or with the files that the folder `run` saved of them. Raises UserError."""
        task = self.task_class(**self.task_options)
        if not accepts(self.model_class, self.task_class.model_arguments):
            task.join()
        task.set_position_policy(policies.build(self.experiment.options.positions))
        if run is not None:
            task.restore(run)
            return task
        # Before the data: no data make up for options that the model can never have.
        if isinstance(self.model_class, Checks):
            self.model_class.check(self.model_options)
        task.prepare()
        return task

    def build_task_at(self, lengths: Sequence[int]) -> tuple[Task, dict[int, Task]]:
        """The task with its data, and a copy for each of the other lengths to measure. Raises UserError."""
        # Before the data: some tasks prepare them for minutes.
        for length in lengths:
            self.task_class.check_length(length)
        task = self.build_task()
        return task, {length: task.at_length(length) for length in lengths}

    def build_model(self, task: Task) -> torch.nn.Module:
        """The model for this task; its values are not initialised. Raises UserError if it does not fit the data."""
        task.check_model(self.model_options)
        model = self.model_class(**task.model_options, **self.model_options)
        # A model of another file need not have this method.
        max_positions = getattr(model, "max_positions", dict)
        for side, limit in max_positions().items():
            needed = task.policy.reach(task.tokens_read(side))
            if limit is not None and limit < needed:
                policy = self.experiment.options.positions
                under = "" if task.policy.plain else f" under {policy}"
                raise UserError(
                    f"{self.experiment.encoding} knows {limit} positions, but the {side} side of "
                    f"{self.experiment.task} has {needed}{under}; use positions={needed} or an encoding without a limit"
                )
        return model

    def initial_model(self, task: Task) -> torch.nn.Module:
        """`build_model`, with the initial values of the experiment's seed. Raises UserError, too."""
        model = self.build_model(task)
        initialise(model, self.experiment.seed)
        return model


def _checked(owner: str, target: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    return read_options(owner, options_of(target), options)


def _check_recorded(owner: str, target: Any, options: Mapping[str, Any]) -> None:
    """Raises UserError if recorded options of a class are wrong, unknown or not complete."""
    _checked(owner, target, options)
    missing = [name for name in options_of(target) if name not in options]
    if missing:
        raise UserError(
            f"{owner}: expected the option {missing[0]!r} of jarilab {__version__}, got a record without it, which "
            "another version wrote; train again into another folder"
        )


def as_file_name(spec: str) -> str:
    """A spec as a part of a file's name."""
    name = Path(spec).name.replace(" ", "")
    letters = [letter if letter.isalnum() or letter in "=.-" else "_" for letter in name]
    # A letter takes up to 3 bytes, such as Hangul, and most file systems allow 255 bytes a name.
    return "".join(letters)[:80]


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix + key.removesuffix("_options")
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat
