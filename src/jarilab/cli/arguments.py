"""Command-line parsers: flags are made from the options of Python functions and constructors."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jarilab._version import __version__
from jarilab.cli import commands
from jarilab.core.errors import UserError, closest_match, unknown

if TYPE_CHECKING:
    from jarilab.core.options import Option

Words = Sequence[str]
SETTINGS = "settings"
"""Name of the group of flags that are settings of an experiment."""
SWITCH = {"action": "store_const", "const": True}
"""argparse keywords of a flag without a value, whose default is no."""


class Flag(NamedTuple):
    """A flag that was made from an option. group: attribute of the parsed options that holds its value."""

    group: str
    name: str
    option: Option


class Parser(argparse.ArgumentParser):
    """Parser of one verb. Its errors are one-line UserErrors.

    help_command: the command that lists every flag. unknown_hint: added to the error of an unknown flag. more: the
    positional argument that also takes words after flags, since argparse ends a list of words at the first flag.
    answers: the attribute of a predictor that holds further options, which depend on the run.
    """

    def __init__(self, name: str, summary: str):
        super().__init__(prog=f"jarilab {name}".strip(), description=summary, allow_abbrev=False)
        self.help_command = f"{self.prog} --help"
        self.unknown_hint = ""
        self.more: str | None = None
        self.answers: str | None = None
        self.flags_by_dest: dict[str, Flag] = {}

    @property
    def flags(self) -> list[str]:
        """Every flag of this verb."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    @property
    def usage_words(self) -> str:
        """Required flags and the positional arguments, as the usage line shows them."""
        words = [
            f"{action.option_strings[0]} {action.metavar or action.dest.upper()}"
            for action in self._get_optional_actions()
            if action.required
        ]
        for action in self._get_positional_actions():
            name = str(action.metavar)
            forms = {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}
            words.append(forms.get(str(action.nargs), name))
        return " ".join(words)

    def add_options(
        self,
        group: str,
        options: Mapping[str, Option],
        *,
        title: str | None = None,
        without: Sequence[str] = (),
    ) -> None:
        """Add a flag for each option. Values are in `options.GROUP[name]` of what `read` returns."""
        container = self.add_argument_group(title) if title else self
        for name, option in options.items():
            if name not in without:
                self.add_option(container, group, name, option)

    def add_option(
        self, container: argparse._ActionsContainer, group: str, key: str, option: Option
    ) -> None:
        """Add a flag for one option. If its name is taken, the flag starts with the group."""
        flag = flag_of(option.name)
        if flag in self._option_string_actions:
            flag = flag_of(f"{group}_{option.name}")
        self.add_flag(container, flag, group, key, option)

    def add_flag(
        self, container: argparse._ActionsContainer, flag: str, group: str, key: str, option: Option
    ) -> None:
        """Add one option as `flag`."""
        dest = f"{group} {key}"
        self.flags_by_dest[dest] = Flag(group, flag, option)
        is_setting = group == SETTINGS
        add_flag(container, flag, dest, option, repeat=self.more is not None, both=is_setting)

    def show_first(self, *flags: str) -> None:
        """List these flags at the top of the help, if the parser has them."""
        actions = [self._option_string_actions[flag] for flag in flags if flag in self.flags]
        others = [one for one in self._optionals._group_actions if one not in actions]
        self._optionals._group_actions[:] = [*actions, *others]

    def show_last(self, title: str) -> None:
        """List the group of this title at the end of the help."""
        # argparse has no public order of groups; the sort is stable, so the others stay in theirs.
        self._action_groups.sort(key=lambda group: group.title == title)

    def read(self, words: Words) -> argparse.Namespace:
        """Parse the words of a command line. Raises UserError for unknown words and invalid values.

        Values of options are in a dictionary for each group.
        """
        options, rest = self.parse_known_args(words)
        # What follows a -- are words, even if they begin with a hyphen.
        end = rest.index("--") if "--" in rest else len(rest)
        if rest and self.more and not any(word.startswith("-") for word in rest[:end]):
            setattr(
                options, self.more, [*getattr(options, self.more), *rest[:end], *rest[end + 1 :]]
            )
            rest = []
        if rest:
            raise self._unrecognized(rest)
        for flag in self.flags_by_dest.values():
            setattr(options, flag.group, {})
        for dest, flag in self.flags_by_dest.items():
            value = vars(options).pop(dest)
            if value is not None:
                getattr(options, flag.group)[dest.partition(" ")[2]] = _converted(flag, value)
        return options

    def _unrecognized(self, rest: Words) -> UserError:
        candidates = self._candidates(rest[0]) if rest[0].startswith("--") else []
        hint = ""
        if candidates:
            hint = f"; did you mean {' or '.join(candidates)}?"
        elif self.unknown_hint:
            hint = f"; {self.unknown_hint}"
        text = f"unrecognized arguments: {' '.join(rest)}{hint}"
        return UserError(f"{text}{'' if candidates else ';'} see `{self.help_command}`")

    def _candidates(self, word: str) -> list[str]:
        """Flags that an unknown one may mean."""
        candidates = suggestions(word, self.flags)
        if candidates:
            return candidates
        flag_by_name = {flag.removeprefix("--"): flag for flag in self.flags}
        match = closest_match(word[2:].partition("=")[0], flag_by_name)
        return [flag_by_name[match]] if match else []

    def error(self, message: str) -> Any:
        raise UserError(f"{message}; `{self.help_command}` lists the options")


def _converted(flag: Flag, value: Any) -> Any:
    # Settings are checked later, together with the rest of their experiment.
    return value if flag.group == SETTINGS else flag.option.read_as(flag.name, value)


def parse(arguments: Words) -> tuple[str, argparse.Namespace]:
    """The verb and its options. Raises UserError for a command line that is invalid."""
    if not arguments or arguments[0].startswith("-"):
        _overview().parse_args(arguments)
    name, *words = arguments
    if name not in commands.names():
        raise unknown("command", name, commands.names())
    return name, parser_of(name, words).read(words)


def parser_of(name: str, words: Words) -> Parser:
    """The parser of a verb for these words. Its flags depend on the task or run that they name."""
    parser = Parser(name, commands.summary(name))
    commands.module(name).arguments(parser, words)
    parser.usage = f"{parser.prog} [options] {parser.usage_words}".rstrip()
    return parser


def _overview() -> Parser:
    """The parser of `jarilab` without a verb, whose help lists the verbs by group."""
    parser = Parser("", "Train attention models with any positional encoding, and look inside.")
    parser.usage = "jarilab [-h] [--version] COMMAND ..."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=f"jarilab {__version__}")
    parser.add_argument("command", metavar="COMMAND", help="see below")
    sections = [f"{title}:\n{_listed(verbs)}" for title, verbs in commands.groups().items()]
    parser.epilog = "\n\n".join(sections) + "\n\n`jarilab COMMAND --help` lists its options."
    return parser


def _listed(verbs: Sequence[str]) -> str:
    """One line or more for each verb: its name and summary."""
    columns = shutil.get_terminal_size().columns - 2
    lines = []
    for name in verbs:
        summary = commands.summary(name)
        text = summary[0].lower() + summary[1:].removesuffix(".")
        indent = f"  {name:<12}"
        lines.append(
            textwrap.fill(text, columns, initial_indent=indent, subsequent_indent=" " * 14)
        )
    return "\n".join(lines)


def first_positional(words: Words, nargs: Callable[[], Mapping[str, Any]]) -> str | None:
    """The first word that is neither a flag nor a value of one.

    nargs: returns argparse's nargs of each flag; called only if a flag comes first. Unknown flags take one value, as
    most do.
    """
    nargs_by_flag = nargs() if words and words[0].startswith("-") else {}
    values_left = 0
    for word in words:
        if word.startswith("--") or word in nargs_by_flag:
            count = 0 if "=" in word else nargs_by_flag.get(word)
            values_left = len(words) if count == "+" else 1 if count is None else 0
        elif values_left:
            values_left -= 1
        else:
            return word
    return None


def nargs_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """argparse's nargs of each flag of a parser."""
    return {flag: action.nargs for flag, action in parser._option_string_actions.items()}


def flag_of(name: str) -> str:
    """The flag of an option: `--batch-size` for `batch_size`."""
    return f"--{name.replace('_', '-')}"


def add_flag(
    container: argparse._ActionsContainer,
    flag: str,
    dest: str,
    option: Option,
    *,
    repeat: bool = False,
    both: bool = False,
) -> None:
    """Add an option as a flag, whose value is None if it is not passed.

    repeat: write a list by repeating the flag, since words after it may be positional; otherwise by several words.
    both: a boolean also has a flag for no, since its default differs between tasks.
    """
    keywords = _value_keywords(flag, option, repeat, both)
    default, text = "" if keywords is SWITCH else _default(option), option.meaning
    if default:
        text = _OWN_DEFAULT.sub("", text) + default  # the task's default replaces that of the model
    container.add_argument(
        flag, dest=dest, default=None, help=text.strip().replace("%", "%%"), **keywords
    )


_OWN_DEFAULT = re.compile(r" \(default: [^()]*\)")


def _value_keywords(flag: str, option: Option, repeat: bool, both: bool) -> dict[str, Any]:
    """argparse keywords for the value of an option."""
    if option.annotation is bool:
        return {"action": argparse.BooleanOptionalAction} if both else SWITCH
    if option.several:
        if repeat:
            return {"action": "append", "metavar": "TEXT"}
        return {
            "action": "extend",
            "nargs": "+",
            "metavar": "COLUMN" if flag == "--columns" else "FILE",
        }
    choices = ",".join(map(str, option.choices))
    return {"metavar": f"{{{choices}}}" if choices else option.kind.upper()}


def _default(option: Option) -> str:
    """The default, for the help; nothing if it is computed, since the docstring then says how."""
    if option.default in (None, (), ""):
        return ""
    if isinstance(option.default, bool):
        return f" (default: {'yes' if option.default else 'no'})"
    default = " ".join(option.default) if isinstance(option.default, tuple) else option.default
    return f" (default: {default})"


LAYERS = ("depth", "layers", "n-layer", "n-layers", "num-layers")
OTHER_NAMES = {
    "--n-layers": LAYERS,
    "--n-encoder-layers": (*LAYERS, "encoder-layers"),
    "--n-decoder-layers": (*LAYERS, "decoder-layers"),
    "--examples": ("max-steps", "steps"),
    "--epochs": ("max-steps", "n-epochs", "num-epochs", "steps"),
    "--batch-size": ("batch",),
    "--beam-size": ("beam", "beams", "num-beams"),
    "--context-length": ("block-size", "context"),
    "--d-model": ("dim", "embed-dim", "hidden-size", "n-embd", "width"),
    "--d-ff": ("dim-feedforward", "ffn-dim", "hidden", "intermediate-size"),
    "--d-head": ("head-dim", "head-width"),
    "--n-heads": ("heads", "n-head", "num-heads"),
    "--n-kv-heads": ("key-value-heads", "num-kv-heads"),
    "--lr": ("learning-rate",),
    "--max-new-tokens": ("max-length", "tokens"),
    "--optimizer": ("optim",),
    "--out": ("output", "output-dir"),
    "--patch-size": ("patch",),
    "--encoding": ("pe", "position-encoding", "positional-encoding"),
    "--count": ("samples",),
    "--vocab-size": ("vocabulary",),
    "--warmup": ("warm-up", "warmup-ratio"),
    "--weight-decay": ("wd",),
}
"""The names of options in other programs."""
DEVICES = dict.fromkeys(("gpu", "cuda"), "--device cuda")


def suggestions(flag: str, flags: Collection[str]) -> list[str]:
    """The flags among `flags` that may be meant by `flag`, which is none of them."""
    name = flag.removeprefix("--").partition("=")[0].replace("_", "-")
    if name in DEVICES and "--device" in flags:
        return [DEVICES[name]]
    # An option of both task and model has the section in its flag.
    spellings = [f"--{name}", f"--task-{name}", f"--model-{name}"]
    same = [spelling for spelling in spellings if spelling in flags]
    return same or [flag for flag, names in OTHER_NAMES.items() if name in names and flag in flags]
