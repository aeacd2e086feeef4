"""What a page opens at: the head that says most, and the cell that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jarilab.core.errors import UserError, unknown
from jarilab.inspect.measure.telling import TELLING
from jarilab.inspect.record.capture import Tape
from jarilab.pages.kit.blocks import unpacked

View = Mapping[str, Any]


def opening_of(
    views: Sequence[View], site: str | None = None, head: int | None = None
) -> dict[str, Any]:
    """The view, site, head, query and key that a page opens at.

    The head without which the loss of the answer rises most, of the models whose answer is right, if any is; where that
    was not measured, the head that is farthest from chance. site, head: opened instead, where they are given.
    """
    chosen = list(_heads(views, site, head))
    of_right = [one for one in chosen if _is_right(views[one[0]])]
    number, shown, best = max(of_right or chosen, key=lambda one: _telling(views[one[0]], *one[1:]))
    before = _before_image(views[number], shown)
    query, key = _cell(shown, best, before)
    return {"view": number, "site": shown["site"], "head": best, "query": query, "key": key}


def _heads(
    views: Sequence[View], site: str | None, head: int | None
) -> Iterator[tuple[int, Mapping[str, Any], int]]:
    """Every head that may be opened: the number of its view, its site, its own number."""
    for number, view in enumerate(views):
        for shown in view["sites"]:
            if site not in (None, shown["site"]):
                continue
            for one in range(shown["heads"]):
                if head in (None, one):
                    yield number, shown, one


def _is_right(view: View) -> bool:
    expected = view["expected"]
    return expected is not None and view["answer"] == expected


def _telling(view: View, shown: Mapping[str, Any], head: int) -> tuple[float, float]:
    """How much there is to say of a head: its effect on the answer, and its distance from chance."""
    effect = _value(shown["measures"], "ablation", head)
    return effect, max(_above_chance(view, shown, head), default=0.0)


def _above_chance(view: View, shown: Mapping[str, Any], head: int) -> Iterator[float]:
    lens = view["lens"] or {}
    shares = lens.get("share", {}).get(shown["site"])
    scores = [shown["measures"].get(name) for name in TELLING]
    for scored in (shares, *scores):
        if scored is None:
            continue
        value, chance = scored["value"][head], scored["chance"][head]
        if value is not None and chance is not None:
            yield value - chance


def _value(measures: Mapping[str, Any], name: str, head: int) -> float:
    values = measures.get(name, {}).get("value")
    found = None if values is None else values[head]
    return float("-inf") if found is None else found


def _before_image(view: View, shown: Mapping[str, Any]) -> int:
    """How many queries come before the image that the others are places of: a caption, registers. A class token is
    what an answer is read from, and counts as the image's."""
    image = view["sides"][shown["queries"]].get("picture")
    if image is None or image["pool"] == "class":
        return 0
    return image["first"] // shown["pooled"]


def _cell(shown: Mapping[str, Any], head: int, before: int) -> tuple[int, int]:
    """Query and key of the weight that is most times what equal weights over all that the query may look at would be.
    before: as many queries are left out."""
    times_QK = unpacked(shown["weights"])[head]
    if shown["hidden"] is not None:
        allowed_QK = 1 - unpacked(shown["hidden"])
        times_QK = times_QK * allowed_QK.sum(1, keepdims=True)
    query, key = divmod(int(times_QK[before:].argmax()), times_QK.shape[1])
    return before + query, key


def check_head(tape: Tape, site: str | None, head: int | None) -> None:
    """Raises UserError for a site or a head to open at that is not there."""
    if site is not None and site not in tape.sites:
        raise unknown("site", site, tape.sites)
    there = tape.sites if site is None else [site]
    heads = max(tape.calls[name][0].call.q.shape[1] for name in there)
    if head is not None and not 0 <= head < heads:
        where = there[0] if site is not None else "this model"
        raise UserError(f"{where} has the heads 0 to {heads - 1}, got {head}")
