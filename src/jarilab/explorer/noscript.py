"""A saved page without scripts: the answers, and the map of the head that it opens at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jarilab.explorer.preview import opened
from jarilab.pages.kit.page import escape_text

ABOUT = (
    "Rows are queries, columns are keys; the darker a cell, the more often its weight is the even share of its row. / "
    "행은 쿼리, 열은 키입니다. 칸이 짙을수록 가중치가 그 행의 균등 몫보다 큽니다."
)
MAX_TOKENS = 48
"""Tokens of a row or a column that are listed."""


def sentence(page: Mapping[str, Any]) -> str:
    """What a page shows, in one sentence."""
    view = page["views"][page["view"]]
    answers = [_line(each) for each in page["views"]]
    purpose = (view["purpose"] or [""])[0]
    return f"{purpose} {'; '.join(answers)}. Shown: {page['site']}, head {page['head']}.".strip()


def noscript(page: Mapping[str, Any], image: str) -> str:
    """Markup of a payload. image: the data URL of its map."""
    view, (site, _, _) = page["views"][page["view"]], opened(page)
    lines = [f"{view['name']}, {page['site']}, head {page['head']}. {ABOUT}"]
    purpose = " / ".join(view["purpose"] or ()).strip(" /")
    lines += [purpose] if purpose else []
    for axis, name in (("queries", "Rows / 행"), ("keys", "Columns / 열")):
        tokens = view["sides"][site[axis]]["tokens"]
        listed = " · ".join(tokens[:MAX_TOKENS]).replace(" ", "␣").replace("␣·␣", " · ")
        lines.append(f"{name}: {listed}{' …' if len(tokens) > MAX_TOKENS else ''}")
    answers = "".join(f"<li>{escape_text(_line(each))}</li>" for each in page["views"])
    about = "\n".join(f"<p>{escape_text(line)}</p>" for line in lines)
    return f'<ul>{answers}</ul>\n<img src="{image}" alt="{escape_text(sentence(page))}">\n{about}'


def _line(view: Mapping[str, Any]) -> str:
    """The model, its input and its answer."""
    answer = "" if view["answer"] is None else f" → {view['answer']}"
    return f"{view['name']}: {view['input']}{answer}"
