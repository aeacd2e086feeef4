"""Paths of this machine, in text that leaves it."""

from __future__ import annotations

import os
import re
from pathlib import Path


def without_home(text: str) -> str:
    """`text` with paths below the home directory made relative to the current folder.

    Cards, pages and tables are passed on; the name of their author's account is not theirs to tell.
    """
    home = str(Path.home())
    if len(home) < 2 or home not in text:
        return text
    path = re.compile(rf"(?<![\w/.-]){re.escape(home)}(?:/[^\s\"',\]]*|(?![\w.-]))")
    return path.sub(lambda found: os.path.relpath(found[0]), text)
