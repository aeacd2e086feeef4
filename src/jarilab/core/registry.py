"""Registries of classes by name, and spec strings such as `rotary:base=500,fraction=0.5` or `mine.py:Mine:k=3`.

A class registers itself with `@registry.register("name")`. The modules of the package are imported when a name is first
looked up, so a new file is all that a new entry needs. A class in any other file is named by its path.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from jarilab.core.errors import UserError, unknown
from jarilab.core.options import options_of, read_options


@dataclass(frozen=True)
class Spec:
    """A class and the options to build it with."""

    name: str
    target: type
    options: Mapping[str, Any]

    def build(self, *arguments: Any, **keywords: Any) -> Any:
        return self.target(*arguments, **keywords, **self.options)

    def __str__(self) -> str:
        """The canonical text: only what differs from the defaults, in the constructor's order."""
        defaults = options_of(self.target)
        changed = [
            f"{n}={_text(self.options[n])}"
            for n in defaults
            if self.options.get(n, defaults[n].default) != defaults[n].default
        ]
        return f"{self.name}:{','.join(changed)}" if changed else self.name


def _text(value: Any) -> str:
    if isinstance(value, float):
        # Short only if it is the same number, since checkpoints are rebuilt from this text.
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _source_of(module: str) -> str:
    """The text of a module, which is not imported; empty where it is not installed as source."""
    spec: Any = importlib.util.find_spec(module)
    return spec.loader.get_source(module) or ""


def spec_file(spec: str) -> Path | None:
    """The Python file of a spec, `mine.py` of `mine.py:Mine:k=3`, or None."""
    name = spec.strip().partition(":")[0]
    return Path(name) if name.endswith(".py") else None


T = TypeVar("T")

_trusted: set[Path] = set()


def trust_code(path: str | Path) -> None:
    """Allow specs to execute this Python file.

    Files that the user typed are trusted by the command. Files that a run names need the user's permission.
    """
    _trusted.add(Path(path).resolve())


def trust_recorded_code(paths: Sequence[Path], source: str, allowed: bool) -> None:
    """Trust the Python files that `source`, a saved file such as run.json, names.

    Every value that comes from a file passes here before a class is built from it. allowed: whether the user said
    `--trust-code`. Raises UserError if `source` names a Python file and this is not allowed.
    """
    if paths and not allowed:
        raise UserError(
            f"{source} names the Python file {paths[0]}, and to use it is to execute that file; if the file is yours, "
            "add --trust-code"
        )
    for path in paths:
        trust_code(path)


def split_specs(text: str) -> list[str]:
    """Split a list of specs at its commas.

    `key=value` belongs to the spec before it: `rotary,none,rotary:base=500,fraction=0.5` has three. Square brackets
    hold a list for the layers of one model: `none,[rotary,none]` has two. Raises UserError for an unmatched bracket.
    """
    specs: list[str] = []
    depth, piece = 0, ""
    for letter in f"{text},":
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter != "," or depth > 0:
            piece += letter
            continue
        piece = piece.strip()
        if specs and "=" in piece and ":" not in piece.partition("=")[0]:
            specs[-1] += f",{piece}"
        elif piece:
            specs.append(piece)
        piece = ""
    if depth:
        raise UserError(
            f"expected a ] for each [, got {text!r}; write such as none,[rotary,none] for two models, the second "
            "with a list for its layers"
        )
    return specs


class Registry:
    """Classes of one kind, by name."""

    def __init__(self, kind: str, *packages: str):
        self.kind = kind
        self._packages = packages
        self._classes: dict[str, type] = {}
        self._aliases: dict[str, str] = {}
        self._families: dict[str, tuple[str, Callable[[type], bool]]] = {}
        self._base: type = object
        self._complete = False

    def register(self, name: str, *aliases: str) -> Callable[[type], type]:
        """Register a class. aliases: other names, in lower case. Raises ValueError if the name is taken."""

        def announce(target: type) -> type:
            taken = self._classes.setdefault(name, target)
            if taken is not target:
                raise ValueError(
                    f"{self.kind} {name!r} is {taken.__module__}.{taken.__qualname__} already"
                )
            self._aliases |= dict.fromkeys(aliases, name)
            return target

        return announce

    def base(self, target: type[T]) -> type[T]:
        """Set the base class of all entries, so that a file with one subclass need not name it."""
        self._base = target
        return target

    def family(self, word: str, sentence: str, has: Callable[[type], bool]) -> None:
        """Register a word for several entries: `spec` raises UserError for it and lists them.

        sentence: what they have in common. has: whether a class belongs to them.
        """
        self._families[word] = sentence, has

    def names(self) -> list[str]:
        """Every registered name, sorted. Imports the package's modules."""
        if not self._complete:
            for module in self._modules():
                importlib.import_module(module)
            self._complete = True
        return sorted(self._classes)

    def __contains__(self, name: str) -> bool:
        """Whether a class has this name. Imports only modules whose source has it, if one registers it."""
        if name not in self._classes and not self._complete:
            for module in self._modules():
                if f'.register("{name}"' in _source_of(module):
                    importlib.import_module(module)
        return name in self._classes or name in self.names()

    def _modules(self) -> Iterator[str]:
        """The names of the package's modules."""
        for name in self._packages:
            package = importlib.import_module(name)
            modules = pkgutil.iter_modules(package.__path__, f"{name}.")
            yield from (module.name for module in modules if not module.ispkg)

    def aliases(self, name: str) -> list[str]:
        """Other names of an entry."""
        return sorted(alias for alias, meant in self._aliases.items() if meant == name)

    def spec(self, text: str) -> Spec:
        """Read `name`, `name:key=value,...` or `file.py:Class:key=value`.

        `file.py` is enough if one class in it is of this kind. The spec has the registered name. Raises UserError, also
        for files that are not trusted, since reading a class executes its file.
        """
        typed, _, rest = text.strip().partition(":")
        path = spec_file(text)
        if path is None:
            name = self._registered(typed)
            target = self._classes[name]
        else:
            self._check_file(path, text.strip())
            module = _module_of(path)
            class_name, _, after = rest.partition(":")
            if "=" in class_name:  # options without a class before them
                class_name, after = "", rest
            rest = after
            class_name = class_name or self._only_class(module, path)
            target = _class_in(module, path, class_name)
            name = f"{typed}:{class_name}"
            self._check_class(name, target)
        return Spec(name, target, read_options(name, options_of(target), _pairs(name, rest)))

    def _registered(self, typed: str) -> str:
        """The registered name for a name, an alias or another case."""
        if typed in self:
            return typed
        names, lower = self.names(), typed.lower()
        if lower in self._families:
            raise self._ambiguous(lower)
        name = self._aliases.get(lower, lower)
        if name not in names:
            raise unknown(self.kind, typed, names, also=self._aliases)
        return name

    def _ambiguous(self, word: str) -> UserError:
        """The error for a word that names several entries."""
        sentence, has = self._families[word]
        members = [name for name in self.names() if has(self._classes[name])]
        width = max(map(len, members), default=0)
        lines = [f"  {name:<{width}}  {first_sentence(self._classes[name])}" for name in members]
        head = f"{word!r} is more than one {self.kind} ({sentence}); name one of them:"
        return UserError("\n".join([head, *lines]))

    def _check_file(self, path: Path, text: str) -> None:
        """Raises UserError for a file that is missing or not trusted."""
        if not path.is_file():
            raise UserError(
                f"expected a Python file with the {self.kind}, got no file {path}; write its path as seen from "
                f"{Path.cwd()}"
            )
        if path.resolve() not in _trusted:
            raise UserError(
                f"{text} names the Python file {path}, and to use it is to execute that file; if it is "
                f"yours, say so with --trust-code, or in Python with jarilab.trust_code({str(path)!r})"
            )

    def _check_class(self, name: str, target: type) -> None:
        """Raises UserError for a class of another kind, and for one whose methods are missing."""
        base = f"{self._base.__module__}.{self._base.__name__}"
        if not issubclass(target, self._base):
            raise UserError(
                f"{name}: expected a subclass of {base}, got a class of another kind; derive it from that one"
            )
        missing = sorted(getattr(target, "__abstractmethods__", ()))
        if missing:
            raise UserError(
                f"{name}: expected all methods of {base}, got none for {', '.join(missing)}; define them"
            )

    def _only_class(self, module: ModuleType, path: Path) -> str:
        """The only class of this kind in a file. Raises UserError if there are several or none."""
        classes = _classes_of(module).items()
        fitting = [
            name
            for name, one in classes
            if issubclass(one, self._base) and not inspect.isabstract(one)
        ]
        if len(fitting) == 1:
            return fitting[0]
        candidates = f"{len(fitting)} classes that could be the {self.kind}, {', '.join(fitting)}"
        if not fitting:
            raise UserError(
                f"{path} has no class that could be the {self.kind}; write one that derives from "
                f"{self._base.__module__}.{self._base.__name__}"
            )
        raise UserError(f"{path} has {candidates}; name one of them, such as {path}:{fitting[0]}")


def first_sentence(target: type) -> str:
    """First sentence of a class's docstring, without its full stop."""
    paragraph = inspect.cleandoc(target.__doc__ or "").partition("\n\n")[0]
    text = " ".join(paragraph.split())
    # `et al. (2019)` and `T5 1.1` do not end a sentence: the next one begins with a capital or a backtick.
    return re.split(r"\.(?=\s+[A-Z`]|$)", text, maxsplit=1)[0]


def _pairs(name: str, text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        before, equals, value = item.partition("=")
        key = before.strip()
        if not equals or not key:
            raise UserError(
                f"{name}: expected key=value, got {item!r}; write {name}:key=value,key=value"
            )
        if key in pairs:
            raise UserError(f"{name}: option {key!r} is given twice; give it once")
        pairs[key] = value.strip()
    return pairs


def _module_of(path: Path) -> ModuleType:
    """Execute a Python file once. Raises UserError if that fails."""
    name = f"jarilab_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    # Before execution: `dataclass` looks up the module of a class while the class is defined.
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    # A script without `if __name__ == "__main__"` may end the process.
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(
            f"{path} cannot be used: running it raised {type(error).__name__}: {error}"
        ) from error
    return module


def _classes_of(module: ModuleType) -> dict[str, type]:
    """The classes defined in a module, without imported ones."""
    values = vars(module).items()
    return {n: v for n, v in values if inspect.isclass(v) and v.__module__ == module.__name__}


def _class_in(module: ModuleType, path: Path, name: str) -> type:
    classes = _classes_of(module)
    if name not in classes:
        raise unknown(f"class in {path}", name, classes)
    return classes[name]
