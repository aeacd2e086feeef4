"""What the builder is told: the names of pages, their order, and nothing that is fetched from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jarilab.encodings.base import registry
from places import DOCS

LESSONS = (
    *("embedding", "attention", "query-key-value", "sqrt", "masks", "heads"),
    *("bag", "sinusoids", "where", "rotary", "beyond", "language"),
    *("block", "norms", "cross", "training", "writing", "seq2seq", "images"),
    *("causes", "break", "choose"),
)
"""In the order in which they are read."""
Entry = tuple[str, str, "str | list[Entry]"]
"""The name in English, in Korean, and a page, or the entries below. A page that starts with / is English alone."""

GENERATED: list[Entry] = [
    ("Python", "파이썬", "/reference/python.md"),
    ("Commands", "명령", "/reference/commands.md"),
    ("Tasks and models", "과제와 모델", "/reference/tasks.md"),
]
"""Pages that only the site has."""


def listed(kind: str) -> list[Entry]:
    """The pages of a folder of docs/, in the order, by the names and below the headings of contents.md."""
    groups: list[Entry] = []
    for (english, pages), (korean, names) in zip(
        _groups(DOCS, kind), _groups(DOCS / "ko", kind), strict=True
    ):
        both = {page for page in pages if (DOCS / "ko" / page).exists()}
        entries: list[Entry] = [
            (name, names[page], page if page in both else f"/{page}")
            for page, name in pages.items()
        ]
        groups.append((english, korean, entries))
    _, _, only = groups[0]
    return groups if len(groups) > 1 or isinstance(only, str) else only


def _groups(home: Path, kind: str) -> list[tuple[str, dict[str, str]]]:
    """The headings of contents.md that have pages of a kind, each with its pages and their names."""
    parts = re.split(r"^##+ (.*)\n", (home / "contents.md").read_text(encoding="utf-8"), flags=re.M)
    links = rf"^\| \[([^]]+)\]\((?:\.\./)?({kind}/[\w-]+\.md)\)"
    found = [
        (heading, {page: name for name, page in re.findall(links, body, re.M)})
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    ]
    return [(heading, pages) for heading, pages in found if pages]


def navigation(titles: dict[str, tuple[str, str]]) -> list[Entry]:
    """The whole of it. titles: of each lesson, in both languages."""
    lessons: list[Entry] = [
        ("All lessons", "모든 수업", "lessons/index.md"),
        *((*titles[name], f"lessons/{name}.md") for name in LESSONS),
        ("For teachers", "가르치는 사람에게", "lessons/teachers.md"),
    ]
    encodings: list[Entry] = [
        ("All encodings", "모든 인코딩", "encodings/index.md"),
        *((name, name, f"encodings/{name}.md") for name in registry.names()),
    ]
    return [
        ("Home", "처음", "index.md"),
        ("Five minutes", "5분", "five-minutes.md"),
        ("Lessons", "수업", lessons),
        ("Which encoding?", "어떤 인코딩?", "which-encoding.md"),
        ("All pages", "모든 글", "contents.md"),
        ("Tutorials", "배우기", listed("tutorials")),
        ("How-to", "하는 법", listed("how-to")),
        ("Reference", "참고", [*listed("reference"), *GENERATED]),
        ("Explanation", "설명", listed("explanation")),
        ("Results", "결과", listed("results")),
        ("Gallery", "갤러리", "gallery.md"),
        ("Figures, by command", "명령으로 만드는 그림과 실험", "figures.md"),
        ("Glossary", "용어", "glossary.md"),
        # Last, since it is long: who goes by keyboard comes to all else before it.
        ("Encodings", "인코딩", encodings),
    ]


def _listed(entries: list[Entry], language: str) -> list[dict[str, Any]]:
    return [
        {(korean if language == "ko" else english): _target(target, language)}
        for english, korean, target in entries
    ]


def _target(target: str | list[Entry], language: str) -> Any:
    if not isinstance(target, str):
        return _listed(target, language)
    if not target.startswith("/"):
        return target
    english = target.removeprefix("/")
    return english if language == "en" else f"../{english.removesuffix('.md')}.html"


def write(root: Path, language: str, titles: dict[str, tuple[str, str]]) -> Path:
    """The builder's file for a language, below which it reads and writes; gives its path."""
    words = {
        "en": ("jari", "Train attention models, choose how they know order, and look inside"),
        "ko": ("jari 자리", "어텐션 모델을 학습하고, 순서를 아는 방법을 고르고, 들여다본다"),
    }[language]
    features = ["navigation.sections", "navigation.footer", "navigation.top", "content.code.copy"]
    homes = {"en": ("./index.html", "./ko/index.html"), "ko": ("../index.html", "./index.html")}[
        language
    ]
    palette = [
        {"media": "(prefers-color-scheme: light)", "scheme": "default"},
        {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
    ]
    project = {
        "site_name": words[0],
        "site_description": words[1],
        "docs_dir": f"source/{language}",
        "site_dir": f"built/{language}",
        "use_directory_urls": False,
        "extra_css": ["site.css"],
        "nav": _listed(navigation(titles), language),
        "theme": {"language": language, "font": False, "features": features, "palette": palette},
        "extra": {
            "generator": False,
            "alternate": [
                {"name": "English", "link": homes[0], "lang": "en"},
                {"name": "한국어", "link": homes[1], "lang": "ko"},
            ],
        },
    }
    path = root / f"{language}.yml"
    path.write_text(json.dumps(project, ensure_ascii=False, indent=1), encoding="utf-8")
    return path
