"""Names for classes, and spec strings that build them: `rotary:base=500,fraction=0.5` or `mine.py:Mine:k=3`.

A registry knows a package and nothing of what is in it: a class announces itself with `@registry.register("name")`, and
the package's modules are imported the first time a name is asked for. A new file in the package is therefore all that a
new entry takes, and a file anywhere else is named by its path.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.errors import UserError, unknown
from jarilab.options import options_of, read_options


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
        # The short form only where it is the same number: the text is what a checkpoint is built from.
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def file_of(spec: str) -> Path | None:
    """The Python file that a spec takes its class from, `mine.py` of `mine.py:Mine:k=3`, or None. This is the one
    place that says what names a file."""
    name = spec.strip().partition(":")[0]
    return Path(name) if name.endswith(".py") else None


_trusted: set[Path] = set()


def trust_code(path: str | Path) -> None:
    """Let specs execute this Python file from now on. What a person typed is trusted by the verb it was typed for; what
    a run names is not, unless the person says so."""
    _trusted.add(Path(path).resolve())


class Registry:
    """Classes of one kind, by name."""

    def __init__(self, kind: str, package: str):
        self.kind = kind
        self._package = package
        self._classes: dict[str, type] = {}
        self._complete = False

    def register(self, name: str) -> Callable[[type], type]:
        """Announce a class under `name`. A name that is taken is refused."""

        def announce(target: type) -> type:
            taken = self._classes.setdefault(name, target)
            if taken is not target:
                raise ValueError(
                    f"{self.kind} {name!r} is {taken.__module__}.{taken.__qualname__} already"
                )
            return target

        return announce

    def names(self) -> list[str]:
        """Every registered name, sorted. Imports the package's modules."""
        if not self._complete:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            self._complete = True
        return sorted(self._classes)

    def spec(self, text: str) -> Spec:
        """Read `name`, `name:key=value,key=value` or `file.py:Class:key=value`. Raises UserError, also for a file that
        `trust_code` was not told of: to take a class from it is to execute it."""
        name, _, rest = text.strip().partition(":")
        if path := file_of(text):
            if not path.is_file():
                raise UserError(
                    f"no file {path} to take the {self.kind} from; write the path as seen from {Path.cwd()}"
                )
            if path.resolve() not in _trusted:
                raise UserError(
                    f"{text.strip()} names the Python file {path}, and to use it is to execute that file; if it is "
                    f"yours, say so with --trust-code, or in Python with jarilab.trust_code({str(path)!r})"
                )
            class_name, _, rest = rest.partition(":")
            target = _class_in_file(path, class_name)
            name = f"{name}:{class_name}"
        else:
            if name not in self.names():
                raise unknown(self.kind, name, self._classes)
            target = self._classes[name]
        return Spec(name, target, read_options(name, options_of(target), _pairs(name, rest)))


def _pairs(name: str, text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(
                f"{name}: expected key=value, got {item!r}; write {name}:key=value,key=value"
            )
        if key in pairs:
            raise UserError(f"{name}: option {key!r} is given twice; give it once")
        pairs[key.strip()] = value.strip()
    return pairs


def _class_in_file(path: Path, class_name: str) -> type:
    module_name = f"jarilab_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    module = sys.modules.get(module_name)
    if module is None:
        found = importlib.util.spec_from_file_location(module_name, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[module_name] = module
        try:
            found.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            raise UserError(
                f"{path} cannot be used: running it raised {type(error).__name__}: {error}"
            ) from error
    classes = [
        n
        for n, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module_name
    ]
    if class_name not in classes:
        raise unknown(f"class in {path}", class_name, classes)
    return getattr(module, class_name)
