"""Paths of this machine, in text that leaves it."""

from __future__ import annotations

import os
import re
from pathlib import Path


def relative_to_here(text: str) -> str:
    """An absolute path as one from the current folder, or its last part if it lies elsewhere; other text as it is."""
    path = Path(text)
    try:
        if not path.is_absolute() or not path.exists():
            return text
    except (OSError, ValueError):  # longer than a name may be
        return text
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return path.name or text


def without_home(text: str) -> str:
    """`text` with paths below the home directory made relative to the current folder, or to `~` from outside of it.

    Cards, pages and tables are passed on; the name of their author's account is not theirs to tell.
    """
    # A home is often a link to a folder on another disk, and the current folder has that folder's name.
    for home in {str(Path.home()), str(Path.home().resolve())}:
        if len(home) < 2 or home not in text:
            continue
        path = re.compile(rf"(?<![\w/.-]){re.escape(home)}(?:/[^\s\"',\]]*|(?![\w.-]))")
        if Path.cwd().is_relative_to(home):
            text = path.sub(lambda found: os.path.relpath(found[0]), text)
        else:  # a relative path would name the home
            text = path.sub(lambda found, home=home: f"~{found[0][len(home) :]}", text)
    return text
