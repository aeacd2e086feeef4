"""From what is written to what the builder reads: numbers are put in, live pages framed, links made to hold."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from catalogue import DRAWN, FOLDER
from config import LESSONS
from expected import QUOTED
from places import DOCS, LANGUAGES, LIVE, ROOT, SOURCE, TEXTS

SLOT = re.compile(r"\{\{ *([a-z0-9_.\- ]+?) *\}\}")
WORDS = {
    "en": {"full": "Open the page in full", "other": "이 페이지를 한국어로"},
    "ko": {"full": "페이지 전체 열기", "other": "This page in English"},
}
KEPT = ("*.md", "guide/*.md", "how-to/*.md", "results/*.md", "decisions/*.md")
"""What the site takes of docs/ and, for its Korean side, of docs/ko/: each page stands where it stands in there."""
FENCED = re.compile(r"^(```.*?^```)$", re.M | re.S)


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
    for name, text in generated.items():
        if name.endswith(".md"):
            _write(SOURCE / "en" / name, text)
    for language in LANGUAGES:
        folder = SOURCE / language
        for path in sorted((TEXTS / language).rglob("*.md")):
            part = path.relative_to(TEXTS / language)
            text = filled(path.read_text(encoding="utf-8"), language, len(part.parts) - 1, numbers)
            for name, table in generated.items():
                text = text.replace(f"<!-- {name} -->", table)
            text = on_site(text, path, language)
            if language != "en":
                text = anchored(abroad(text, part, language))
            _write(folder / part, text + _other(part, language))
        shutil.copy(TEXTS / "site.css", folder / "site.css")
        for path in (*DOCS.glob("*.png"), *(DOCS / "results").glob("*.svg")):
            copy = folder / path.relative_to(DOCS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        shutil.copytree(DRAWN / language, folder / FOLDER / "drawn")
        _keep(language)
    shutil.copytree(LIVE, SOURCE / "en" / "live")


def home(language: str) -> Path:
    """Where the repository has its own pages in a language."""
    return DOCS if language == "en" else DOCS / language


def on_site(text: str, path: Path, language: str) -> str:
    """A page that is also read in the repository: links to files of docs/ lead to their pages on the site."""
    up = "../" * (len(path.relative_to(TEXTS / language).parts) - 1)

    def lead(found: re.Match[str]) -> str:
        meant = (path.parent / found[1]).resolve()
        roots = [home(language), DOCS]
        root = next((root for root in roots if meant.is_relative_to(root)), None)
        if root is None or meant.is_relative_to(TEXTS) or not meant.is_file():
            return found[0]
        return f"]({up}{meant.relative_to(root).as_posix()}{found[2] or ''})"

    return re.sub(r"\]\((?!\w+:)([^)#]+)(#[^)]*)?\)", lead, text)


def abroad(text: str, part: Path, language: str) -> str:
    """Links to pages that are in English alone lead out of the language."""

    def lead(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        roots = (TEXTS / language, home(language))
        places = [(root / part.parent / f"{target}.md").resolve() for root in roots]
        if any(place.exists() for place in places):
            return found[0]
        return f"](../{target}.html{anchor})"

    return re.sub(r"\]\((?!\w+:)([^)#]+)\.md(#[^)]*)?\)", lead, text)


def anchored(text: str) -> str:
    """A page whose headings are named as GitHub names them, since the builder would drop Korean letters."""

    def named(found: re.Match[str]) -> str:
        name = re.sub(r"[^\w -]", "", found[1].lower()).replace(" ", "-")
        return f"{found[0]} {{ #{name} }}"

    parts = FENCED.split(text)
    parts[::2] = [re.sub(r"^##+ (.*)$", named, part, flags=re.M) for part in parts[::2]]
    return "".join(parts)


def _other(part: Path, language: str) -> str:
    """The way to the same page in the other language."""
    up = "../" * (len(part.parts) - 1)
    target = part.with_suffix(".html").as_posix()
    address = f"{up}ko/{target}" if language == "en" else f"{up}../{target}"
    return f'\n\n<p class="other"><a href="{address}">{WORDS[language]["other"]}</a></p>\n'


def _keep(language: str) -> None:
    """The pages that the repository has anyway, and the code that they name."""
    kept = {path for pattern in KEPT for path in home(language).glob(pattern)}
    for path in kept:
        text = held(path, language, kept)
        part = path.relative_to(home(language))
        _write(SOURCE / language / part, text if language == "en" else anchored(text))


def held(path: Path, language: str, kept: set[Path]) -> str:
    """A page whose links lead somewhere: into another language, or to a page that shows the code they name."""
    depth = len(path.relative_to(home(language)).parts) - 1
    root = "../" * (depth if language == "en" else depth + 1)

    def lead(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        file = target.partition("#")[0]
        meant = (path.parent / file).resolve()
        if not file or "://" in target or meant in kept or not meant.is_file():
            return found[0]  # where it leads nowhere, the builder says so
        if meant.is_relative_to(TEXTS / language):
            own = meant.relative_to(TEXTS / language).as_posix()
            return f"[{label}]({'../' * depth}{own})"
        if meant.is_relative_to(DOCS):
            return f"[{label}]({target.replace('.md', '.html')})"
        return f"[{label}]({root}{_shown(meant)})"

    return re.sub(r"\[([^]]*)\]\(([^)\s]*)\)", lead, path.read_text(encoding="utf-8"))


def _shown(file: Path) -> str:
    """A page that shows a file of the repository; gives its address below the root of the site."""
    name = f"source/{file.relative_to(ROOT).as_posix()}"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    else:
        fence = f"```{'python' if file.suffix == '.py' else ''}\n"
        text = f"# {file.name}\n\n{fence}{text}```\n"
    _write(SOURCE / "en" / f"{name}.md", text)
    return f"{name}.html"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
