"""The verbs, one a file: its docstring is the summary, `arguments` adds flags, `run` does the work."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

GROUPS = {
    "look": ("explore", "heads", "causes", "walk", "show", "encodings"),
    "train": ("train", "evaluate", "predict", "tasks", "data"),
    "compare": ("compare", "report", "runs", "card"),
    "check": ("laws", "verify"),
    "serve": ("serve", "export"),
}
"""Verbs by what they are for, in the order of `jarilab --help`."""


def names() -> list[str]:
    """Every verb. A new file in this folder is a new verb."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def groups() -> dict[str, list[str]]:
    """Every verb, by group. Verbs that `GROUPS` does not name are under `other`."""
    grouped = {title: list(verbs) for title, verbs in GROUPS.items()}
    others = set(names()).difference(*GROUPS.values())
    return {**grouped, "other": sorted(others)} if others else grouped


def module(name: str) -> ModuleType:
    """The module of a verb."""
    return importlib.import_module(f"{__name__}.{name}")


def summary(name: str) -> str:
    """What a verb does, in one sentence."""
    return (module(name).__doc__ or "").partition("\n")[0]
