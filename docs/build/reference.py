"""The reference, made of docstrings and options: nothing of it is written twice."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from typing import Any

import jarilab
from jarilab.cli import main
from jarilab.cli.commands import names as commands
from jarilab.runs.listing import listed_tasks

PYTHON = "Everything that `import jarilab` gives, from the docstrings in the code."
COMMANDS = "What each command says of itself."
TASKS = "What can be trained, and with which options; each is also a keyword in `settings`."
WIDE = 80
QUOTED = re.compile(r"""(?<=[:>] )(?:'([^']*)'|"([^"]*)")""")
COMMA = re.compile(r", (?=[*\w]+(?::|=|,|\)| =))")


def pages() -> dict[str, str]:
    """The pages by path."""
    os.environ["COLUMNS"] = "100"
    return {
        "reference/python.md": python(),
        "reference/commands.md": of_commands(),
        "reference/tasks.md": tasks(),
    }


def python() -> str:
    """Every public name."""
    names = [name for name in dir(jarilab) if not name.startswith("_")]
    return "\n\n".join(["# Python", PYTHON, *(_named(name) for name in names)]) + "\n"


def _named(name: str) -> str:
    target = getattr(jarilab, name)
    lines = [f"## {name}", f"```python\n{_signature(name, target)}\n```", _told(target)]
    if inspect.isclass(target):
        lines += [_method(member, function) for member, function in _methods(target)]
    return "\n\n".join(filter(None, lines))


def _methods(target: type) -> list[tuple[str, Any]]:
    """The public methods of a class that say what they do."""
    own = [(name, inspect.unwrap(_function(value))) for name, value in vars(target).items()]
    return [(name, f) for name, f in own if not name.startswith("_") and inspect.getdoc(f)]


def _function(value: Any) -> Any:
    return getattr(value, "__func__", getattr(value, "fget", None) or value)


def _method(name: str, function: Any) -> str:
    if not callable(function):
        return ""
    first = _told(function).split("\n\n")[0]
    return f"```python\n{_signature(name, function)}\n```\n\n{first.replace(chr(10), ' ')}"


def _signature(name: str, target: Any) -> str:
    try:
        found = str(inspect.signature(target))
    except (TypeError, ValueError):
        return name
    found = found.replace("(self, ", "(").replace("(self)", "()")
    found = QUOTED.sub(lambda match: match[1] or match[2], found)
    return _wrapped(name + found.replace("jarilab.", ""))


def _wrapped(signature: str) -> str:
    """A long one with a parameter on each line."""
    if len(signature) <= WIDE:
        return signature
    return COMMA.sub(",\n    ", signature)


def _told(target: Any) -> str:
    return inspect.getdoc(target) or ""


def of_commands() -> str:
    """`jarilab COMMAND --help` of each."""
    told = [f"## {name}\n\n```text\n{_help(name)}```" for name in sorted(commands())]
    return "\n\n".join(["# Commands", COMMANDS, *told]) + "\n"


def tasks() -> str:
    """`jarilab train TASK --help` of each, from its own options on."""
    parts = ["# Tasks and models", TASKS]
    for task in listed_tasks():
        _, _, own = _help("train", task["name"]).partition("\nthe task ")
        parts.append(f"## {task['name']}\n\n{task['what']}.\n\n```text\nthe task {own}```")
    return "\n\n".join(parts) + "\n"


def _help(*words: str) -> str:
    """What a command says of itself, asked for in this process: thirty others would take a minute to start."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    if not said.getvalue():
        raise SystemExit(f"jarilab {' '.join(words)} --help says nothing")
    return said.getvalue()
