"""The head and the cell at which a page opens: the head that matters most, and its most distinctive cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jarilab.core.errors import UserError, unknown
from jarilab.inspect.cause.head_effects import SMALLEST
from jarilab.inspect.measure.heads import SALIENT_MEASURES
from jarilab.inspect.record.calls import check_has_sites
from jarilab.inspect.record.capture import Tape
from jarilab.pages.kit.data_blocks import unpacked

View = Mapping[str, Any]


def initial_view(
    views: Sequence[View], site: str | None = None, head: int | None = None
) -> dict[str, Any]:
    """The view, site, head, query and key at which a page opens.

    It is the head with the largest effect on the answer of those above random changes, in a model whose answer is right
    if there is one. If that was not measured, it is the head whose map is farthest above chance. site, head: restrict
    the choice.
    """
    heads = list(_heads(views, site, head))
    right = [view["expected"] is not None and view["answer"] == view["expected"] for view in views]
    heads_of_right = [chosen for chosen in heads if right[chosen[0]]]
    number, shown, best = max(
        heads_of_right or heads, key=lambda chosen: _salience(views[chosen[0]], *chosen[1:])
    )
    before = _queries_before_image(views[number], shown)
    query, key = _cell(shown, best, before)
    return {"view": number, "site": shown["site"], "head": best, "query": query, "key": key}


def _heads(
    views: Sequence[View], site: str | None, head: int | None
) -> Iterator[tuple[int, Mapping[str, Any], int]]:
    """Every head that may be chosen: the number of its view, its site, its number."""
    for view_number, view in enumerate(views):
        for shown in view["sites"]:
            if site not in (None, shown["site"]):
                continue
            for head_number in range(shown["heads"]):
                if head in (None, head_number):
                    yield view_number, shown, head_number


def _salience(view: View, shown: Mapping[str, Any], head: int) -> tuple[bool, float, float]:
    """How much a head matters: its effect on the answer, if above chance; its effect; its distance from chance."""
    effects = (view.get("effects") or {}).get("sites", {}).get(shown["site"], {})
    size, stands = float("-inf"), False
    if head < len(effects.get("effect", ())):
        size = abs(effects["effect"][head])
        stands = size >= SMALLEST and size > effects["largest"][head]
    return stands, size, max(_above_chance(view, shown, head), default=0.0)


def _above_chance(view: View, shown: Mapping[str, Any], head: int) -> Iterator[float]:
    lens = view["lens"] or {}
    shares = lens.get("share", {}).get(shown["site"])
    measures = [shown["measures"].get(name) for name in SALIENT_MEASURES]
    for measure in (shares, *measures):
        if measure is None:
            continue
        value, chance = measure["value"][head], measure["chance"][head]
        if value is not None and chance is not None:
            yield value - chance


def _queries_before_image(view: View, shown: Mapping[str, Any]) -> int:
    """How many queries come before those that matter.

    These are the patches of an image, after a caption or registers; or the text after the image of a language model.
    """
    side = view["sides"][shown["queries"]]
    image = side.get("picture")
    # The answer is read from a class token, so it counts as the image's.
    if image is None or image["pool"] == "class":
        return 0
    first: int = image["first"]
    if view.get("with_image"):
        end = first + image["rows"] * image["columns"]
        first = end if end < len(side["tokens"]) else first
    return first // shown["pooled"]


def _cell(shown: Mapping[str, Any], head: int, before: int) -> tuple[int, int]:
    """Query and key of the largest weight, relative to equal weights over the allowed keys.

    before: queries to leave out.
    """
    times_QK = unpacked(shown["weights"])[head]
    if shown["hidden"] is not None:
        allowed_QK = 1 - unpacked(shown["hidden"])
        times_QK = times_QK * allowed_QK.sum(1, keepdims=True)
    query, key = divmod(int(times_QK[before:].argmax()), times_QK.shape[1])
    return before + query, key


def check_head(tapes: Sequence[Tape], site: str | None, head: int | None) -> None:
    """Raises UserError for a site or head to open at that no model has."""
    heads_by_site: dict[str, int] = {}
    for tape in tapes:
        check_has_sites(tape.sites)
        for name in tape.sites:
            heads_of_site = tape.calls[name][0].call.q.shape[1]
            heads_by_site[name] = max(heads_of_site, heads_by_site.get(name, 0))
    if site is not None and site not in heads_by_site:
        raise unknown("site", site, heads_by_site)
    heads = max(heads_by_site.values()) if site is None else heads_by_site[site]
    if head is not None and not 0 <= head < heads:
        owner = "this model" if site is None else site
        raise UserError(f"{owner} has the heads 0 to {heads - 1}, got {head}")
