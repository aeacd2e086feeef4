"""From what is written to what the builder reads: numbers are put in, live pages framed, links made to hold.

A number of a run stands in a page as `<!--bag.none-->2.88 %<!--/-->`, so that the page reads whole in a checkout.
Between `<!--live bag-->` and `<!--/-->` stands a still figure, in whose place the site has the live page. A state of
that page may follow its name, as in its address: `<!--live bag only=map&head=3-->`. Words between
`<!--state bag view=1-->` and `<!--/-->` become a link that changes this of the figure above.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from catalogue import DRAWN, FOLDER
from config import LESSONS
from expected import QUOTED
from places import DOCS, LANGUAGES, LIVE, ROOT, SOURCE, TEXTS

SLOT = re.compile(r"<!--([a-z0-9_.\- ]*[a-z0-9_]|(?:live|state) [^>]*)-->(.*?)<!--/-->", re.S)
WORDS = {
    "en": {"full": "Open the page in full", "other": "이 페이지를 한국어로"},
    "ko": {"full": "페이지 전체 열기", "other": "This page in English"},
}
KEPT_NUMBERS = TEXTS / "numbers.json"
KINDS = ("tutorials", "how-to", "reference", "explanation")
KEPT = ("*.md", *(f"{kind}/**/*.md" for kind in (*KINDS, "results")))
"""What the site takes of docs/ and, for its Korean side, of docs/ko/: each page stands where it stands in there."""
FENCED = re.compile(r"^(```.*?^```)$", re.M | re.S)


def slots(text: str) -> list[str]:
    """What a page asks to have put in."""
    return [name for name, _ in SLOT.findall(text)]


def lesson(language: str, name: str) -> Path:
    """Where a lesson is written."""
    return TEXTS / language / "lessons" / f"{name}.md"


def titles() -> dict[str, tuple[str, str]]:
    """The heading of each lesson in both languages."""
    return {name: (_title("en", name), _title("ko", name)) for name in LESSONS}


def _title(language: str, name: str) -> str:
    path = lesson(language, name)
    return path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ").strip()


def address(name: str, state: str, language: str, depth: int, numbers: Mapping[str, object]) -> str:
    """The address of a live page in a state, from a page `depth` folders below the root of its language.

    A value of the state may be the name of a number that lessons quote. `at` and `off` open and switch off the head
    that such a number names: "encoder.0, head 3".
    """
    parts = {"lang": language}
    for key, value in parse_qsl(state, strict_parsing=bool(state)):
        value = str(numbers.get(value, value))
        if key not in ("at", "off"):
            parts[key] = value
            continue
        site, head = value.split(", head ")
        parts |= {"site": site, "head": head}
        if key == "off":
            edit = {"kind": "head", "site": site, "head": int(head)}
            parts["edited"] = json.dumps([[int(parts.get("view", 0)), [edit]]])
    up = "../" * (depth + (language == "ko"))
    return html.escape(f"{up}live/{name}.html#{urlencode(parts)}")


def frame(name: str, state: str, language: str, depth: int, numbers: Mapping[str, object]) -> str:
    """A live page inside another, or one figure of it; the rest as in `address`."""
    figure = address(name, state, language, depth, numbers)
    page = address(name, "", language, depth, numbers)
    kind = "live one" if "only=" in state else "live"
    return (
        f'<div class="{kind}"><iframe src="{figure}" name="{name}" title="jari: {name}" loading="lazy"></iframe>'
        f'<p><a href="{page}" target="_blank">{WORDS[language]["full"]}</a></p></div>'
    )


def filled(text: str, language: str, depth: int, numbers: Mapping[str, object]) -> str:
    """A page with everything put in. Raises KeyError for a number that nothing gives, and a state without a figure."""
    opened: dict[str, str] = {}

    def put(found: re.Match[str]) -> str:
        kind, name, state = [*found[1].split(" ", 2), "", ""][:3]
        if kind == "live":
            opened[name] = state
            return frame(name, state, language, depth, numbers)
        if kind == "state":
            state = "&".join(filter(None, (opened[name], state)))
            target = address(name, state, language, depth, numbers)
            return f'<a class="state" href="{target}" target="{name}">{found[2]}</a>'
        return QUOTED[kind].shown(numbers[kind])

    return SLOT.sub(put, text)


def written(text: str, numbers: Mapping[str, object]) -> str:
    """A page as it is kept in the repository. Its still figures stay. Raises KeyError as `filled` does."""

    def put(found: re.Match[str]) -> str:
        name, shown = found.groups()
        if not name.startswith(("live ", "state ")):
            shown = QUOTED[name].shown(numbers[name])
        return f"<!--{name}-->{shown}<!--/-->"

    return SLOT.sub(put, text)


def keep(numbers: Mapping[str, object]) -> None:
    """Write numbers into the pages of the repository, and into the file that these are checked with."""
    KEPT_NUMBERS.write_text(
        json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    for path in sorted(TEXTS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        path.write_text(written(text, numbers), encoding="utf-8")


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
            text = led(path.read_text(encoding="utf-8"), path, language)
            text = filled(text, language, len(part.parts) - 1, numbers)
            for name, table in generated.items():
                text = text.replace(f"<!-- {name} -->", table)
            _write(folder / part, anchored(text, language) + _other(part, language))
        shutil.copy(TEXTS / "site.css", folder / "site.css")
        figures = (
            *DOCS.glob("*.png"),
            *(DOCS / "results").glob("*.svg"),
            *(TEXTS / "figures").glob("*"),
        )
        for path in figures:
            copy = folder / _figure(path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        shutil.copytree(DRAWN / language, folder / FOLDER / "drawn")
        _keep(language)
    shutil.copytree(LIVE, SOURCE / "en" / "live")


def home(language: str) -> Path:
    """Where the repository has its own pages in a language."""
    return DOCS if language == "en" else DOCS / language


def anchored(text: str, language: str) -> str:
    """A page whose headings are named as GitHub names them, since the builder would drop Korean letters."""
    if language == "en":
        return text

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
    for path in _kept(language):
        text = led(path.read_text(encoding="utf-8"), path, language)
        _write(SOURCE / language / path.relative_to(home(language)), anchored(text, language))


@cache
def _kept(language: str) -> set[Path]:
    return {path for pattern in KEPT for path in home(language).glob(pattern)}


def _place(file: Path) -> tuple[str, Path] | None:
    """The language of a page of the repository and its place in there, or None where the site does not have it."""
    for language in LANGUAGES:
        if file.is_relative_to(TEXTS / language):
            return language, file.relative_to(TEXTS / language)
        if file in _kept(language):
            return language, file.relative_to(home(language))
    return None


def _figure(file: Path) -> Path:
    """The place of a figure in each language."""
    return file.relative_to(TEXTS if file.is_relative_to(TEXTS) else DOCS)


def led(text: str, path: Path, language: str) -> str:
    """A page of the repository whose links lead to the same on the site, or to a page that shows the code they name."""
    root = TEXTS / language if path.is_relative_to(TEXTS) else home(language)
    up = "../" * (len(path.relative_to(root).parts) - 1)
    base = up if language == "en" else f"{up}../"

    def lead(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        file, mark, anchor = target.partition("#")
        meant = (path.parent / file).resolve()
        if not file or "://" in target or not meant.is_file():
            return found[0]  # where it leads nowhere, the builder says so
        place = _place(meant)
        if meant.suffix in (".png", ".svg"):
            address = f"{up}{_figure(meant).as_posix()}"
        elif place is None:
            return f"[{label}]({base}{_shown(meant)})"
        elif place[0] == language:
            address = f"{up}{place[1].as_posix()}"
        else:
            other = "ko/" if place[0] == "ko" else ""
            address = f"{base}{other}{place[1].with_suffix('.html').as_posix()}"
        return f"[{label}]({address}{mark}{anchor})"

    return re.sub(r"\[([^]]*)\]\(([^)\s]*)\)", lead, text)


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
