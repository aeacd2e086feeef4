"""What a person may type: the parser of the command line."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jarilab._version import __version__
from jarilab.errors import UserError, nearest, unknown

TRAINING = ("data", "train", "compare")  # these take a task and its settings
SETTING = "setting "  # what the destinations of settings begin with


class _Parser(argparse.ArgumentParser):
    """Names the nearest command or option for a misspelt one, in one line."""

    def error(self, message: str) -> Any:
        match = re.search(r"argument (?:COMMAND|command): invalid choice: '(.*?)'", message)
        if match:
            raise unknown("command", match[1], _ADD)
        match = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        guess = nearest(match[1], self.flags()) if match else None
        message += f"; did you mean {guess}?" if guess else ""
        raise UserError(f"{message}; `{self.prog} --help` shows what there is")

    def flags(self) -> set[str]:
        """Every option of this parser and of its commands."""
        own = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                own |= {flag for command in action.choices.values() for flag in command.flags()}
        return {flag for flag in own if flag.startswith("--")}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of one command; `settings` holds those of the task, the model and the training by full name.

    Raises UserError for what cannot be understood.
    """
    parser = _parser(arguments)
    options, rest = parser.parse_known_args(arguments)
    # Words behind an option: argparse ends a list of words at the first option.
    if rest and not (hasattr(options, "images") and not any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.images += rest
    for name in ("threads", "jobs"):
        number = getattr(options, name, None)
        if number is not None and number < 1:
            raise UserError(f"--{name} must be 1 or more, got {number}")
    if hasattr(options, "settings"):
        settings = _pairs(options.settings)
        for name, value in list(vars(options).items()):
            if name.startswith(SETTING):
                delattr(options, name)
                key = name.removeprefix(SETTING)
                if value is not None and settings.setdefault(key, value) != value:
                    raise UserError(
                        f"{key} is given twice, {settings[key]} and {value}; give it once"
                    )
        options.settings = settings
    return options


def _parser(arguments: Sequence[str]) -> _Parser:
    parser = _Parser(
        prog="jarilab",
        description="Train attention models, choose how they know order, and see what they attend to.",
    )
    parser.add_argument("--version", action="version", version=f"jarilab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name, (add, what) in _ADD.items():
        add(
            commands.add_parser(
                name, help=what, description=what.capitalize() + ".", allow_abbrev=False
            )
        )
    if arguments and arguments[0] in TRAINING:
        _settings(commands.choices[arguments[0]], arguments[1:])
    return parser


# The commands --------------------------------------------------------------------------------------------------------


def _data(command: argparse.ArgumentParser) -> None:
    _task(command)
    command.add_argument("--out", metavar="FILE", required=True, help="the file to write")


def _train(command: argparse.ArgumentParser) -> None:
    _task(command)
    command.add_argument("--out", metavar="RUN", required=True, help="the folder of the run")
    command.add_argument(
        "--seed", type=int, default=1, help="decides initial values, data order and dropout (1)"
    )
    _model(command)
    _precision(command)
    _threads(command)
    _snapshots(command)
    _json(command)


def _evaluate(command: argparse.ArgumentParser) -> None:
    _run(command)
    command.add_argument(
        "--data", nargs="+", metavar="FILE", help="files like those of --valid to measure on"
    )
    _decoding(command)
    _threads(command)
    _json(command)


def _predict(command: argparse.ArgumentParser) -> None:
    _run(command)
    command.add_argument(
        "images",
        metavar="IMAGE",
        nargs="*",
        help="images to answer, or to turn into codes and back",
    )
    _decoding(command)
    command.add_argument(
        "--n-best", type=int, help="how many answers to each line, with their scores (1)"
    )
    _sampling(command)
    _images(command)
    _threads(command)
    _json(command, "one JSON object a line, with the probability of every token")


def _compare(command: argparse.ArgumentParser) -> None:
    _task(command)
    command.add_argument(
        "--encodings", metavar="SPEC,SPEC,...", required=True, help="such as none,sinusoidal,rotary"
    )
    command.add_argument("--seeds", type=int, default=1, help="how many seeds for each, paired (1)")
    command.add_argument(
        "--out", metavar="FOLDER", required=True, help="where runs, table.json and report.html go"
    )
    command.add_argument(
        "--jobs", type=int, help="trials at once, one thread each (as many as keep all cores busy)"
    )
    _model(command)
    _precision(command)
    _snapshots(command)
    _json(command)


def _walk(command: argparse.ArgumentParser) -> None:
    _run(command)
    command.add_argument("--input", required=True, help="such as 12+1")
    command.add_argument(
        "--site", help="encoder.0, decoder.1.self, decoder.1.cross, ... (the model's first)"
    )
    command.add_argument("--head", type=int, default=0, help="0, 1, ... (0)")
    command.add_argument("--step", type=int, help="of a recurrent decoder: 0, 1, ... (0)")
    command.add_argument(
        "--softmax",
        action="store_true",
        help="what becomes of the softmax if scores are not divided by sqrt(d_k)",
    )
    _json(command)


def _explore(command: argparse.ArgumentParser) -> None:
    _run(command, several=True)
    command.add_argument("--input", required=True, help="what the models read, such as 21+211")
    command.add_argument(
        "--save", metavar="FILE", help="write the page as one file that needs no network, and end"
    )
    command.add_argument(
        "--site", help="what it opens at: encoder.0, decoder.1.self, ... (the first)"
    )
    command.add_argument("--head", type=int, help="0, 1, ... (0)")
    command.add_argument(
        "--align", metavar="LINKS", help="gold links of source and answer tokens, such as '0-0 1-2'"
    )
    command.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (127.0.0.1, this machine alone)",
    )
    command.add_argument("--port", type=int, default=8000, help="0 for any that is free (8000)")
    _threads(command)


def _laws(command: argparse.ArgumentParser) -> None:
    command.add_argument("encoding", metavar="SPEC", help="such as rotary or my_encoding.py:Mine")
    _json(command)


def _export(command: argparse.ArgumentParser) -> None:
    _run(command)
    command.add_argument(
        "--to", choices=("ctranslate2",), default="ctranslate2", help="the program (ctranslate2)"
    )
    command.add_argument("--out", metavar="FOLDER", required=True, help="the folder to write")


_ADD: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "data": (_data, "write a task's examples to a file"),
    "train": (_train, "train a model into a folder, or go on with it"),
    "evaluate": (_evaluate, "measure a run on held-out data: all of its own, or files"),
    "predict": (_predict, "answer lines or images, go on with a text, or paint one"),
    "compare": (_compare, "train the same model under several encodings, and compare"),
    "walk": (_walk, "follow one head of an attention, matrix by matrix"),
    "explore": (_explore, "look inside trained models, live in a browser or as one file"),
    "laws": (_laws, "check an encoding against the laws every encoding must keep"),
    "export": (_export, "write a run's model for another program"),
}


# What several commands have ------------------------------------------------------------------------------------------


def _task(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "task", help="such as arithmetic, translation, arithmetic:maximum=99 or my_task.py:Mine"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="an option of the task, the model or the training by its full name, such as model.width=128; "
        f"`jarilab {command.prog.split()[-1]} TASK --help` lists them with their defaults",
    )


def _settings(command: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Make every setting of the task at hand an option of its own, where its name says which is meant."""
    from jarilab.runs.experiment import model_of, settings_of

    task = _task_among(command, arguments)
    if task is None:
        return
    model = next(
        (after for before, after in itertools.pairwise(arguments) if before == "--model"), None
    )
    model = next((a.partition("=")[2] for a in arguments if a.startswith("--model=")), model)
    settings = settings_of(task, model)
    names = [key.partition(".")[2] for key in settings]
    taken = command._option_string_actions
    titles = {
        "task": f"the task {task}",
        "model": f"the model {model_of(task, model)}",
        "training": "training",
    }
    groups = {section: command.add_argument_group(title) for section, title in titles.items()}
    for key, option in settings.items():
        if command.prog.endswith("compare") and key == "model.encoding":
            continue
        section, _, name = key.partition(".")
        plain, full = _flags(key)
        _setting(
            groups[section], full if names.count(name) > 1 or plain in taken else plain, key, option
        )


def _task_among(command: argparse.ArgumentParser, arguments: Sequence[str]) -> str | None:
    """The task: the first word that no option before it takes."""
    if not arguments or not arguments[0].startswith("-"):
        return next(iter(arguments), None)
    # Which options there are depends on the task. One that no task of the package has takes one word, as most do.
    takes = _taken_by_settings() | {
        flag: action.nargs for flag, action in command._option_string_actions.items()
    }
    left = 0
    for word in arguments:
        if word.startswith("--") or word in takes:
            nargs = 0 if "=" in word else takes.get(word)
            left = len(arguments) if nargs == "+" else 1 if nargs is None else 0
        elif left:
            left -= 1
        else:
            return word
    return None


def _taken_by_settings() -> dict[str, Any]:
    """How many words each setting takes that a task of the package has, as argparse writes it, by its flags."""
    from jarilab.runs.experiment import settings_of
    from jarilab.tasks.base import registry

    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    for task in registry.names():
        for model in registry.spec(task).target.models:
            for key, option in settings_of(task, model).items():
                for flag in _flags(key):
                    _setting(parser, flag, key, option)
    return {flag: action.nargs for flag, action in parser._option_string_actions.items()}


def _flags(key: str) -> tuple[str, str]:
    """How a setting is typed: by its name, or by its section too where the name alone would not say which is meant."""
    section, _, name = key.replace("_", "-").partition(".")
    return f"--{name}", f"--{section}-{name}"


def _setting(group: argparse._ActionsContainer, flag: str, key: str, option: Any) -> None:
    default = "not set" if option.default in (None, (), "") else option.default
    how: dict[str, Any] = (
        {"metavar": "FILE", "nargs": "+"} if option.several else {"metavar": "VALUE"}
    )
    if option.annotation is bool:
        how = {"action": argparse.BooleanOptionalAction, "default": None}
    meaning = f"{option.meaning} ({default})".strip().replace("%", "%%")
    group.add_argument(flag, dest=f"{SETTING}{key}", help=meaning, **how)


def _run(command: argparse.ArgumentParser, *, several: bool = False) -> None:
    if several:
        command.add_argument(
            "folders", metavar="RUN", nargs="+", help="folders of runs, shown side by side"
        )
    else:
        command.add_argument("folder", metavar="RUN", help="the folder of a run")
    command.add_argument(
        "--trust-code",
        action="store_true",
        help="execute the Python file that the run's encoding or task names",
    )


def _decoding(command: argparse.ArgumentParser) -> None:
    """Options of `Decoding`; None where they are not given."""
    command.add_argument(
        "--checkpoint",
        choices=("last", "best"),
        default="last",
        help="the newest, or the best on the way (last)",
    )
    group = command.add_argument_group("how answers are written")
    group.add_argument("--beam", type=int, help="hypotheses kept for each line; 1 is greedy (1)")
    group.add_argument(
        "--length-penalty",
        type=float,
        help="a hypothesis is judged by log p / length to this power (1)",
    )
    group.add_argument(
        "--no-repeat", type=int, metavar="N", help="write no N tokens twice; 0: allow (0)"
    )
    group.add_argument("--shortest", type=int, help="tokens an answer has at least (0)")
    group.add_argument(
        "--longest", type=int, help="tokens an answer has at most (the task's own limit)"
    )


def _sampling(command: argparse.ArgumentParser) -> None:
    """Options of `verbs.generate`; None where they are not given."""
    command.add_argument(
        "--prompt", help="one line to answer or to go on with, instead of those of standard input"
    )
    group = command.add_argument_group("what is drawn by chance, text or images")
    group.add_argument("--tokens", type=int, help="how many tokens to write (200)")
    group.add_argument(
        "--temperature", type=float, help="scores are divided by it; 0 is greedy (1; of images 0.7)"
    )
    group.add_argument("--top-k", type=int, help="draw from the K likeliest tokens only")
    group.add_argument(
        "--top-p", type=float, help="draw from the likeliest tokens that hold this share only"
    )
    group.add_argument(
        "--min-p", type=float, help="leave out tokens below this share of the likeliest one's"
    )
    group.add_argument(
        "--repetition-penalty", type=float, help="above 1: what was written counts less (1)"
    )
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text")
    group.add_argument("--seed", type=_seed, help="decides what is drawn (1)")


def _images(command: argparse.ArgumentParser) -> None:
    """Options of `seeing.find` and `seeing.paint`; None where they are not given."""
    group = command.add_argument_group("where things are in an image")
    group.add_argument("--draw", metavar="FILE.png", help="write the image with boxes, as PNG")
    group.add_argument(
        "--threshold",
        "--at-least",
        type=float,
        metavar="P",
        help="the probability of what is told (0.5)",
    )
    group = command.add_argument_group("images of what --prompt says")
    group.add_argument("--count", "--n", type=int, help="how many (8)")
    group.add_argument(
        "--out",
        metavar="FILE.png",
        help="the grid of them, as PNG; it fills meanwhile. Without --prompt: images, each beside its codes' image",
    )
    group.add_argument(
        "--guidance", type=float, help="away from what is painted without a prompt; 1 for none (2)"
    )
    group.add_argument(
        "--rerank", type=int, help="paint so many times as many, and keep the fittest (1)"
    )


def _seed(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"a seed must be from 0 to 2^63 - 1, got {text[:40]!r}")
    return int(text)


def _model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model",
        metavar="KIND",
        help="the kind of model, such as recurrent (the task's usual one)",
    )


def _precision(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="bfloat16 where the machine really has it and the model gains by it (auto)",
    )


def _snapshots(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--snapshots",
        type=int,
        metavar="N",
        help="keep the weights of N steps for good, for `jarilab explore` (0)",
    )


def _threads(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads", type=int, help="of PyTorch; all cores by default. Bits depend on it"
    )


def _json(
    command: argparse.ArgumentParser, what: str = "one JSON object on standard output"
) -> None:
    command.add_argument("--json", action="store_true", help=what)


def _pairs(pairs: Iterable[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set expects KEY=VALUE, got {pair!r}; write --set {pair}=VALUE")
        settings[key] = value
    return settings
