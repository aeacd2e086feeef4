"""Names that options had before they were called by the field's words. Records and settings with them are still read,
and the hash that names a run goes by them, so that it is the same as ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jarilab.errors import UserError

TRAINING = {"passes": "epochs"}
TASKS = {
    "captions": {"picture_weight": "image_weight"},
    "detection": {"fewest": "min_digits", "most": "max_digits"},
}
DATA = {"pictures": "images"}
"""Words in the description of the data that a run was trained on."""


def names_of(task: str) -> dict[str, dict[str, str]]:
    """The former names of options and what they are now, by the section of an experiment."""
    return {"task_options": TASKS.get(task, {}), "training": TRAINING}


def current(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an experiment with the names of today. Anything else in it is left to be checked."""
    found = dict(record)
    for section, names in names_of(str(record.get("task"))).items():
        if isinstance(record.get(section), dict):
            found[section] = {names.get(key, key): value for key, value in record[section].items()}
    return found


def former(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an experiment with the names of then."""
    found = dict(record)
    for section, names in names_of(record["task"]).items():
        then = {now: before for before, now in names.items()}
        found[section] = {then.get(key, key): value for key, value in record[section].items()}
    return found


def current_settings(task: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings by their full names of today, and a line for each that was given by a former one. Raises UserError for
    an option that was given by both."""
    names = {f"training.{before}": f"training.{now}" for before, now in TRAINING.items()}
    names |= {f"task.{before}": f"task.{now}" for before, now in TASKS.get(task, {}).items()}
    twice = next((key for key in settings if names.get(key) in settings), None)
    if twice is not None:
        raise UserError(f"{twice} is called {names[twice]} now, and both were given; omit {twice}")
    lines = [f"{key} is called {names[key]} now" for key in settings if key in names]
    return {names.get(key, key): value for key, value in settings.items()}, lines


def same_data(here: str, there: str) -> bool:
    """Whether two descriptions of training data are of the same, whichever words they use."""
    for before, now in DATA.items():
        there = there.replace(before, now)
        here = here.replace(before, now)
    return here == there
