"""The settings of a task, its model and its training, each a flag of its own: `--d-model 64` is `model.d_model`."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import SETTINGS, Parser, Words, first_word, taken
from jarilab.cli.flags import add_flag, flag_of
from jarilab.core.errors import UserError
from jarilab.core.registry import split_specs

if TYPE_CHECKING:
    from jarilab.runs.experiment import Experiment

ENCODING = "model.encoding"


def add_task(
    parser: Parser,
    words: Words,
    *,
    without: Sequence[str] = (),
    optional: bool = False,
    recorded: Experiment | None = None,
) -> None:
    """Add the task and every setting of it, its model and its training.

    without: full names of settings that are not flags. optional: whether the task may be omitted. recorded: an
    experiment from a file, whose task and model replace those of the command line. Only typed names are trusted here.
    """
    from jarilab.runs.settings import list_settings, look_up, trust_specs

    verb = parser.prog.split()[-1]
    parser.add_argument(
        "task",
        metavar="TASK",
        nargs="?" if optional else None,
        help="such as arithmetic, translation, arithmetic:maximum=99 or my_task.py",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="pairs",
        help="an option of the task, the model or the training by its full name, such as model.d_model=128; "
        f"`jarilab {verb} TASK --help` lists them with their defaults",
    )
    parser.help_command = f"jarilab {verb} TASK --help"
    if recorded is None:
        task, model = _task_among(parser, words), _model_among(words)
        trust_specs(task, model)
    else:
        task, model = recorded.task, recorded.model
    if task is None:
        return
    parser.help_command = f"jarilab {verb} {task} --help"
    task_spec, model_spec = look_up(task, model)
    settings = list_settings(task_spec, model_spec)
    names = [key.partition(".")[2] for key in settings]
    titles = {
        "task": f"the task {task}",
        "model": f"the model {model_spec.name}",
        "training": "training",
    }
    groups = {section: parser.add_argument_group(title) for section, title in titles.items()}
    for key, option in settings.items():
        if key in without:
            continue
        section, _, name = key.partition(".")
        plain, full = _flags(key)
        means_one = names.count(name) == 1 and plain not in parser.flags
        flag = plain if means_one else full
        parser.add_named(groups[section], flag, SETTINGS, key, option)


def settings_from(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given, by their full names. Raises UserError for one that is given twice."""
    settings = _pairs(options.pairs)
    for key, value in getattr(options, SETTINGS).items():
        if settings.setdefault(key, value) != value:
            raise UserError(f"{key} is given twice, {settings[key]} and {value}; give it once")
    return settings


def specs_of(what: str, text: str) -> list[str]:
    """The encodings of a list, as `jarilab.core.registry.listed` cuts it.

    what: what is said to be empty. Raises UserError.
    """
    specs = split_specs(text)
    if not specs:
        raise UserError(f"{what} names none; write such as none,sinusoidal,rotary")
    return specs


def _pairs(pairs: Iterable[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set expects KEY=VALUE, got {pair!r}; write --set {pair}=VALUE")
        settings[key] = value
    return settings


def _flags(key: str) -> tuple[str, str]:
    """How a setting is typed: by its name, or by its section too where the name alone would not say which is meant."""
    section, _, name = key.partition(".")
    return flag_of(name), flag_of(f"{section}_{name}")


def _task_among(parser: Parser, words: Words) -> str | None:
    """The task: the first word that no option before it takes."""
    if not words or not words[0].startswith("-"):
        return next(iter(words), None)
    # Which options there are depends on the task, which is not known yet: those of all tasks of the package.
    return first_word(words, _taken_by_settings() | taken(parser))


def _model_among(words: Words) -> str | None:
    model = next((after for flag, after in itertools.pairwise(words) if flag == "--model"), None)
    return next((word.partition("=")[2] for word in words if word.startswith("--model=")), model)


def _taken_by_settings() -> dict[str, Any]:
    """How many words each setting takes that a task of the package has."""
    from jarilab.runs.settings import models_for, settings_of
    from jarilab.tasks.base import registry

    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    for task in registry.names():
        for model in models_for(registry.spec(task).target):
            for key, option in settings_of(task, model).items():
                for flag in _flags(key):
                    add_flag(parser, flag, key, option)
    return taken(parser)
