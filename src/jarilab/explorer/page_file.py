"""What goes into a file: everything while it is small, and then what was opened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.explorer import payload
from jarilab.explorer.opening import opening_of
from jarilab.explorer.session import Explorer, Writer
from jarilab.export.program import program_of
from jarilab.inspect.measure.maps import names_of_sides
from jarilab.inspect.record.capture import Tape

ROOM = 3 * 2**20
"""Bytes up to which more heads and training steps than the one asked for are put into a file."""


def whole(
    explorer: Explorer,
    line: str,
    site: str | None,
    head: int | None,
    step: int | None = None,
    *,
    still: bool = False,
    program: Writer = program_of,
) -> dict[str, Any]:
    """The page for a file. step: of training, of all runs; the newest by default. still: it computes nothing by itself.
    program: what makes that of a model. Raises UserError for a site, a head or a step that is not there."""
    page = explorer.look(line, explorer.all_at(step), live=False, site=site, head=head)
    # What the explorer remembers stays as it is.
    views = []
    for of_view in page["views"]:
        sites = [{**shown, "details": {}} for shown in of_view["sites"]]
        views.append({**of_view, "sites": sites})
    if not still:
        for view, opened in zip(views, explorer.opened, strict=True):
            view["engine"] = opened.engine(line, view["step"], program)
    room = ROOM - _size(views)
    wanted = []
    for view, of_view in enumerate(views):
        for shown in of_view["sites"]:
            other_site = shown["site"] != page["site"]
            for number in range(shown["heads"]):
                other_head = number != page["head"]
                wanted.append((other_site, other_head, view, shown, number))
    wanted.sort(key=lambda one: one[:3])
    for other_site, other_head, view, shown, number in wanted:
        if (other_site or other_head) and room <= 0:
            break
        detail = explorer.head(line, view, shown["site"], number, step)
        room -= _size(detail)
        shown["details"][str(number)] = detail
    page = {**page, "views": views, "again": _again(explorer, still)}
    frames = _frames(explorer, line, room)
    if frames is not None:
        page["frames"] = frames
    return page


def _again(explorer: Explorer, still: bool) -> list[str]:
    """What a command needs to make the page again, beside the runs, the input and what is looked at."""
    words = [] if explorer.align is None else ["--align", explorer.align]
    chosen = {"--still": still, "--trust-code": explorer.trusts_code}
    return words + [flag for flag, asked in chosen.items() if asked]


def _frames(explorer: Explorer, line: str, room: int) -> list[dict[str, Any]] | None:
    """The maps at every training step that all runs keep, or None where there is one step only or no room."""
    kept = [set(opened.steps) for opened in explorer.opened]
    common = set.intersection(*kept)
    if len(common) < 2:
        return None
    frames = []
    for step in sorted(common):
        page = explorer.look(line, explorer.all_at(int(step)), live=False)
        frames.append({"step": step, "views": page["views"]})
        room -= _size(page)
        if room < 0:
            return None
    return frames


def of_tape(
    tape: Tape, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None, title: str
) -> dict[str, Any]:
    """The page of a forward that was recorded without a run."""
    view = view_of_tape(tape, tokens, title)
    return payload.page_of([view], live=False, opening=opening_of([view]))


def view_of_tape(
    tape: Tape, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None, title: str
) -> dict[str, Any]:
    """One model of such a page."""
    names = names_of_sides(tape, tokens)
    first = tape.calls[tape.sites[0]][0].call
    encoding = type(first.geometry.encoding).__name__
    one_side = next(iter(names.values()))
    return {
        "run": title,
        "name": title,
        "task": None,
        "purpose": _numbered(names),
        "model": None,
        "encoding": encoding.lower(),
        "seed": None,
        "step": 0,
        "steps": [0],
        "experiment": None,
        "curve": [],
        "metric": None,
        "input": " ".join(one_side),
        "answer": None,
        "expected": None,
        "sides": {side: {"tokens": of_side} for side, of_side in names.items()},
        "outputs": [],
        "sites": payload.sites_of(tape, names),
        "vocabulary": None,
        "rollout": None,
        "checks": [],
        "lens": None,
        "words": [],
        "edits": [],
        "opens": [],
        "says": None,
    }


def _numbered(names: Mapping[str, Sequence[str]]) -> list[str] | None:
    """What is said of sequences that the tokens do not fit, in English and in Korean."""
    others = [side for side in names if side.endswith(" places)")]
    if not others:
        return None
    listed = ", ".join(others)
    return [
        "Some attentions have more or fewer places than the tokens, as where a model pools; these are numbered: "
        f"{listed}.",
        f"풀링하는 모델처럼 자리의 수가 토큰과 다른 어텐션이 있으며, 그 자리는 번호로 나타냅니다: {listed}.",
    ]


def _size(value: Any) -> int:
    return len(json.dumps(value))
