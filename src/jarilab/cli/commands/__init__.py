"""The commands, one a file: its docstring is what it does, `arguments` what it takes, `run` what becomes of them."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names() -> list[str]:
    """Every command: a file here is all that a new one takes."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__))


def module(name: str) -> ModuleType:
    """The file of a command."""
    return importlib.import_module(f"{__name__}.{name}")


def summary(name: str) -> str:
    """What a command does, in a sentence."""
    return (module(name).__doc__ or "").partition("\n")[0]
