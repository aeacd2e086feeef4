"""Flags for the settings of a task, its model and its training: `--d-model 64` sets `model.d_model`."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import (
    SETTINGS,
    Parser,
    Words,
    add_flag,
    first_positional,
    flag_of,
    nargs_of,
)
from jarilab.core.errors import UserError
from jarilab.core.registry import split_specs

if TYPE_CHECKING:
    from jarilab.core.options import Option
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
    from jarilab import api
    from jarilab.core.options import options_of
    from jarilab.runs.task_settings import list_settings, look_up, trust_specs

    _add_task_words(parser, optional)
    if recorded is None:
        # Flags depend on the task, which is not known yet: assume those of every task of the package.
        task = first_positional(words, lambda: _nargs_of_settings() | nargs_of(parser))
        model = _model_among(words)
        trust_specs(task, model)
    else:
        task, model = recorded.task, recorded.model
    if task is None:
        if ENCODING not in without:
            option = options_of(api.train)["encoding"]
            parser.add_flag(parser, "--encoding", SETTINGS, ENCODING, option)
        return
    verb = parser.prog.split()[-1]
    parser.help_command = f"jarilab {verb} {task} --help"
    task_spec, model_spec = look_up(task, model)
    settings = list_settings(task_spec, model_spec)
    titles = {
        "task": f"the task {task}",
        "model": f"the model {model_spec.name}",
        "training": "training",
    }
    groups: dict[str, Any] = {
        section: parser.add_argument_group(title) for section, title in titles.items()
    }
    names = [key.partition(".")[2] for key in settings]
    for key, option in settings.items():
        if key in without:
            continue
        section, _, name = key.partition(".")
        short, full = _flags(key)
        is_unique = names.count(name) == 1 and short not in parser.flags
        container = parser if key == ENCODING else groups[section]
        meaning = _QUOTED.sub(lambda quoted: _named_flag(quoted, names), option.meaning)
        option = replace(option, meaning=meaning)
        parser.add_flag(container, short if is_unique else full, SETTINGS, key, option)


_QUOTED = re.compile(r"`(\w+)`")


def _named_flag(quoted: re.Match[str], names: Sequence[str]) -> str:
    """The flag of an option that a docstring quotes; what is no option stays."""
    return flag_of(quoted[1]) if quoted[1] in names else quoted[0]


def _add_task_words(parser: Parser, optional: bool) -> None:
    """Add the task itself, and `--set` for settings by their full names."""
    verb = parser.prog.split()[-1]
    parser.help_command = f"jarilab {verb} TASK --help"
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
        help="set any option by its full name, such as model.d_model=128; "
        f"`{parser.help_command}` lists all options of a task, its model and its training",
    )


def settings_from(options: argparse.Namespace) -> dict[str, Any]:
    """The settings on a command line by their full names. Raises UserError if one has two values."""
    settings = _parse_pairs(options.pairs)
    for key, value in getattr(options, SETTINGS).items():
        if settings.setdefault(key, value) != value:
            raise UserError(
                f"expected one value of {key}, got {settings[key]} and {value}; pass it once"
            )
    return settings


def parse_specs(label: str, text: str) -> list[str]:
    """The encodings in a comma-separated list. label: for the error. Raises UserError if there is none."""
    specs = split_specs(text)
    if not specs:
        raise UserError(
            f"{label}: expected encodings, got {text!r}; write such as none,sinusoidal,rotary"
        )
    return specs


def add_eval_lengths(parser: Parser, option: Option) -> None:
    """Add `--eval-lengths`, a comma-separated list. option: that of `jarilab.train`."""
    parser.add_argument("--eval-lengths", metavar="LENGTH,LENGTH,...", help=option.meaning)


def eval_lengths_from(options: argparse.Namespace) -> dict[str, list[int]]:
    """The lengths on a command line as a keyword; nothing without them. Raises UserError for other text."""
    text = options.eval_lengths
    if text is None:
        return {}
    try:
        return {"eval_lengths": [int(number) for number in text.split(",")]}
    except ValueError:
        raise UserError(
            f"--eval-lengths: expected lengths such as 128,256,512; got {text!r}"
        ) from None


def _parse_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """The settings of `--set`, from words like `model.d_model=128`. Raises UserError for another form."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set expects KEY=VALUE, got {pair!r}; write --set {pair}=VALUE")
        settings[key] = value
    return settings


def _flags(key: str) -> tuple[str, str]:
    """The short flag of a setting, and the one with its section: `--d-model`, `--model-d-model`."""
    section, _, name = key.partition(".")
    return flag_of(name), flag_of(f"{section}_{name}")


def _model_among(words: Words) -> str | None:
    """The value of `--model` on a command line."""
    model = next((after for flag, after in itertools.pairwise(words) if flag == "--model"), None)
    return next((word.partition("=")[2] for word in words if word.startswith("--model=")), model)


def _nargs_of_settings() -> dict[str, Any]:
    """argparse's nargs of the settings of every task of the package."""
    from jarilab.runs.task_settings import models_for, settings_of
    from jarilab.tasks.base import registry

    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    for task in registry.names():
        for model in models_for(registry.spec(task).target):
            for key, option in settings_of(task, model).items():
                for flag in _flags(key):
                    add_flag(parser, flag, key, option)
    return nargs_of(parser)
