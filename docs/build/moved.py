"""Addresses that pages had before: each leads on to the page, or names the pages, that have its text now."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from places import DOCS, LANGUAGES

MOVED = {
    "guide/training": (
        "tutorials/training how-to/short-training how-to/layers how-to/reproduce how-to/fine-tune how-to/gpu "
        "how-to/tensorboard reference/position-policies"
    ),
    "guide/text": "how-to/text how-to/translation how-to/classify how-to/generated-tasks reference/text-data",
    "guide/images": "how-to/images how-to/detection how-to/captions reference/image-data",
    "guide/comparing": (
        "how-to/compare how-to/other-lengths how-to/cluster explanation/comparing reference/studies"
    ),
    "guide/walking": "tutorials/walking",
    "guide/python": "how-to/python how-to/your-own",
    "guide/serving": "how-to/serve reference/serving",
    "guide/exporting": "how-to/export reference/exporting",
    "guide/heads": "how-to/study reference/heads",
    "guide/causes": "how-to/causes how-to/patch how-to/edit how-to/head-importance reference/causes",
    "guide/relevance": "how-to/relevance reference/relevance",
    "guide/figures": "how-to/figures reference/figures",
    "guide/own-attention": "how-to/own-attention",
    "guide/watching": "how-to/watching explanation/tested",
    "guide/speech": "how-to/speech explanation/tested",
    "guide/vision-language": "how-to/vision-language explanation/tested",
    "guide/diffusion": "how-to/diffusion explanation/tested",
    "guide/windows": "how-to/windows explanation/tested",
    "looking-inside": "how-to/looking-inside how-to/save-page",
    "recording": (
        "how-to/recording how-to/edit how-to/huggingface-folder how-to/swap how-to/head-importance how-to/model-laws "
        "reference/tape reference/huggingface explanation/recording"
    ),
    "explorer": (
        "reference/explorer reference/checks reference/measures reference/saved-pages explanation/other-tools"
    ),
    "encodings": (
        "how-to/draw-encodings how-to/check-encoding reference/encoding-specs reference/laws "
        "explanation/left-out"
    ),
    "runs": "reference/runs how-to/verify",
    "how-to/index": "contents",
    "how-to/messages": "reference/messages",
    "design": "explanation/design",
    **{
        f"decisions/{path.stem}": f"explanation/decisions/{path.stem}"
        for path in (DOCS / "explanation" / "decisions").glob("*.md")
    },
}
"""Pages without their ending, in both languages; those of one language alone are left out in the other."""
WORDS = {"en": "This page is now:", "ko": "이 페이지는 이제 여기에 있습니다:"}


def write(site: Path) -> None:
    """A page at each address of before, which opens the new one by itself if there is only one."""
    for language in LANGUAGES:
        home = site if language == "en" else site / language
        for old, new in MOVED.items():
            targets = new.split()
            if all((home / f"{target}.html").exists() for target in targets):
                path = home / f"{old}.html"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_page(old, targets, language), encoding="utf-8")


def _page(old: str, targets: list[str], language: str) -> str:
    links = {
        os.path.relpath(f"{target}.html", Path(old).parent): _title(target, language)
        for target in targets
    }
    refresh = "".join(
        f'<meta http-equiv="refresh" content="0; url={address}">' for address in links
    )
    listed = "".join(
        f'<li><a href="{address}">{title}</a></li>' for address, title in links.items()
    )
    return (
        f'<!doctype html><html lang="{language}"><head><meta charset="utf-8"><title>jari</title>'
        f"{refresh if len(links) == 1 else ''}</head><body><p>{WORDS[language]}</p><ul>{listed}</ul></body></html>\n"
    )


def _title(page: str, language: str) -> str:
    home = DOCS if language == "en" else DOCS / language
    first = (home / f"{page}.md").read_text(encoding="utf-8").split("\n", 1)[0]
    return escape(first.removeprefix("# "))
