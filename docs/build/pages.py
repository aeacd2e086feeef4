"""From what is written to what the builder reads: numbers are put in, live pages framed, links made to hold."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from config import LESSONS
from expected import QUOTED
from places import DOCS, LANGUAGES, LIVE, ROOT, SOURCE, TEXTS

SLOT = re.compile(r"\{\{ *([a-z0-9_.\- ]+?) *\}\}")
WORDS = {
    "en": {"full": "Open the page in full", "other": "이 쪽을 한국어로"},
    "ko": {"full": "페이지 전체 열기", "other": "This page in English"},
}
ENGLISH_PAGES = ("encodings.md", "looking-inside.md", "runs.md", "design.md")


def slots(text: str) -> list[str]:
    """What a page asks to have put in."""
    return SLOT.findall(text)


def lesson(language: str, name: str) -> Path:
    """Where a lesson is written."""
    return TEXTS / language / "lessons" / f"{name}.md"


def titles() -> dict[str, tuple[str, str]]:
    """The heading of each lesson in both languages."""
    return {name: (_title("en", name), _title("ko", name)) for name in LESSONS}


def _title(language: str, name: str) -> str:
    path = lesson(language, name)
    return path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ").strip()


def frame(name: str, language: str, depth: int) -> str:
    """A live page inside another. depth: of the page's folder below the root of its language."""
    up = "../" * (depth + (language == "ko"))
    address = f"{up}live/{name}.html" + ("#lang=ko" if language == "ko" else "#lang=en")
    full = WORDS[language]["full"]
    return (
        f'<div class="live"><iframe src="{address}" title="jari: {name}" loading="lazy"></iframe>'
        f'<p><a href="{address}" target="_blank">{full}</a></p></div>'
    )


def filled(text: str, language: str, depth: int, numbers: Mapping[str, object]) -> str:
    """A page with everything put in. Raises KeyError for a number that nothing gives."""

    def put(found: re.Match[str]) -> str:
        words = found[1].split()
        if words[0] == "live":
            return frame(words[1], language, depth)
        return QUOTED[words[0]].shown(numbers[words[0]])

    return SLOT.sub(put, text)


def assemble(numbers: Mapping[str, object], generated: Mapping[str, str]) -> None:
    """The sources of both languages. generated: pages by path that no person wrote, in English."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for language in LANGUAGES:
        folder = SOURCE / language
        for path in sorted((TEXTS / language).rglob("*.md")):
            part = path.relative_to(TEXTS / language)
            text = filled(path.read_text(encoding="utf-8"), language, len(part.parts) - 1, numbers)
            for name, table in generated.items():
                text = text.replace(f"<!-- {name} -->", table)
            if language != "en":
                text = _abroad(text, part, language)
            _write(folder / part, text + _other(part, language))
        shutil.copy(TEXTS / "site.css", folder / "site.css")
        for path in (*DOCS.glob("*.png"), *(DOCS / "results").glob("*.svg")):
            copy = folder / path.relative_to(DOCS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    english = SOURCE / "en"
    for name, text in generated.items():
        if name.endswith(".md"):
            _write(english / name, text)
    _kept(english)
    shutil.copytree(LIVE, english / "live")


def _abroad(text: str, part: Path, language: str) -> str:
    """Links to pages that are in English alone lead out of the language."""

    def lead(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if (TEXTS / language / part.parent / f"{target}.md").exists():
            return found[0]
        return f"](../{target}.html{anchor})"

    return re.sub(r"\]\((?!\w+:)([^)#]+)\.md(#[^)]*)?\)", lead, text)


def _other(part: Path, language: str) -> str:
    """The way to the same page in the other language."""
    up = "../" * (len(part.parts) - 1)
    target = part.with_suffix(".html").as_posix()
    address = f"{up}ko/{target}" if language == "en" else f"{up}../{target}"
    return f'\n\n<p class="other"><a href="{address}">{WORDS[language]["other"]}</a></p>\n'


def _kept(english: Path) -> None:
    """The pages that the repository has anyway, and the code that they name."""
    for folder in ("guide", "results"):
        for path in (DOCS / folder).glob("*.md"):
            _write(english / folder / path.name, path.read_text(encoding="utf-8"))
    for name in ENGLISH_PAGES:
        _write(english / name, (DOCS / name).read_text(encoding="utf-8"))
    for path in english.rglob("*.md"):
        _write(path, _held(path, english))


def _held(path: Path, english: Path) -> str:
    """A page whose links lead somewhere: to code they lead to a page that shows it."""

    def lead(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        file = target.partition("#")[0]
        here = DOCS / path.relative_to(english).parent
        meant = (here / file).resolve()
        if not file or "://" in target or (path.parent / file).exists():
            return found[0]
        if not meant.is_relative_to(ROOT) or not meant.is_file():
            return found[0]  # and the builder says that it leads nowhere
        shown = english / "source" / f"{meant.relative_to(ROOT).as_posix()}.md"
        if meant.suffix == ".md":
            _write(shown, re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meant.read_text(encoding="utf-8")))
        else:
            fence = f"```{'python' if meant.suffix == '.py' else ''}\n"
            _write(shown, f"# {meant.name}\n\n{fence}{meant.read_text(encoding='utf-8')}```\n")
        up = "../" * (len(path.relative_to(english).parts) - 1)
        return f"[{text}]({up}{shown.relative_to(english).as_posix()})"

    return re.sub(r"\[([^]]*)\]\(([^)\s]*)\)", lead, path.read_text(encoding="utf-8"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
