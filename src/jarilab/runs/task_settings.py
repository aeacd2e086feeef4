"""Settings of a task, its model and its training, their defaults, and which models fit a task."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from jarilab.core.errors import UserError, unknown
from jarilab.core.options import Option, options_of, read_options
from jarilab.core.registry import Spec, spec_file, trust_code
from jarilab.encodings import compose
from jarilab.models.base import check_protocol
from jarilab.models.base import registry as models
from jarilab.runs.training_options import REPLACED, Training
from jarilab.tasks.base import Task
from jarilab.tasks.base import registry as tasks
from jarilab.tasks.predictors.base import predictor_class

EMPTY: Mapping[str, Any] = MappingProxyType({})
SECTIONS = ("task", "model", "training")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def look_up(task: str, model: str | None = None) -> tuple[Spec, Spec]:
    """The task and its model; the task's usual model by default. Raises UserError for a model that does not fit."""
    task_spec = tasks.spec(task)
    if model is None:
        return task_spec, models.spec(task_spec.target.usual_model)
    model_spec = models.spec(model)
    name = task.partition(":")[0]
    refusal = refusal_of(name, task_spec.target, model_spec.target)
    if refusal is not None:
        fitting = " or ".join(models_for(task_spec.target))
        raise UserError(f"{name} cannot be learned by the model {model}: {refusal}; use {fitting}")
    return task_spec, model_spec


def settings_of(task: str, model: str | None = None) -> dict[str, Option]:
    """Every setting of a task, its model and its training, by full name, with its default here.

    Raises UserError if either names a Python file that is not trusted: a recorded run passes its names, too.
    """
    return list_settings(*look_up(task, model))


def list_settings(task: Spec, model: Spec) -> dict[str, Option]:
    """Every setting by its full name, such as `model.d_model`, with the default that the task gives it."""
    defaults = dict(task.target.defaults(model.name))
    for replaced, replacement in REPLACED.items():
        if defaults.get(f"training.{replacement}") is not None:
            defaults[f"training.{replaced}"] = None
    targets = {"task": task.target, "model": model.target, "training": Training}
    settings: dict[str, Option] = {}
    for section, target in targets.items():
        for name, option in options_of(target).items():
            key = f"{section}.{name}"
            settings[key] = replace(option, default=defaults.get(key, option.default))
    return settings


def by_section(task: Spec, model: Spec, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The task's defaults and the settings, by section: task, model, training. Raises UserError for an unknown section.

    A setting such as `training.examples` cancels a default of the option that would replace it.
    """
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, value in {**_defaults(task, model), **settings}.items():
        section, _, name = key.partition(".")
        if section not in SECTIONS or not name:
            raise unknown("setting", key, list_settings(task, model))
        sections[section][name] = value
    for replaced, replacement in REPLACED.items():
        if f"training.{replaced}" in settings and f"training.{replacement}" not in settings:
            sections["training"][replacement] = None
    return sections


def check_replaced(settings: Iterable[str], training: Mapping[str, Any]) -> None:
    """Raises UserError if a setting and the one that replaces it were both given."""
    for replaced, replacement in REPLACED.items():
        both = {f"training.{replaced}", f"training.{replacement}"}
        if both <= set(settings) and training[replacement] is not None:
            raise UserError(
                f"training.{replacement} takes the place of training.{replaced}: expected one of them, got "
                f"{training[replacement]} and {training[replaced]}; omit one"
            )


def _defaults(task: Spec, model: Spec) -> dict[str, Any]:
    """The task's defaults without those of options that a model of another file does not have."""
    known = {f"model.{name}" for name in options_of(model.target)}
    defaults = task.target.defaults(model.name)
    return {k: v for k, v in defaults.items() if k in known or not k.startswith("model.")}


def complete(
    owner: str, target: Any, options: Mapping[str, Any], usual: Mapping[str, Any] = EMPTY
) -> dict[str, Any]:
    """All options of a class: the checked `options`, and the defaults of the others.

    owner: the name of the class in errors. usual: defaults of the task, which errors show. Raises UserError for an
    unknown or wrong option.
    """
    known = options_of(target)
    shown = {
        name: replace(one, default=usual.get(name, one.default)) for name, one in known.items()
    }
    checked = read_options(owner, shown, options)
    values = {name: checked.get(name, option.default) for name, option in known.items()}
    # JSON has no tuples: a recorded experiment must be equal to this one.
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def encodings_in(model_options: Mapping[str, Any]) -> dict[str, str]:
    """The options of a model that name an encoding, with its spec."""
    specs = {name: spec for name, spec in model_options.items() if name.endswith("encoding")}
    return {name: spec for name, spec in specs.items() if spec is not None}


def trust_encoding(spec: str) -> str:
    """The canonical text of an encoding that a person typed; its Python files are trusted. Raises UserError."""
    for path in compose.files_of(spec):
        trust_code(path)
    return compose.canonical(spec)


def trust_specs(*specs: str | None) -> None:
    """Trust the Python files that a person typed as task or model."""
    for spec in specs:
        path = None if spec is None else spec_file(spec)
        if path is not None:
            trust_code(path)


# Models that fit a task ----------------------------------------------------------------------------------------------


def models_for(task_class: type[Task]) -> list[str]:
    """The models of the package that can learn a task, the usual one first."""
    targets = {name: models.spec(name).target for name in models.names()}
    fitting = [
        n for n, target in targets.items() if refusal_of("the task", task_class, target) is None
    ]
    return sorted(fitting, key=lambda name: name != task_class.usual_model)


def refusal_of(task: str, task_class: type[Task], model_class: type) -> str | None:
    """Why a class of models cannot learn a task: a missing method or other arguments; None if it can."""
    protocol = predictor_class(task_class).needs
    try:
        if protocol is not None:
            check_protocol(model_class, protocol, task)
    except UserError as error:
        return str(error)
    arguments, joined = task_class.model_arguments, task_class.joined_arguments
    if accepts(model_class, arguments) or (joined and accepts(model_class, joined)):
        return None
    required = ", ".join(_required(model_class)) or "nothing"
    also = f", or {', '.join(joined)}" if joined else ""
    return f"{task} gives a model {', '.join(arguments)}{also}; {model_class.__name__} takes {required}"


def accepts(model_class: type, arguments: Sequence[str]) -> bool:
    """Whether a class of models can be constructed from the arguments that a task gives."""
    parameters = inspect.signature(model_class).parameters
    return set(_required(model_class)) <= set(arguments) <= set(parameters)


def _required(model_class: type) -> list[str]:
    """The constructor arguments without a default."""
    parameters = inspect.signature(model_class).parameters.values()
    return [p.name for p in parameters if p.kind in _NAMED and p.default is p.empty]
