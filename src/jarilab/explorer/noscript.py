"""A saved page without scripts: the answers, and the map of the head that it opens at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.pages.kit.data_blocks import unpacked
from jarilab.pages.kit.page import escape_text

CELL, MARGIN = 24, 96
MAX_CELLS = 48
"""Rows and columns that are drawn; a note says if there are more."""
ABOUT = (
    "Rows are queries, columns are keys; the stronger a cell, the larger its weight. / "
    "행은 쿼리, 열은 키입니다. 칸이 뚜렷할수록 가중치가 큽니다."
)


def sentence(page: Mapping[str, Any]) -> str:
    """What a page shows, in one sentence."""
    view = page["views"][page["view"]]
    answers = [_line(each) for each in page["views"]]
    purpose = (view["purpose"] or [""])[0]
    return f"{purpose} {'; '.join(answers)}. Shown: {page['site']}, head {page['head']}.".strip()


def noscript(page: Mapping[str, Any]) -> str:
    """Markup of a payload. A cell has the text colour, with its weight as opacity."""
    view = page["views"][page["view"]]
    (site,) = (shown for shown in view["sites"] if shown["site"] == page["site"])
    answers = "".join(map(_answer, page["views"]))
    title = f"{view['name']}, {page['site']}, head {page['head']}"
    about = f"<p>{escape_text(title)}. {ABOUT}{_note(site)}</p>"

    weights_HQK = unpacked(site["weights"])
    weights_QK = weights_HQK[page["head"]][:MAX_CELLS, :MAX_CELLS]
    queries = _names(view, site, "queries")
    keys = _names(view, site, "keys")
    drawn = _map(weights_QK.tolist(), queries, keys, title)
    purpose = " / ".join(view["purpose"] or ())
    about_task = f"<p>{escape_text(purpose)}</p>\n" if purpose.strip(" /") else ""
    return f"{about_task}<ul>{answers}</ul>\n{about}\n{drawn}"


def _note(site: Mapping[str, Any]) -> str:
    """The note on cells that are left out, in both languages."""
    if max(site["shape"]) <= MAX_CELLS:
        return ""
    return f" The first {MAX_CELLS} rows and columns / 처음 {MAX_CELLS}행과 열."


def _names(view: Mapping[str, Any], site: Mapping[str, Any], axis: str) -> Sequence[str]:
    """The tokens beside a map; pooled cells have no names."""
    if site["pooled"] != 1:
        return [""] * MAX_CELLS
    return view["sides"][site[axis]]["tokens"]


def _answer(view: Mapping[str, Any]) -> str:
    return f"<li>{escape_text(_line(view))}</li>"


def _line(view: Mapping[str, Any]) -> str:
    """The model, its input and its answer."""
    answer = "" if view["answer"] is None else f" → {view['answer']}"
    return f"{view['name']}: {view['input']}{answer}"


def _map(
    weights: Sequence[Sequence[float]], queries: Sequence[str], keys: Sequence[str], title: str
) -> str:
    columns = len(weights[0])
    parts = []
    # Weights and their columns are cut to `MAX_CELLS`, names are not.
    for row, (query, weights_K) in enumerate(zip(queries, weights, strict=False)):
        y = MARGIN + CELL * row
        parts.append(_text(query, MARGIN - 6, y + CELL - 7, 'text-anchor="end"'))
        for column, weight in enumerate(weights_K):
            x = MARGIN + CELL * column
            about = f"{query} → {keys[column]}: {weight:.3f}"
            parts.append(_cell(x, y, weight, about))
    for column, key in enumerate(keys[:columns]):
        x = MARGIN + CELL * (column + 0.5)
        y = MARGIN - 6
        parts.append(_text(key, x, y, f'transform="rotate(-60 {x} {y})"'))

    width = MARGIN + CELL * columns
    height = MARGIN + CELL * len(weights)
    shape = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = f'role="img" aria-label="{escape_text(title)}"'
    return f'<svg {shape} fill="currentColor" {label}>{"".join(parts)}</svg>'


def _cell(x: int, y: int, weight: float, about: str) -> str:
    place = f'x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}"'
    title = f"<title>{escape_text(about)}</title>"
    return f'<rect {place} fill-opacity="{weight:.3f}">{title}</rect>'


def _text(name: str, x: int | float, y: int | float, more: str) -> str:
    visible = name.replace(" ", "␣")
    short = visible if len(visible) <= 12 else f"{visible[:11]}…"
    return f'<text x="{x}" y="{y}" font-size="12" {more}>{escape_text(short)}</text>'
