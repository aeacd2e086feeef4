"""The reference, made of docstrings and options: nothing of it is written twice.

    python docs/build/reference.py      # write the tables that pages have below their marks

The pages of `pages()` are written when the site is built. A table of a page in docs/reference or docs/site follows its
mark, `<!-- generated: NAME ARGUMENTS -->`; a test compares it.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import itertools
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import catalogue
import jarilab
import which
from jarilab.cli import main
from jarilab.cli.commands import names as commands
from jarilab.encodings.base import EXTRA_ARGUMENTS, Encoding
from jarilab.encodings.base import HOOKS as ACTING
from jarilab.inspect.measure.measures import MEASURES
from jarilab.inspect.record.capture import Tape
from jarilab.laws import LAWS, whole_laws
from jarilab.laws.cures import CURES
from jarilab.runs.descriptions import describe_tasks
from places import DOCS, LANGUAGES, TEXTS
from tables import table

PYTHON = "Everything that `import jarilab` gives, from the docstrings in the code."
COMMANDS = "What each command says of itself."
TASKS = "What can be trained, and with which options; each is also a keyword in `settings`."
HOOKS = (*ACTING, *EXTRA_ARGUMENTS, "relation")
"""Methods of an encoding that a person overrides."""
WIDE = 80
QUOTED = re.compile(r"""(?<=[:>] )(?:'([^']*)'|"([^"]*)")""")
GENERATED = re.compile(r"<!-- generated: (\w+)((?: \w+)*) -->\n\n(?:\|.*\n)*")
FIELD = re.compile(r"(?:^|(?<=\. ))(\w+): ")
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
        lines += [_module(target), _attributes(target)]
        lines += [_method(member, function) for member, function in _methods(target)]
    return "\n\n".join(filter(None, lines))


def _module(target: type) -> str:
    """What the module says of the hooks, for the class that has them."""
    return inspect.getdoc(inspect.getmodule(target)) or "" if target is Encoding else ""


def _attributes(target: type) -> str:
    """What a class says of itself in attributes, each of which has its meaning below it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(target))).body[0]
    assert isinstance(body, ast.ClassDef)
    rows = [
        [
            f"`{ast.unparse(one.target)}`",
            f"`{ast.unparse(one.value)}`" if one.value else "",
            meaning,
        ]
        for one, after in itertools.pairwise(body.body)
        if isinstance(one, ast.AnnAssign) and (meaning := _meaning(after))
    ]
    return table(["attribute", "default", "meaning"], rows) if rows else ""


def _meaning(after: ast.stmt) -> str:
    """The text below an attribute, or nothing."""
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return " ".join(str(after.value.value).split())
    return ""


def _methods(target: type) -> list[tuple[str, Any]]:
    """The public methods of a class that say what they do, and the hooks, of which the module tells."""
    own = [(name, inspect.unwrap(_function(value))) for name, value in vars(target).items()]
    return [
        (name, f)
        for name, f in own
        if not name.startswith("_") and (inspect.getdoc(f) or name in HOOKS)
    ]


def _function(value: Any) -> Any:
    return getattr(value, "__func__", getattr(value, "fget", None) or value)


def _method(name: str, function: Any) -> str:
    if not callable(function):
        return ""
    first = _told(function).split("\n\n")[0]
    return f"```python\n{_signature(name, function)}\n```\n\n{first.replace(chr(10), ' ')}".rstrip()


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


def _first(target: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(_told(target).split("\n\n")[0].split())


def _told(target: Any) -> str:
    return inspect.getdoc(target) or ""


def of_commands() -> str:
    """`jarilab COMMAND --help` of each."""
    told = [f"## {name}\n\n```text\n{_help(name)}```" for name in sorted(commands())]
    return "\n\n".join(["# Commands", COMMANDS, *told]) + "\n"


def tasks() -> str:
    """`jarilab train TASK --help` of each, from its own options on."""
    parts = ["# Tasks and models", TASKS]
    for task in describe_tasks():
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


def written(page: str) -> str:
    """A page with the tables that its marks name. Raises KeyError for an unknown mark."""
    tables = {
        "measures": measures,
        "tape_fields": tape_fields,
        "tape_methods": tape_methods,
        "laws_of_encodings": laws_of_encodings,
        "laws_of_models": laws_of_models,
        "properties": which.properties,
        "encodings": catalogue.index,
        "facts": catalogue.facts,
        "options": catalogue.options,
    }

    def put(mark: re.Match[str]) -> str:
        rows = tables[mark[1]](*mark[2].split())
        return f"<!-- generated: {mark[1]}{mark[2]} -->\n\n{rows}\n"

    return GENERATED.sub(put, page)


def marked() -> list[Path]:
    """The pages that have such tables."""
    folders = DOCS / "reference", *(TEXTS / language for language in LANGUAGES)
    files = [path for folder in folders for path in sorted(folder.rglob("*.md"))]
    return [path for path in files if GENERATED.search(path.read_text(encoding="utf-8"))]


def measures() -> str:
    """Every measure, by its key."""
    rows = [
        [
            f"`{key}`",
            one.label,
            one.about.replace("|", "\\|"),
            " to ".join(f"{end:g}" for end in one.range or ()),
        ]
        for key, one in MEASURES.items()
    ]
    return table(["key", "name on pages", "definition", "range"], rows)


def laws_of_encodings() -> str:
    """Every law of `jarilab laws ENCODING`, by the name that it prints."""
    rows = [[f"`{name}`", _first(law), CURES[name]] for name, law in LAWS.items()]
    return table(["law", "what holds", "if it is broken"], rows)


def laws_of_models() -> str:
    """Every law of `jarilab laws --model`."""
    return table(
        ["law", "what holds"], [[f"`{name}`", _first(law)] for name, law in whole_laws.LAWS.items()]
    )


def tape_fields() -> str:
    """What a tape holds, from the docstring of its class."""
    told = " ".join(_told(Tape).split())
    parts = FIELD.split(told)[1:]
    meanings = dict(zip(parts[::2], parts[1::2], strict=True))
    rows = [[f"`{name}`", meanings[name].strip()] for name in Tape.__dataclass_fields__]
    return table(["field", "what it holds"], rows)


def tape_methods() -> str:
    """What a tape answers, from the docstrings of its methods and properties."""
    methods = [
        (name, _function(value)) for name, value in vars(Tape).items() if not name.startswith("_")
    ]
    rows = [
        [
            f"`{_call(name, function, vars(Tape)[name])}`",
            _first(function),
        ]
        for name, function in methods
        if callable(function)
    ]
    return table(["call", "result"], rows)


def _call(name: str, function: Any, value: Any) -> str:
    """How it is written: a property without parentheses, a method with the names of its arguments."""
    if isinstance(value, property):
        return name
    return f"{name}({', '.join(list(inspect.signature(function).parameters)[1:])})"


if __name__ == "__main__":
    for path in marked():
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
