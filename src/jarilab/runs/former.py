"""Names that options had before they were called by the field's words, and options that came later. Records and
settings of before are still read, and the hash that names a run goes by them, so that it is the same as ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jarilab.errors import UserError

TRAINING = {"passes": "epochs"}
TASKS = {
    "captions": {"picture_weight": "image_weight"},
    "detection": {"fewest": "min_digits", "most": "max_digits"},
}
LENGTHS = {"shortest": 1, "longest": 25, "test_longest": None}
"""What `lengths` and `test_lengths` of tasks of lines of numbers were, with the defaults of then."""
LINES = ("copy", "reverse", "sort")
LAYERS = {
    "scale": "sqrt",
    "norm_kind": "layer",
    "norm_eps": 1e-5,
    "gated": False,
    "bias": True,
    "head_width": None,
    "key_value_heads": None,
}
"""Options that layers got later, and what all layers were before."""
AROUND = {"embedding_norm": False, "embedding_scale": "sqrt", "generator_bias": False}
LATER: dict[str, dict[str, Any]] = {
    "encoder_decoder": LAYERS | AROUND,
    "decoder": LAYERS | AROUND | {"parallel": False},
    "vit": LAYERS,
    "detector": LAYERS,
    "text_to_image": LAYERS,
}
"""Options that models got later, and what they were before."""
POSITIONS = {"positions": "sequential"}
"""The option of training that came later, and where tokens were told to be before."""
DATA = {"pictures": "images"}
"""Words in the description of the data that a run was trained on."""


def names_of(task: str) -> dict[str, dict[str, str]]:
    """The former names of options and what they are now, by the section of an experiment."""
    return {"task_options": TASKS.get(task, {}), "training": TRAINING}


def current(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an experiment with the names and options of today. Anything else in it is left to be checked."""
    found = dict(record)
    task = str(record.get("task"))
    for section, now_of in names_of(task).items():
        options = record.get(section)
        if isinstance(options, dict):
            found[section] = _renamed(options, now_of)
    options = found.get("task_options")
    if task in LINES and isinstance(options, dict) and options.keys() & LENGTHS.keys():
        found["task_options"] = _with_ranges(options)
    training = found.get("training")
    if isinstance(training, dict):
        found["training"] = POSITIONS | training
    options = record.get("model_options")
    if isinstance(options, dict):
        found["model_options"] = later_options(record) | options
    return found


def later_options(record: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the model of a record got later, as they were before they were options."""
    return LATER.get(str(record.get("model")), {})


def former(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an experiment with the names and options of then."""
    found = dict(record)
    for section, now_of in names_of(record["task"]).items():
        before_of = {now: before for before, now in now_of.items()}
        found[section] = _renamed(record[section], before_of)
    if record["task"] in LINES:
        found["task_options"] = _without_ranges(found["task_options"])
    found["model_options"] = _without(record["model_options"], later_options(record))
    found["training"] = _without(found["training"], POSITIONS)
    return found


def _with_ranges(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of lines with their lengths as ranges."""
    first, last, test_last = (options.get(name, value) for name, value in LENGTHS.items())
    others = {name: value for name, value in options.items() if name not in LENGTHS}
    test_lengths = None if test_last is None else f"{first}..{test_last}"
    return {**others, "lengths": f"{first}..{last}", "test_lengths": test_lengths}


def _without_ranges(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of lines as they were; as they are where they could not be said then."""
    first, _, last = options["lengths"].partition("..")
    test_first, _, test_last = (options["test_lengths"] or f"{first}..").partition("..")
    numbers = first, last, test_first, test_last or "0"
    if test_first != first or not all(number.isdecimal() for number in numbers):
        return dict(options)
    others = {name: value for name, value in options.items() if "lengths" not in name}
    test_longest = int(test_last) if test_last else None
    return {**others, "shortest": int(first), "longest": int(last), "test_longest": test_longest}


def _without(options: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The options, but for those that came later and are as it was before."""
    return {name: value for name, value in options.items() if (name, value) not in later.items()}


def _renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same options, some by other names."""
    return {names.get(name, name): value for name, value in options.items()}


def current_settings(task: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings by their full names of today, and a line for each that was given by a former one. Raises UserError for
    an option that was given by both."""
    now_of: dict[str, str] = {}
    for section, names in (("training", TRAINING), ("task", TASKS.get(task, {}))):
        for before, now in names.items():
            now_of[f"{section}.{before}"] = f"{section}.{now}"
    given = [name for name in settings if name in now_of]
    for name in given:
        if now_of[name] in settings:
            raise UserError(
                f"{name} is called {now_of[name]} now, and both were given; omit {name}"
            )
    lines = [f"{name} is called {now_of[name]} now" for name in given]
    return _renamed(settings, now_of), lines


def same_data(here: str, there: str) -> bool:
    """Whether two descriptions of training data are of the same, whichever words they use."""
    return _current_words(here) == _current_words(there)


def _current_words(description: str) -> str:
    for before, now in DATA.items():
        description = description.replace(before, now)
    return description
