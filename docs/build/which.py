"""The table of properties of encodings: what their classes claim, and what one of each really holds."""

from __future__ import annotations

from typing import Any

import tables
from jarilab.encodings.base import Encoding, Site, hooks_of, registry

WIDTH, HEADS = 64, 8
WORDS: dict[str, dict[str, str]] = {
    "en": {
        "head": "encoding|axes|acts on|depends on|positions|distances|parameters|layers|cross-attention",
        "absolute": "position",
        "relative": "distance",
        "none": "nothing",
        "endless": "any",
        "all": "any",
        "own": "own",
        "shared": "shared",
        "yes": "yes",
        "no": "no",
        "embed": "input",
        "inject": "queries, keys",
        "rotate": "queries, keys (rotated)",
        "bias": "scores",
        "terms": "scores (by content)",
        "values": "values",
    },
    "ko": {
        "head": "인코딩|축|작용하는 곳|따르는 것|위치|거리|파라미터|층|크로스 어텐션",
        "absolute": "위치",
        "relative": "거리",
        "none": "없음",
        "endless": "모두",
        "all": "모두",
        "own": "따로",
        "shared": "함께",
        "yes": "가능",
        "no": "불가",
        "embed": "입력",
        "inject": "쿼리, 키",
        "rotate": "쿼리, 키(회전)",
        "bias": "점수",
        "terms": "점수(내용에 따라)",
        "values": "값",
    },
}


def properties(language: str) -> str:
    """A row for each encoding."""
    words = WORDS[language]
    return tables.table(words["head"].split("|"), [_row(name, words) for name in registry.names()])


def _row(name: str, words: dict[str, str]) -> list[str]:
    spec = registry.spec(name)
    cls: type[Encoding] = spec.target
    one: Any = spec.build(Site(WIDTH, HEADS, WIDTH // HEADS, WIDTH // HEADS))
    hooks = sorted(hooks_of(cls))
    counts = ("relative" if cls.shift_invariant else "absolute") if hooks else "none"
    size = sum(parameter.numel() for parameter in one.parameters())
    return [
        f"[`{name}`](encodings/{name}.md)",
        ", ".join(map(str, cls.axes)),
        ", ".join(words[hook] for hook in hooks) or words["none"],
        words[counts],
        str(one.max_positions or words["endless"]),
        str(one.max_distance or words["all"]),
        f"{size:,}",
        words["shared" if cls.shared else "own"],
        words["yes" if cls.cross else "no"],
    ]
