"""Errors for users. Each message has three parts: expected, got, what to do."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


class UserError(ValueError):
    """A mistake that the user can correct. The command line prints its message without traceback and exits with 2.

    print_on_this_rank: print it in this process, since the first process may have ended.
    """

    print_on_this_rank = False

    def __init__(self, message: str = "") -> None:
        super().__init__(_LONG_QUOTE.sub(_shortened, message))


class MissingFileError(UserError):
    """A path that does not exist."""


MAX_QUOTED = 200
"""Characters of a quote in a message, which is there to be recognised, not to be read whole."""
_LONG_QUOTE = re.compile(
    r"""(?<=[\s(\[{:=]')(?:[^'\\\n]|\\.){201,}(?=')|(?<=[\s(\[{:=]")(?:[^"\\\n]|\\.){201,}(?=")|(?!['"])\S{201,}"""
    r"""|[\[{][^\[\]{}\n]{201,}[\]}]"""  # a list or an object, such as one of a JSON file
)


def _shortened(found: re.Match[str]) -> str:
    return shortened(found[0])


def shortened(text: str) -> str:
    """The beginning and the end of a text above `MAX_QUOTED` characters; others as they are."""
    return text if len(text) <= MAX_QUOTED else f"{text[:120]} ... {text[-60:]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or PyTorch found no memory, on the CPU or an accelerator."""
    # PyTorch's error for accelerators has a name of its own, that for the CPU is a RuntimeError.
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


def no_model(folder: Path, or_run: bool = False) -> UserError:
    """The error for a name that is no folder of a Hugging Face model. or_run: a run was possible, too."""
    run = "of a run (run.json), or one " if or_run else ""
    got = "a file" if folder.is_file() else "a folder without config.json"
    got, to_do = got if folder.exists() else "no such folder", "pass the path of a folder on disk"
    if (folder / "run.json").is_file():
        got, to_do = "a run of jari", f"see `jarilab explore {folder}`"
    return UserError(
        f"{folder}: expected a folder {run}with config.json and weights, as `model.save_pretrained(FOLDER)` writes it; "
        f"got {got}. Nothing is downloaded: {to_do}"
    )


def printable(text: str) -> str:
    """Untrusted text for a terminal, with unprintable characters escaped."""
    letters = [letter if letter.isprintable() else _escaped(letter) for letter in text]
    return "".join(letters)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


def counted(number: int, nouns: str, verb: str = "") -> str:
    """Return `40 lines`, or `1 line`; with a verb `40 lines have` and `1 line has`. nouns, verb: in the plural."""
    noun, of, rest = nouns.partition(" of ")
    if number == 1:
        noun = noun[: -2 if noun.endswith(("sses", "xes")) else -1]
        verb = verb and _SINGULAR.get(verb, f"{verb}s")
    return " ".join([f"{number:,}", f"{noun}{of}{rest}", *verb.split()])


_SINGULAR = {"are": "is", "were": "was", "have": "has"}

NAME_SIMILARITY = 0.65
"""Minimal similarity, from 0 to 1, of a name and its correction. `rope` and `none` have 0.5."""


def closest_match(name: str, choices: Iterable[str]) -> str | None:
    """The choice most similar to `name`, or None if none is similar enough.

    Case does not matter, and `d_model` matches `model.d_model`.
    """
    choices = list(choices)
    qualified = [choice for choice in choices if choice.rpartition(".")[2] == name]
    if qualified:
        return qualified[0]
    spelled = {choice.lower(): choice for choice in choices}
    cutoff = NAME_SIMILARITY if len(name) > 2 else 0.5  # `t6` and `t5` share half
    matches = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=cutoff)
    return spelled[matches[0]] if matches else None


def unknown(kind: str, name: str, choices: Iterable[str], also: Iterable[str] = ()) -> UserError:
    """The error for an unknown name: `unknown encoding 'rotery'; did you mean 'rotary'? Known: ...`.

    choices: known names. also: names that are suggested but not listed.
    """
    known = sorted(choices)
    match = closest_match(name, [*known, *also])
    guess = f" did you mean {match!r}?" if match else ""
    return UserError(f"unknown {kind} {name!r};{guess} Known: {', '.join(known) or 'nothing'}")


DISTRIBUTIONS = {
    "PIL": "pillow",
    "prometheus_client": "prometheus-client",
    "sklearn": "scikit-learn",
}
"""Package names on PyPI that differ from the name of the module."""


def import_optional(module: str, extra: str) -> ModuleType:
    """Import a module of an optional dependency.

    extra: the extra of jarilab that installs it. Raises UserError, naming library and extra, if it is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        library = DISTRIBUTIONS.get(package, package)
        raise UserError(
            f"this needs the package {library}; pip install 'jarilab[{extra}]'"
        ) from None


@contextmanager
def as_user_error(message: str) -> Iterator[None]:
    """Turn any exception of the block into a UserError that starts with `message`."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        kind = type(error)
        # A panic of a library in Rust is no Exception.
        if not isinstance(error, Exception) and kind.__module__ != "pyo3_runtime":
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
        raise UserError(f"{message}: {kind.__name__}: {reason:.300}") from None
