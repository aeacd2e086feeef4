"""What the builder leaves to be done in each page.

Its switch of languages leads to the other home, not to the same page. The two fields in which it keeps light and dark
are unseen, yet stops for the tab key. Each line of code begins with an empty link, which a screen reader announces.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from places import LANGUAGES

SWITCH = re.compile(r'(<a href=")[^"]*(" hreflang="(\w+)" class="md-select__link")')

UNSEEN = '<input class="md-option"'
LINE_LINK = re.compile(r'<a id="__codelineno[^>]*></a>')


def finish(site: Path) -> None:
    """In all pages of the site. One that the other language has not keeps the way to its home."""
    live = site / "live"
    for path in site.rglob("*.html"):
        if path.name != "404.html" and not path.is_relative_to(live):
            _finish(path, site)


def _finish(path: Path, site: Path) -> None:
    def lead(found: re.Match[str]) -> str:
        before, after, language = found.groups()
        target = _home(site, language) / part
        if not target.exists():
            return found[0]
        return before + Path(os.path.relpath(target, path.parent)).as_posix() + after

    korean = path.is_relative_to(_home(site, "ko"))
    part = path.relative_to(_home(site, "ko" if korean else "en"))
    text = SWITCH.sub(lead, path.read_text(encoding="utf-8"))
    text = LINE_LINK.sub("", text)
    path.write_text(text.replace(UNSEEN, f'{UNSEEN} tabindex="-1"'), encoding="utf-8")


def _home(site: Path, language: str) -> Path:
    """The folder of a language: the first is that of the site itself."""
    return site if language == LANGUAGES[0] else site / language
