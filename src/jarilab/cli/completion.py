"""Completion scripts for shells, generated from the parsers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from jarilab.cli import commands
from jarilab.cli.arguments import SETTINGS, Parser, flag_of, parser_of
from jarilab.cli.run_arguments import all_answer_options

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class CompletedVerb:
    """Words that can follow a verb.

    flags: of the verb. of_task: further flags of each task. choices: values of some flags. words: choices of the first
    positional word, if they are known.
    """

    flags: Sequence[str]
    of_task: Mapping[str, Sequence[str]] = field(default_factory=dict)
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Sequence[str] = ()


def verbs() -> dict[str, CompletedVerb]:
    """Every verb, from its parser."""
    return {name: _verb(name) for name in commands.names()}


def _verb(name: str) -> CompletedVerb:
    parser = parser_of(name, [])
    if parser.answers:
        _add_answers(parser, parser.answers)
    choices = _choices(parser)
    if not any(action.dest == "task" for action in parser._get_positional_actions()):
        positional = parser._get_positional_actions()
        words = list(map(str, positional[0].choices or ())) if positional else []
        return CompletedVerb(parser.flags, choices=choices, words=words)
    from jarilab.tasks.base import registry

    of_task: dict[str, list[str]] = {}
    for task in registry.names():
        with_task = parser_of(name, [task])
        of_task[task] = [flag for flag in with_task.flags if flag not in parser.flags]
        choices |= _choices(with_task)
    return CompletedVerb(parser.flags, of_task, choices, list(of_task))


def _add_answers(parser: Parser, kind: str) -> None:
    """Add the options of every predictor, since the run is not known."""
    for options in all_answer_options(kind):
        for name, option in options.items():
            if flag_of(name) not in parser.flags:
                parser.add_option(parser, "answer", name, option)


def _choices(parser: Parser) -> dict[str, list[str]]:
    """Values of the flags that have a few choices."""
    from jarilab.runs.descriptions import encodings

    choices: dict[str, list[str]] = {
        flag: list(map(str, action.choices))
        for action in parser._actions
        for flag in action.option_strings
        if action.choices
    }
    for flag in parser.flags_by_dest.values():
        if flag.option.choices:
            choices[flag.name] = [str(choice) for choice in flag.option.choices]
        if flag.group == SETTINGS and flag.option.name.endswith("encoding"):
            choices[flag.name] = encodings.names()
    return choices


def script(shell: str) -> str:
    """The completion script of a shell."""
    if shell == "fish":
        return _fish(verbs())
    begin = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
    return (begin if shell == "zsh" else "") + _bash(verbs())


def _bash(verbs: Mapping[str, CompletedVerb]) -> str:
    first = [_case(name, verb.words) for name, verb in verbs.items() if verb.words]
    general = [_case(name, verb.flags) for name, verb in verbs.items()]
    of_tasks: list[str] = []
    choices: list[str] = []
    for name, verb in verbs.items():
        of_tasks += [_case(f"{name}:{task}", flags) for task, flags in verb.of_task.items()]
        choices += [_case(f"{name}:{flag}", words) for flag, words in verb.choices.items()]
    text = files("jarilab.cli").joinpath("completion.bash").read_text("utf-8")
    parts = {"FIRST": first, "GENERAL": general, "TASKS": of_tasks, "CHOICES": choices}
    for name, lines in {"VERBS": [" ".join(verbs)], **parts}.items():
        text = text.replace(f"@{name}@", "\n".join(lines))
    return text


def _case(pattern: str, words: Sequence[str]) -> str:
    return f'    {pattern}) words="$words {" ".join(words)}" ;;'


def _fish(verbs: Mapping[str, CompletedVerb]) -> str:
    lines = ["complete -c jarilab -f -n __fish_use_subcommand -a '" + " ".join(verbs) + "'"]
    for name, verb in verbs.items():
        here = f"__fish_seen_subcommand_from {name}"
        if verb.words:
            lines.append(f"complete -c jarilab -n '{here}' -a '{' '.join(verb.words)}'")
        lines += [_fish_flag(here, flag, verb) for flag in verb.flags]
        for task, flags in verb.of_task.items():
            with_task = f"{here}; and __fish_seen_subcommand_from {task}"
            lines += [_fish_flag(with_task, flag, verb) for flag in flags]
    return "\n".join(lines) + "\n"


def _fish_flag(condition: str, flag: str, verb: CompletedVerb) -> str:
    words = verb.choices.get(flag)
    values = f" -x -a '{' '.join(words)}'" if words else ""
    return f"complete -c jarilab -n '{condition}' -l {flag[2:]}{values}"
