"""An experiment: everything that decides what a run computes, as plain data. Its hash names the run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_type_hints

import torch
from annotated_types import Ge, Lt

from jarilab.core.devices import CPU, describe, has_bfloat16
from jarilab.core.errors import UserError, unknown
from jarilab.core.options import Option, check_fields, options_of, read_options
from jarilab.core.registry import file_of, trust_code, trust_recorded_code
from jarilab.core.storage.files import sha256
from jarilab.encodings import compose
from jarilab.models.base import Checks, check_protocol
from jarilab.models.base import registry as models
from jarilab.runs import built
from jarilab.runs.options import REPLACED, Training
from jarilab.runs.precision import Precision, choose_precision
from jarilab.tasks.base import Task
from jarilab.tasks.base import registry as tasks
from jarilab.tasks.policies import base as policies
from jarilab.tasks.predictors.base import predictor_class

SECTIONS = ("task", "model", "training")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Experiment:
    """Names, and all options with their defaults written out, so that a later default does not change an old run."""

    task: str
    task_options: dict[str, Any]
    model: str
    model_options: dict[str, Any]
    training: dict[str, Any]
    seed: Annotated[int, Ge(0), Lt(2**63)]
    precision: Literal["float32", "bfloat16"]

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
        """The experiment that a person asked for. Raises UserError for anything unknown, and for a precision that the
        device, on which it is to be trained, does not have.

        task: a spec such as `arithmetic` or `arithmetic:maximum=99`. settings: `{"model.width": 128, ...}`, with the
        sections task, model and training. encoding: the same as the setting `model.encoding`. model: the kind, the
        task's usual one by default. What is not set comes from the task's own defaults, then from the general ones: but
        `training.examples` puts the task's epochs out of force, `training.batch` its tokens.
        """
        if not 0 <= seed < 2**63:
            raise UserError(f"seed must be from 0 to 2^63 - 1, got {seed}")
        trust_specs(task, model)
        task_spec = tasks.spec(task)
        settings = settings or {}
        model = model_of(task, model)
        sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        chosen = {**_defaults(task_spec.target, model), **settings}
        for key, value in chosen.items():
            section, _, name = key.partition(".")
            if section not in SECTIONS or not name:
                raise unknown("setting", key, settings_of(task, model))
            sections[section][name] = value
        training_settings = [key for key in settings if key.startswith("training.")]
        asked = {key.removeprefix("training.") for key in training_settings}
        for old, new in REPLACED.items():
            if old in asked and new not in asked:
                sections["training"][new] = None
        if encoding is not None:
            if settings.get("model.encoding", encoding) != encoding:
                raise UserError(
                    f"the encoding is given twice, {encoding} and {settings['model.encoding']}; give one"
                )
            sections["model"]["encoding"] = encoding
        model_class = models.spec(model).target
        model_options = _complete(f"model ({model})", model_class, sections["model"])
        for name, spec in _encodings_of(model_options).items():
            model_options[name] = named_encoding(spec)
        of_task = {**task_spec.options, **sections["task"]}
        task_options = _complete(task_spec.name, task_spec.target, of_task)
        training = _complete("training", Training, sections["training"])
        for path in policies.files_of(training["positions"]):
            trust_code(path)
        training["positions"] = policies.canonical(training["positions"])
        for old, new in REPLACED.items():
            if {old, new} <= asked and training[new] is not None:
                raise UserError(
                    f"training.{new} takes the place of training.{old}: expected one of them, got {training[new]} and "
                    f"{training[old]}; omit one"
                )
        if precision == "auto":
            precision = choose_precision(model_options.get("width", 0), device)
        if precision not in ("float32", "bfloat16"):
            raise unknown("precision", precision, ("auto", "float32", "bfloat16"))
        if precision == "bfloat16" and device != CPU and not has_bfloat16(device):
            raise UserError(f"{describe(device)} does not compute in bfloat16; use float32")
        return Experiment(
            task_spec.name, task_options, model, model_options, training, seed, precision
        )

    @staticmethod
    def read(record: Mapping[str, Any], where: str) -> Experiment:
        """The experiment in the record of a run. Nothing in it is executed. Raises UserError for a record that is not
        one of ours, naming the field."""
        fields = get_type_hints(Experiment, include_extras=True)
        check_fields(f"{where}: experiment", fields, record)
        named = {name: record[name] for name in fields}
        experiment = Experiment(**named)
        own = experiment.model_options
        encodings: dict[str, Any] = {name: str | None for name in own if name.endswith("encoding")}
        if file_of(record["model"]) is None:  # a model of one's own may go without
            encodings["encoding"] = str
        check_fields(f"{where}: experiment: model_options", encodings, own)
        _checked(f"{where}: experiment: training", Training, experiment.training)
        for section, registry in (("task", tasks), ("model", models)):
            name = record[section]
            if file_of(name):
                continue  # its options are checked when it is built: to look at them is to execute the file
            if name not in registry.names():
                raise unknown(f"{section} in {where}", name, registry.names())
            options = f"{section}_options"
            target = registry.spec(name).target
            _checked(f"{where}: experiment: {options}", target, record[options])
        return experiment

    def trust(self, where: str, told: bool) -> Experiment:
        """Itself. told: whether to let the Python files that it names be executed; raises UserError where it names one
        and was not told. (A registry refuses the file in any case.)"""
        trust_recorded_code(self.files, where, told)
        return self

    def task_instance(self, run: Path | None = None) -> Task:
        """The task with its data; or, given the folder of a run, with what the run keeps of them. Raises UserError."""
        target = tasks.spec(self.task).target
        options = _checked(self.task, target, self.task_options)
        task: Task = target(**options)
        if not fits(target.model_arguments, models.spec(self.model).target):
            task.join()
        task.place_by(policies.build(self.options.positions))
        if run is None:
            self._check_model()
            task.prepare()
        else:
            task.restore(run)
        return task

    def _check_model(self) -> None:
        """Raises UserError where no data could make up for the options of the model."""
        target = models.spec(self.model).target
        if isinstance(target, Checks):
            options = _checked(f"model ({self.model})", target, self.model_options)
            target.check(options)

    def model_instance(self, task: Task) -> torch.nn.Module:
        """The model, with whatever initial values. Raises UserError where it cannot do the task."""
        target = models.spec(self.model).target
        options = _checked(f"model ({self.model})", target, self.model_options)
        task.check_model(options)
        model = target(**task.model_options, **options)
        # A model of one's own need not have an end.
        known_positions = getattr(model, "max_positions", dict)
        for side, known in known_positions().items():
            needed = task.policy.reach(task.tokens_read(side))
            if known is not None and known < needed:
                under = "" if task.policy.plain else f" under {self.options.positions}"
                raise UserError(
                    f"{self.encoding} knows {known} positions, but the {side} side of {self.task} has {needed}{under}; "
                    f"use positions={needed} or an encoding without an end"
                )
        return model

    @property
    def encoding(self) -> str:
        """The encodings that the model is built with, as tables show them."""
        return built.label(self.model, self.model_options)

    @property
    def files(self) -> list[Path]:
        """The Python files that it names."""
        named = map(file_of, (self.task, self.model))
        files = [path for path in named if path is not None]
        for spec in _encodings_of(self.model_options).values():
            files += compose.files_of(spec)
        return files + policies.files_of(self.options.positions)

    @property
    def folder(self) -> str:
        """Where a run of it goes by default."""
        task = as_file_name(self.task)
        encoding = as_file_name(self.encoding)
        return f"runs/{task}-{encoding}-{self.seed}"

    @property
    def options(self) -> Training:
        return Training(**_checked("training", Training, self.training))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits; equal for equal experiments only."""
        record = self.as_dict()
        text = json.dumps(record, sort_keys=True)
        return sha256(text.encode())[:12]

    def difference(self, other: Experiment) -> list[str]:
        """What differs, a line each: `model.width: 64 here, 128 there`."""
        mine = _flat(self.as_dict())
        theirs = _flat(other.as_dict())
        lines = []
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                here = mine.get(key, "nothing")
                there = theirs.get(key, "nothing")
                lines.append(f"{key}: {here} here, {there} there")
        return lines


def _defaults(task_class: type[Task], model: str) -> dict[str, Any]:
    """The task's own defaults, of the model only those that it has: one of a person's own has its own options."""
    model_options = options_of(models.spec(model).target)
    known = {f"model.{name}" for name in model_options}
    defaults = task_class.defaults(model)
    others = {key for key in defaults if key.startswith("model.") and key not in known}
    return {key: value for key, value in defaults.items() if key not in others}


def _complete(owner: str, target: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    options = options_of(target)
    read = read_options(owner, options, given)
    complete = {}
    for name, option in options.items():
        value = read.get(name, option.default)
        # Lists, as the record of a run gives them back.
        complete[name] = list(value) if isinstance(value, tuple) else value
    return complete


def _checked(owner: str, target: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    return read_options(owner, options_of(target), given)


def as_file_name(spec: str) -> str:
    """A spec as a part of a file's name."""
    name = Path(spec).name.replace(" ", "")
    letters = [letter if letter.isalnum() or letter in "=.-" else "_" for letter in name]
    return "".join(letters)[:80]


def _encodings_of(model_options: Mapping[str, Any]) -> dict[str, str]:
    """The options of a model that name an encoding, and its spec."""
    named = {name: spec for name, spec in model_options.items() if name.endswith("encoding")}
    return {name: spec for name, spec in named.items() if spec is not None}


def named_encoding(spec: str) -> str:
    """The canonical text of an encoding that a person named; the Python files in it are trusted. Raises UserError."""
    for path in compose.files_of(spec):
        trust_code(path)
    return compose.canonical(spec)


def trust_specs(*specs: str | None) -> None:
    """Trust the Python files that a person named as task or model."""
    for spec in specs:
        path = None if spec is None else file_of(spec)
        if path is not None:
            trust_code(path)


def model_of(task: str, model: str | None = None) -> str:
    """The kind of model: the task's usual one by default. Raises UserError for one that cannot learn the task."""
    task_class = tasks.spec(task).target
    if model is None:
        return task_class.usual_model
    name = task.partition(":")[0]
    spec = models.spec(model)
    refusal = refusal_of(name, task_class, spec.target)
    if refusal is not None:
        fitting = " or ".join(models_for(task_class))
        raise UserError(f"{name} cannot be learned by the model {model}: {refusal}; use {fitting}")
    return spec.name


def models_for(task_class: type[Task]) -> list[str]:
    """The models of the package that can learn a task, the usual one first."""
    usual = task_class.usual_model
    fitting = []
    for name in models.names():
        model_class = models.spec(name).target
        if refusal_of("the task", task_class, model_class) is None:
            fitting.append(name)
    return sorted(fitting, key=lambda name: name != usual)


def refusal_of(task: str, task_class: type[Task], model_class: type) -> str | None:
    """Why a class of models cannot learn a task: a method that is missing, or other arguments than the task gives."""
    needed = predictor_class(task_class).needs
    try:
        if needed is not None:
            check_protocol(model_class, needed, task)
    except UserError as error:
        return str(error)
    given, joined = task_class.model_arguments, task_class.joined_arguments
    if fits(given, model_class) or (joined and fits(joined, model_class)):
        return None
    takes = ", ".join(_required(model_class)) or "nothing"
    also = f", or {', '.join(joined)}" if joined else ""
    return f"{task} gives a model {', '.join(given)}{also}; {model_class.__name__} takes {takes}"


def fits(given: Sequence[str], model_class: type) -> bool:
    """Whether a class of models can be made of the arguments that a task gives."""
    parameters = inspect.signature(model_class).parameters
    return set(_required(model_class)) <= set(given) <= set(parameters)


def _required(model_class: type) -> list[str]:
    """The arguments that a class cannot be made without."""
    parameters = inspect.signature(model_class).parameters.values()
    named = [one for one in parameters if one.kind in _NAMED]
    return [one.name for one in named if one.default is one.empty]


def settings_of(task: str, model: str | None = None) -> dict[str, Option]:
    """Every setting of a task, its model and its training, by its full name, with the default that holds here.

    Raises UserError if either names a Python file that is not trusted: a recorded run passes its names, too.
    """
    task_class = cast("type[Task]", tasks.spec(task).target)
    model = model_of(task, model)
    sections = {"task": task_class, "model": models.spec(model).target, "training": Training}
    own = dict(task_class.defaults(model))
    for old, new in REPLACED.items():
        if own.get(f"training.{new}") is not None:
            own[f"training.{old}"] = None
    settings: dict[str, Option] = {}
    for section, target in sections.items():
        for name, option in options_of(target).items():
            key = f"{section}.{name}"
            default = own.get(key, option.default)
            settings[key] = replace(option, default=default)
    return settings


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix + key.removesuffix("_options")
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat
