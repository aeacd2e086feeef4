"""What a saved page shows where its script may not run: the answers, and the map of the head that it opens at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.pages.kit.blocks import unpacked
from jarilab.pages.kit.page import escape_text

CELL, MARGIN = 24, 96
LARGEST = 48
"""Rows and columns that are drawn; the rest is left out, and told."""
ABOUT = (
    "Rows look at columns; the stronger a cell, the more. / "
    "행이 열을 봅니다. 칸이 뚜렷할수록 많이 봅니다."
)


def noscript(page: Mapping[str, Any]) -> str:
    """Markup for a payload. It has no colour of its own: a cell is the ink of the page, as strong as its weight."""
    view = page["views"][page["view"]]
    (site,) = (one for one in view["sites"] if one["site"] == page["site"])
    answers = "".join(_answer(one) for one in page["views"])
    title = f"{view['name']}, {page['site']}, head {page['head']}"
    about = f"<p>{escape_text(title)}. {ABOUT}{_note(site)}</p>"

    weights_HQK = unpacked(site["weights"])
    weights_QK = weights_HQK[page["head"]][:LARGEST, :LARGEST]
    queries = _names(view, site, "queries")
    keys = _names(view, site, "keys")
    drawn = _map(weights_QK.tolist(), queries, keys, title)
    return f"{_purpose(view)}<ul>{answers}</ul>\n{about}\n{drawn}"


def _note(site: Mapping[str, Any]) -> str:
    """What is left out, in both languages."""
    if max(site["shape"]) <= LARGEST:
        return ""
    return f" The first {LARGEST} rows and columns / 처음 {LARGEST}행과 열."


def _names(view: Mapping[str, Any], site: Mapping[str, Any], axis: str) -> Sequence[str]:
    """The tokens beside a map; a cell that stands for several has no name."""
    if site["pooled"] != 1:
        return [""] * LARGEST
    return view["sides"][site[axis]]["tokens"]


def _purpose(view: Mapping[str, Any]) -> str:
    """What the model does, in both languages, where its task says so."""
    said = " / ".join(view["purpose"] or ())
    return f"<p>{escape_text(said)}</p>\n" if said.strip(" /") else ""


def _answer(view: Mapping[str, Any]) -> str:
    name, said = escape_text(view["name"]), view["input"]
    if view["answer"] is not None:
        said = f"{said} → {view['answer']}"
    return f"<li>{name}: {escape_text(said)}</li>"


def _map(
    weights: Sequence[Sequence[float]], queries: Sequence[str], keys: Sequence[str], title: str
) -> str:
    rows, columns = len(weights), len(weights[0])
    parts = []
    for row, query in zip(range(rows), queries, strict=False):
        y = MARGIN + CELL * row
        parts.append(_text(query, MARGIN - 6, y + CELL - 7, 'text-anchor="end"'))
        for column, weight in enumerate(weights[row]):
            about = f"{query} → {keys[column]}: {weight:.3f}"
            parts.append(_cell(MARGIN + CELL * column, y, weight, about))
    for column, key in enumerate(keys[:columns]):
        x, y = MARGIN + CELL * column + CELL / 2, MARGIN - 6
        parts.append(_text(key, x, y, f'transform="rotate(-60 {x} {y})"'))

    width, height = MARGIN + CELL * columns, MARGIN + CELL * rows
    shape = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = f'role="img" aria-label="{escape_text(title)}"'
    return f'<svg {shape} fill="currentColor" {label}>{"".join(parts)}</svg>'


def _cell(x: int, y: int, weight: float, about: str) -> str:
    place = f'x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}"'
    title = f"<title>{escape_text(about)}</title>"
    return f'<rect {place} fill-opacity="{weight:.3f}">{title}</rect>'


def _text(name: str, x: int | float, y: int | float, more: str) -> str:
    seen = name.replace(" ", "␣")
    short = seen if len(seen) <= 12 else f"{seen[:11]}…"
    return f'<text x="{x}" y="{y}" font-size="13" {more}>{escape_text(short)}</text>'
