"""What goes into a file: everything while it is small, and then what was opened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.explorer import payload
from jarilab.explorer.session import Explorer
from jarilab.inspect.capture import Tape

ROOM = 6 * 2**20
"""Bytes up to which more heads and training steps than the one asked for are put into a file."""


def whole(explorer: Explorer, line: str, site: str | None, head: int) -> dict[str, Any]:
    """The page for a file. Raises UserError for a site or a head that is not there."""
    page = explorer.look(line, live=False, site=site, head=head)
    # What the explorer remembers stays as it is.
    views = [
        {**view, "sites": [{**shown, "details": {}} for shown in view["sites"]]}
        for view in page["views"]
    ]
    room = ROOM - _size(views)
    wanted = [
        (shown["site"] != page["site"], number != head, view, shown, number)
        for view, of_view in enumerate(views)
        for shown in of_view["sites"]
        for number in range(shown["heads"])
    ]
    wanted.sort(key=lambda one: one[:3])
    for other_site, other_head, view, shown, number in wanted:
        if (other_site or other_head) and room <= 0:
            break
        detail = explorer.head(line, view, shown["site"], number)
        room -= _size(detail)
        shown["details"][str(number)] = detail
    frames = _frames(explorer, line, room)
    return {**page, "views": views} | ({} if frames is None else {"frames": frames})


def _frames(explorer: Explorer, line: str, room: int) -> list[dict[str, Any]] | None:
    """The maps at every training step that all runs keep, or None where there is one step only or no room."""
    common = set.intersection(*(set(opened.steps) for opened in explorer.opened))
    if len(common) < 2:
        return None
    frames = []
    for step in sorted(common):
        page = explorer.look(
            line, dict.fromkeys(range(len(explorer.opened)), int(step)), live=False
        )
        frames.append({"step": step, "views": page["views"]})
        room -= _size(page)
        if room < 0:
            return None
    return frames


def of_tape(
    tape: Tape, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None, title: str
) -> dict[str, Any]:
    """The page of a forward that was recorded without a run."""
    names: dict[str, Sequence[str]] = {}
    for site in tape.sites:
        call = tape.calls[site][0].call
        lengths = (sum(recorded.call.q.shape[2] for recorded in tape.calls[site]), call.k.shape[2])
        sides = tape.site(site).queries, tape.site(site).keys
        for side, length in zip(sides, lengths, strict=True):
            given = tokens.get(side) if isinstance(tokens, Mapping) else tokens
            names.setdefault(
                side, [str(place) for place in range(length)] if given is None else list(given)
            )
    view = {
        "run": title,
        "name": title,
        "task": None,
        "model": None,
        "encoding": type(tape.calls[tape.sites[0]][0].call.geometry.encoding).__name__.lower(),
        "seed": None,
        "step": 0,
        "steps": [0],
        "experiment": None,
        "curve": [],
        "metric": None,
        "input": " ".join(next(iter(names.values()))),
        "answer": None,
        "expected": None,
        "sides": {side: {"tokens": list(of_side)} for side, of_side in names.items()},
        "outputs": [],
        "sites": payload.sites_of(tape, names),
        "vocabulary": None,
        "rollout": None,
        "checks": [],
        "lens": None,
    }
    return payload.page_of([view], live=False, site=tape.sites[0])


def _size(value: Any) -> int:
    return len(json.dumps(value))
