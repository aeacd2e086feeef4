"""What a person may type: the words of a command, read by the flags it has."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jarilab._version import __version__
from jarilab.cli import aliases, commands
from jarilab.cli.flags import add_flag, flag_of
from jarilab.core.errors import UserError, closest_match, unknown

if TYPE_CHECKING:
    from jarilab.core.options import Option

Words = Sequence[str]
SETTINGS = "settings"
"""The group of a task's settings."""


class Known(NamedTuple):
    """An option that was made a flag: whose it is, how it is typed, what its values are."""

    group: str
    flag: str
    option: Option


class Parser(argparse.ArgumentParser):
    """The arguments of one command. Mistakes are UserErrors, in one line.

    help_command: what shows all that may be typed. beside: what is said beside an option that there is not. more: the
    positional argument that takes words behind options too, since argparse ends a list of words at the first option.
    answers: the attribute of a predictor whose options the command has, once a run is named.
    """

    def __init__(self, name: str, summary: str):
        super().__init__(prog=f"jarilab {name}".strip(), description=summary, allow_abbrev=False)
        self.help_command = f"{self.prog} --help"
        self.beside = ""
        self.more: str | None = None
        self.answers: str | None = None
        self.known: dict[str, Known] = {}

    @property
    def flags(self) -> list[str]:
        """Every flag of this command."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    @property
    def words(self) -> str:
        """What is typed without a flag before it, as the help shows it."""
        actions = self._get_positional_actions()
        return " ".join(_word(str(action.metavar), action.nargs) for action in actions)

    def add_options(
        self,
        group: str,
        options: Mapping[str, Option],
        *,
        title: str | None = None,
        without: Sequence[str] = (),
    ) -> None:
        """Make options flags; what is given is `options.GROUP[name]` of what `read` gives."""
        container = self.add_argument_group(title) if title else self
        for name, option in options.items():
            if name not in without:
                self.add_option(container, group, name, option)

    def add_option(
        self, container: argparse._ActionsContainer, group: str, key: str, option: Option
    ) -> None:
        """Make one option a flag, with its group before it where its name is taken."""
        flag = flag_of(option.name)
        if flag in self._option_string_actions:
            flag = flag_of(f"{group}_{option.name}")
        self.add_named(container, flag, group, key, option)

    def add_named(
        self,
        container: argparse._ActionsContainer,
        flag: str,
        group: str,
        key: str,
        option: Option,
    ) -> None:
        """Make one option this flag."""
        dest = f"{group} {key}"
        self.known[dest] = Known(group, flag, option)
        repeat, both = self.more is not None, group == SETTINGS
        add_flag(container, flag, dest, option, repeat=repeat, both=both)

    def read(self, words: Words) -> argparse.Namespace:
        """The options of the command; those of a group in a dictionary of its name. Raises UserError."""
        options, rest = self.parse_known_args(words)
        if rest and self.more and not any(word.startswith("-") for word in rest):
            setattr(options, self.more, [*getattr(options, self.more), *rest])
            rest = []
        if rest:
            raise self._unrecognized(rest)
        for known in self.known.values():
            setattr(options, known.group, {})
        for dest, known in self.known.items():
            value = vars(options).pop(dest)
            if value is not None:
                getattr(options, known.group)[dest.partition(" ")[2]] = self._value(known, value)
        return options

    def _value(self, known: Known, value: Any) -> Any:
        """What was typed, as the definition wants it. Settings are read with all else of their experiment."""
        return value if known.group == SETTINGS else known.option.read_as(known.flag, value)

    def _unrecognized(self, rest: Words) -> UserError:
        suggested: list[str] = []
        if rest[0].startswith("--"):
            flags = {flag.removeprefix("--"): flag for flag in self.flags}
            match = closest_match(rest[0][2:].partition("=")[0], flags)
            suggested = aliases.suggestions(rest[0], self.flags) or (
                [flags[match]] if match else []
            )
        hint = f"; did you mean {' or '.join(suggested)}?" if suggested else ""
        if self.beside and not suggested:
            hint = f"; {self.beside}"
        text = f"unrecognized arguments: {' '.join(rest)}{hint}"
        return UserError(f"{text}{'' if suggested else ';'} see `{self.help_command}`")

    def error(self, message: str) -> Any:
        raise UserError(f"{message}; `{self.help_command}` shows what there is")


def parse(arguments: Words) -> tuple[str, argparse.Namespace]:
    """The name of a command and its options. Raises UserError for what cannot be understood."""
    if not arguments or arguments[0].startswith("-"):
        _overview().parse_args(arguments)
    name, *words = arguments
    if name not in commands.names():
        raise unknown("command", name, commands.names())
    return name, parser_of(name, words).read(words)


def parser_of(name: str, words: Words) -> Parser:
    """The parser of a command, for these words: which options there are depends on the task or the run."""
    parser = Parser(name, commands.summary(name))
    commands.module(name).arguments(parser, words)
    parser.usage = f"{parser.prog} [options] {parser.words}".rstrip()
    return parser


def _overview() -> Parser:
    """What there is: the commands, a line each."""
    parser = Parser(
        "", "Train attention models, choose how they know order, and see what they attend to."
    )
    parser.add_argument("--version", action="version", version=f"jarilab {__version__}")
    listed = parser.add_subparsers(
        metavar="COMMAND", required=True, dest="command", parser_class=argparse.ArgumentParser
    )
    for name in commands.names():
        summary = commands.summary(name)
        listed.add_parser(name, help=summary[0].lower() + summary[1:].removesuffix("."))
    return parser


def _word(name: str, nargs: Any) -> str:
    return {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}.get(nargs, name)


def first_word(words: Words, takes: Mapping[str, Any]) -> str | None:
    """The first word that no option before it takes.

    takes: how many words each flag takes, as argparse writes it. A flag that is not among them takes one, as most do.
    """
    left = 0
    for word in words:
        if word.startswith("--") or word in takes:
            nargs = 0 if "=" in word else takes.get(word)
            left = len(words) if nargs == "+" else 1 if nargs is None else 0
        elif left:
            left -= 1
        else:
            return word
    return None


def taken(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """How many words each flag of a parser takes."""
    return {flag: action.nargs for flag, action in parser._option_string_actions.items()}
