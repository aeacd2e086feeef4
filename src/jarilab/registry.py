"""Names for classes, and spec strings that build them: `rotary:base=500,fraction=0.5` or `mine.py:Mine:k=3`.

A registry knows a package and nothing of what is in it: a class announces itself with `@registry.register("name")`, and
the package's modules are imported the first time a name is asked for. A new file in the package is therefore all that a
new entry takes, and a file anywhere else is named by its path.

The options of a class are the keyword-only parameters of its constructor, with their annotations as the rule for what
they may be. There is no second list of them anywhere.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.errors import UserError, nearest, unknown


@dataclass(frozen=True)
class Option:
    """One keyword of a constructor: its name, the annotation that values are checked against, its default, and what
    the docstring says of it."""

    name: str
    annotation: Any
    default: Any
    meaning: str = ""

    @property
    def several(self) -> bool:
        """Whether it is a list of values."""
        return typing.get_origin(self.annotation) in (tuple, list)

    def read(self, owner: str, value: Any) -> Any:
        """`value`, which may be the text of a command line, as the annotation wants it; `null` is None there.

        Raises UserError.
        """
        if self.several and isinstance(value, str):
            # A list on a command line is JSON, or one value as it is.
            try:
                value = json.loads(value) if value.startswith("[") else [value]
            except ValueError as error:
                raise UserError(f"{owner}: {self.name}: expected a JSON list, got {value!r}: {error}") from None
        if value == "null" and _may_be_none(self.annotation):
            return None
        try:
            return validated(self.annotation, value)
        except UserError as error:
            raise UserError(f"{owner}: {self.name}: {error} (default {self.default!r})") from None


def validated(annotation: Any, value: Any, *, strict: bool = False) -> Any:
    """`value`, or what its text says, as the annotation wants it. Raises UserError: what was expected, what was got.

    strict: nothing is converted, as for what jari itself has written.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    # JSON, in which a run is kept, has no word for infinity.
    adapter = TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False, strict=strict))
    try:
        if isinstance(value, str) and not strict:
            return adapter.validate_strings(value)
        return adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{part}: " for part in problem["loc"] if isinstance(value, dict))
        text = problem["msg"]
        raise UserError(f"{where}{text[0].lower()}{text[1:]}; got {problem['input']!r}") from None


def check_fields(where: str, fields: Mapping[str, Any], record: Any) -> None:
    """Hold a record of a file, which anybody may have edited, against the annotation of each field it must have.

    Raises UserError that names the file and the field.
    """
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected named fields, {', '.join(fields)}; got {record!r}")
    for name, annotation in fields.items():
        if name not in record:
            raise UserError(f"{where}: {name} is missing; put the file back as it was written")
        try:
            validated(annotation, record[name], strict=True)
        except UserError as error:
            raise UserError(f"{where}: {name}: {error}; put the file back as it was written") from None


def _may_be_none(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def options_of(target: Callable[..., Any]) -> dict[str, Option]:
    """The options of a class or function: its keyword-only parameters."""
    function = target.__init__ if inspect.isclass(target) else target
    hints = typing.get_type_hints(function, include_extras=True)
    meanings = _meanings(_doc(target), list(hints))
    return {
        name: Option(name, hints.get(name, Any), parameter.default, meanings.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _doc(target: Callable[..., Any]) -> str:
    """The docstring that speaks of the options: that of the class whose constructor has them."""
    owners = [c for c in inspect.getmro(target) if "__init__" in vars(c)] if inspect.isclass(target) else [target]
    return owners[0].__doc__ or ""


def _meanings(doc: str, names: Sequence[str]) -> dict[str, str]:
    """What a docstring says of each name: the sentences behind `name: ` or `name, other: `, up to the next of these or
    the end of the paragraph."""
    meanings: dict[str, str] = {}
    one = f"(?:{'|'.join(map(re.escape, names))})"
    for paragraph in inspect.cleandoc(doc).split("\n\n"):
        found = re.split(rf"(?:^|(?<=\s))({one}(?:, {one})*): ", " ".join(paragraph.split()))
        for said_of, text in zip(found[1::2], found[2::2], strict=True):
            meanings |= dict.fromkeys(said_of.split(", "), text.strip().removesuffix("."))
    return meanings


def read_options(owner: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert the options somebody gave. Raises UserError naming the nearest option for a misspelt one."""
    read = {}
    for name, value in given.items():
        if name not in options:
            match = nearest(name, options)
            guess = f" did you mean {match!r}?" if match else ""
            raise UserError(f"{owner} has no option {name!r};{guess} Options: {', '.join(options) or 'nothing'}")
        read[name] = options[name].read(owner, value)
    return read


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
                raise ValueError(f"{self.kind} {name!r} is {taken.__module__}.{taken.__qualname__} already")
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
            raise UserError(f"{name}: expected key=value, got {item!r}; write {name}:key=value,key=value")
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
            raise UserError(f"{path} cannot be used: running it raised {type(error).__name__}: {error}") from error
    classes = [n for n, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module_name]
    if class_name not in classes:
        raise unknown(f"class in {path}", class_name, classes)
    return getattr(module, class_name)
