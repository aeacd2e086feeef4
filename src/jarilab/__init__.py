"""jarilab: train attention models, choose their positional encoding, and see what they attend to.

Names are imported when they are used: `import jarilab` alone loads neither torch nor anything that needs it.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from jarilab._version import __version__ as __version__

# The stub that type checkers read is the one list of public names and of the modules that define them.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jarilab' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
