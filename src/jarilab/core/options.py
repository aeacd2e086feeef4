"""Options: the keyword-only parameters of a constructor or function, with annotation, default and help.

The command line, the record of a run and spec strings all read them from here.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from jarilab.core.errors import UserError, closest_match, shortened

P = ParamSpec("P")
T = TypeVar("T")

LIST_TYPES = (tuple, list, Sequence)
"""Types of options with several values."""
TYPE_NAMES: dict[Any, str] = {int: "integer", float: "number"}
"""Types as help and errors name them."""
EXPECTED = {
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    "string_type": "a text",
    "dict_type": "named values",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
}
"""What was expected, by pydantic's type of an error."""
MAX_INTEGER = 2**63 - 1
MAX_FLOAT, MIN_FLOAT = 1e36, 1e-36
"""Range of float32, with a margin."""
_POWER_OF_TEN = re.compile(r"[+-]?[0-9_]+(\.[0-9]*)?[eE]\+?[0-9]{1,2}")


@dataclass(frozen=True)
class Option:
    """One keyword-only parameter. meaning: its help, from the docstring."""

    name: str
    annotation: Any
    default: Any
    meaning: str = ""

    @property
    def several(self) -> bool:
        """Whether the value is a list."""
        return typing.get_origin(self.annotation) in LIST_TYPES

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a `Literal`; empty for other types."""
        kinds = _kinds(self.annotation)
        words = [kind for kind in kinds if typing.get_origin(kind) is typing.Literal]
        if len(words) < len(kinds):
            return ()
        return tuple(choice for kind in words for choice in typing.get_args(kind))

    @property
    def kind(self) -> str:
        """The type as help names it: `integer`, `number` or `text`."""
        kinds = _kinds(self.annotation)
        return next((TYPE_NAMES[kind] for kind in kinds if kind in TYPE_NAMES), "text")

    def read(self, owner: str, value: Any) -> Any:
        """Convert `value`, which may be text from a command line, to the annotated type.

        The text `null` is None if None is allowed. Raises UserError for another type or a number outside float32.
        """
        return self.read_as(f"{owner}: {self.name}", value)

    def read_as(self, label: str, value: Any) -> Any:
        """`read` with a label for errors."""
        if self.several and isinstance(value, str):
            # On a command line, a list is JSON or a single value.
            try:
                value = json.loads(value) if value.startswith("[") else [value]
            except ValueError as error:
                raise UserError(f"{label}: expected a JSON list, got {value!r}: {error}") from None
        if value == "null" and type(None) in typing.get_args(self.annotation):
            return None
        try:
            read = validated(self.annotation, value)
            for kind in _kinds(self.annotation):
                _check_size(kind, read)
            return read
        except UserError as error:
            default = "" if self.default is None else f" (default {self.default!r})"
            raise UserError(f"{label}: {error}{default}") from None


def validated(annotation: Any, value: Any, *, strict: bool = False) -> Any:
    """`value` or its text, converted to the annotated type. Raises UserError, also for NaN and infinity.

    strict: convert nothing, as for files that jarilab wrote.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    # run.json could not represent infinity.
    adapter = TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False, strict=strict))
    read = (
        adapter.validate_strings
        if isinstance(value, str) and not strict
        else adapter.validate_python
    )
    try:
        return read(_expand_exponent(annotation, value))
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{part}: " for part in problem["loc"] if isinstance(value, dict))
        told = problem_of(problem)
        link = "," if problem["type"] in EXPECTED else ";"
        raise UserError(f"{where}{told}{link} got {shortened(repr(problem['input']))}") from None


def problem_of(problem: Any) -> str:
    """The sentence of an error of pydantic, without what it got."""
    if problem["type"] in EXPECTED:
        limits = {
            name: f"{limit:g}" if isinstance(limit, float) else limit
            for name, limit in problem.get("ctx", {}).items()
        }
        return f"expected {EXPECTED[problem['type']].format(**limits)}"
    text = problem["msg"].removeprefix("Value error, ")
    return f"{text[0].lower()}{text[1:]}"


def _expand_exponent(annotation: Any, value: Any) -> Any:
    """`1e6` as `1000000` if an integer is expected."""
    if not isinstance(value, str) or float in (kinds := _kinds(annotation)) or int not in kinds:
        return value
    if not _POWER_OF_TEN.fullmatch(value) or not (number := float(value)).is_integer():
        return value
    return str(int(number))


def _check_size(kind: Any, value: Any) -> None:
    """Raises UserError for a number that a tensor cannot represent."""
    number = abs(value) if kind in TYPE_NAMES and value is not None else 0
    if kind is int and number > MAX_INTEGER:
        raise UserError(f"expected an integer of {MAX_INTEGER:,} at most; got {value}")
    if kind is float and number and not MIN_FLOAT <= number <= MAX_FLOAT:
        raise UserError(f"expected 0, or a number from {MIN_FLOAT:g} to {MAX_FLOAT:g}; got {value}")


def _kinds(annotation: Any) -> list[Any]:
    """The types of an annotation, without limits and None."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [_kinds(member) for member in typing.get_args(annotation)]
        return [kind for kinds in members for kind in kinds]
    return [] if annotation is type(None) else [annotation]


def check_fields(where: str, fields: Mapping[str, Any], record: Any) -> None:
    """Check the fields of a record that was read from a file. Raises UserError, naming file and field.

    where: the file. fields: the annotation of each required field.
    """
    if not isinstance(record, dict):
        raise UserError(
            f"{where}: expected named fields, {', '.join(fields)}; got {shortened(repr(record))}"
        )
    for name, annotation in fields.items():
        if name not in record:
            raise UserError(f"{where}: {name} is missing; put the file back as it was written")
        try:
            validated(annotation, record[name], strict=True)
        except UserError as error:
            raise UserError(
                f"{where}: {name}: {error}; put the file back as it was written"
            ) from None


def options_of(target: Callable[..., Any]) -> dict[str, Option]:
    """The options of a class or function: its keyword-only parameters."""
    function = target.__init__ if inspect.isclass(target) else target
    hints = typing.get_type_hints(_annotated(target), include_extras=True)
    meanings: dict[str, str] = {}
    for doc in _docs(target):
        meanings |= _meanings(doc, list(hints))
    return {
        name: Option(name, hints.get(name, Any), parameter.default, meanings.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _annotated(target: Callable[..., Any]) -> Any:
    """The object that has the annotations of the options."""
    # A dataclass itself, since annotations of inherited fields refer to names of another module.
    if inspect.isclass(target) and not is_dataclass(target):
        return target.__init__
    return target


def unpack_options(
    defaults: Any, *, own_first: bool = False
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """
    Decorator: makes each key of a function's `**group: Unpack[SomeTypedDict]` an option with default and help.

    So options that many functions share are defined once.

        @unpack_options(LayerOptions(n_heads=4))
        def __init__(self, classes: int, *, registers: int = 0, **layer: Unpack[LayerKeywords]):
            options = LayerOptions(**layer)

    defaults: a dataclass with a field for each key and their help as docstring; the function receives every key. Their
    types are annotated in the TypedDict. own_first: list the function's own options before the shared.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        hints = typing.get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
        *parameters, group = signature.parameters.values()
        (typed_dict,) = typing.get_args(hints.pop(group.name))
        kinds = typing.get_type_hints(typed_dict, include_extras=True)
        omitted = {name: value for name, value in vars(defaults).items() if name in kinds}
        shared = [
            inspect.Parameter(name, group.KEYWORD_ONLY, default=value, annotation=kinds[name])
            for name, value in omitted.items()
        ]
        named = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
        unnamed = [one for one in parameters if one.kind is not one.KEYWORD_ONLY]
        options = [*named, *shared] if own_first else [*shared, *named]
        flat = signature.replace(parameters=[*unnamed, *options])

        @wraps(function)
        def with_defaults(*args: P.args, **keywords: P.kwargs) -> T:
            flat.bind(*args, **keywords)  # raises Python's own TypeError for an unknown keyword
            return function(*args, **omitted | keywords)  # type: ignore[arg-type]

        with_defaults.__signature__ = flat  # type: ignore[attr-defined]
        with_defaults.__annotations__ = hints | kinds
        with_defaults.__doc__ = type(defaults).__doc__
        return with_defaults

    return decorate


def _docs(target: Callable[..., Any]) -> list[str]:
    """The docstrings with the help of the options: of the class, its constructor, and dataclasses it derives from."""
    if not inspect.isclass(target):
        return [target.__doc__ or ""]
    owners = [c for c in inspect.getmro(target) if "__init__" in vars(c)]
    made_of = [c for c in owners if is_dataclass(c)] if is_dataclass(target) else owners[:1]
    docs = {owner.__name__: owner.__doc__ or "" for owner in reversed(made_of)}
    constructor = target.__init__.__doc__ or ""
    # Python generates a docstring for dataclasses without one: the signature.
    return [constructor, *(doc for name, doc in docs.items() if not doc.startswith(f"{name}("))]


def _meanings(doc: str, names: Sequence[str]) -> dict[str, str]:
    """Help of each name: the text after `name: ` or `name, other: `, up to the next name or paragraph."""
    meanings: dict[str, str] = {}
    one = f"(?:{'|'.join(map(re.escape, names))})"
    for paragraph in inspect.cleandoc(doc).split("\n\n"):
        pieces = re.split(rf"(?:^|(?<=\s))({one}(?:, {one})*): ", " ".join(paragraph.split()))
        for labels, text in zip(pieces[1::2], pieces[2::2], strict=True):
            sentence = text.partition("Raises ")[0]  # for programmers
            meanings |= dict.fromkeys(labels.split(", "), sentence.strip().rstrip(".;"))
    return meanings


def read_options(
    owner: str, options: Mapping[str, Option], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Check and convert options. Raises UserError, with a suggestion for a misspelt name."""
    read = {}
    for name, value in values.items():
        if name not in options:
            match = closest_match(name, options)
            guess = f" did you mean {match!r}?" if match else ""
            raise UserError(
                f"{owner} has no option {name!r};{guess} Options: {', '.join(options) or 'nothing'}"
            )
        read[name] = options[name].read(owner, value)
    return read
