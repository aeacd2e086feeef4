"""Addresses that pages had before: each leads on to the page, or names the pages, that have its text now."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from places import LANGUAGES

_TO = {
    "tutorials": ("training", "walking"),
    "how-to": (
        *(
            "text",
            "images",
            "python",
            "causes",
            "relevance",
            "figures",
            "own-attention",
            "watching",
        ),
    ),
    "reference": ("serving",),
}
_DECISIONS = Path(__file__).parent.parent / "explanation" / "decisions"
MOVED: dict[str, tuple[str, ...]] = {
    **{f"guide/{name}": (f"{kind}/{name}",) for kind, names in _TO.items() for name in names},
    **{
        f"decisions/{path.stem}": (f"explanation/decisions/{path.stem}",)
        for path in _DECISIONS.glob("*.md")
    },
    "looking-inside": ("how-to/looking-inside", "how-to/save-page"),
    "recording": (
        *(
            "how-to/recording",
            "how-to/edit",
            "how-to/huggingface-folder",
            "how-to/swap",
            "how-to/head-importance",
        ),
        *("how-to/model-laws", "reference/tape", "explanation/recording"),
    ),
    "how-to/index": ("contents",),
    "how-to/messages": ("reference/messages",),
    "encodings": (
        *(
            "how-to/draw-encodings",
            "how-to/check-encoding",
            "reference/encoding-specs",
            "explanation/left-out",
        ),
    ),
    "runs": ("reference/runs", "how-to/verify"),
    "guide/comparing": (
        *(
            "how-to/compare",
            "how-to/other-lengths",
            "how-to/cluster",
            "explanation/comparing",
            "reference/studies",
        ),
    ),
    **{
        f"guide/{name}": (f"how-to/{name}", "explanation/tested")
        for name in ("speech", "vision-language", "diffusion", "windows", "watching")
    },
    "guide/python": ("how-to/python", "how-to/your-own"),
    "guide/heads": ("how-to/study", "reference/heads"),
    "guide/relevance": ("how-to/relevance", "reference/relevance"),
    "guide/figures": ("how-to/figures", "reference/figures"),
    "guide/exporting": ("how-to/export", "reference/exporting"),
    "explorer": (
        *("reference/explorer", "reference/checks", "reference/measures", "reference/saved-pages"),
        "explanation/other-tools",
    ),
    "design": ("explanation/design",),
}
"""Pages without their ending, in both languages; those of one language alone are left out in the other."""
WORDS = {"en": "This page is now:", "ko": "이 페이지는 이제 여기에 있습니다:"}


def write(site: Path) -> None:
    """A page at each address of before, which opens the new one by itself if there is only one."""
    for language in LANGUAGES:
        home = site if language == "en" else site / language
        for old, targets in MOVED.items():
            if all((home / f"{target}.html").exists() for target in targets):
                path = home / f"{old}.html"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_page(old, targets, language), encoding="utf-8")


def _page(old: str, targets: tuple[str, ...], language: str) -> str:
    addresses = [os.path.relpath(f"{target}.html", Path(old).parent) for target in targets]
    refresh = (
        f'<meta http-equiv="refresh" content="0; url={addresses[0]}">'
        if len(addresses) == 1
        else ""
    )
    links = "".join(
        f'<li><a href="{address}">{escape(Path(address).stem)}</a></li>' for address in addresses
    )
    return (
        f'<!doctype html><html lang="{language}"><head><meta charset="utf-8"><title>jari</title>{refresh}</head>'
        f"<body><p>{WORDS[language]}</p><ul>{links}</ul></body></html>\n"
    )
