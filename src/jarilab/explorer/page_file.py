"""The payload of a saved page: all heads and training steps if they are small, else the head at which it opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jarilab.core.private_paths import relative_to_here
from jarilab.data.images.image_files import IMAGE_END, INLINE_IMAGE
from jarilab.explorer.session import Explorer
from jarilab.explorer.subject import Writer
from jarilab.pages.program.program import program_of

POOLED = ("its maps are too large for a page", "맵이 페이지에 담기에는 너무 큽니다")
"""Why a page has no model, in English and Korean."""
MAX_EXTRAS = 3 * 2**20
"""Bytes of views, heads and training steps beyond which only the open head is added."""


def saved_page(
    explorer: Explorer,
    line: str,
    site: str | None = None,
    head: int | None = None,
    steps: Mapping[int, int] | None = None,
    *,
    still: bool = False,
    program: Writer = program_of,
) -> dict[str, Any]:
    """The payload of a page that is saved as a file.

    steps: training steps by the number of the view; the newest by default. still: the page holds no models. program:
    exports a model. Raises UserError for a site, head or step that does not exist.
    """
    page = explorer.look(line, steps, live=False, site=site, head=head)
    # The explorer caches its views, so they are copied.
    views = []
    for view in page["views"]:
        sites = [{**shown, "details": {}} for shown in view["sites"]]
        views.append({**_without_paths(view), "sites": sites})
    if not still:
        for view, subject in zip(views, explorer.subjects, strict=True):
            is_pooled = any(site["pooled"] > 1 for site in view["sites"])
            is_small = not (view["edits"] and is_pooled)
            engine = subject.engine(line, view["step"], program) if is_small else {"why": POOLED}
            if engine is not None:
                view["engine"] = engine
    flags = [relative_to_here(flag) for flag in explorer.flags]
    page = {**page, "views": views, "again": [*(["--still"] if still else []), *flags]}
    budget = _add_details(explorer, line, page, MAX_EXTRAS - _size(views))
    frames = _frames(explorer, line, budget)
    if frames is not None:
        page["frames"] = frames
    return page


def _without_paths(view: dict[str, Any]) -> dict[str, Any]:
    """A view without paths of this machine, which are nobody else's."""
    image, *text = view["input"].split(IMAGE_END, 1) if view.get("with_image") else [view["input"]]
    image = "image" if image.startswith(INLINE_IMAGE) else relative_to_here(image)
    files = {"run": relative_to_here(view["run"]), "input": IMAGE_END.join([image, *text])}
    return {**view, **files, "words": [relative_to_here(word) for word in view["words"]]}


def _add_details(explorer: Explorer, line: str, page: dict[str, Any], budget: int) -> int:
    """Adds the details of the open head, then of others within `budget` bytes; returns the bytes left."""
    heads = []
    for number, (view, subject) in enumerate(zip(page["views"], explorer.subjects, strict=True)):
        if not subject.saves_details:
            continue
        for shown in view["sites"]:
            is_other_site = shown["site"] != page["site"]
            for head in range(shown["heads"]):
                heads.append((is_other_site, head != page["head"], number, shown, head))
    # The open head first, then the same head of other views, then the open site.
    heads.sort(key=lambda entry: entry[:3])
    for is_other_site, is_other_head, number, shown, head in heads:
        if (is_other_site or is_other_head) and budget <= 0:
            break
        step = page["views"][number]["step"]
        detail = explorer.head(line, number, shown["site"], head, step)
        budget -= _size(detail)
        shown["details"][str(head)] = detail
    return budget


def _frames(explorer: Explorer, line: str, budget: int) -> list[dict[str, Any]] | None:
    """The maps at every training step that all subjects have; None for a single step or beyond `budget` bytes."""
    common_steps = set.intersection(*(set(subject.steps) for subject in explorer.subjects))
    if len(common_steps) < 2:
        return None
    frames = []
    for step in sorted(common_steps):
        page = explorer.look(line, explorer.all_at(int(step)), live=False)
        frames.append({"step": step, "views": list(map(_without_paths, page["views"]))})
        budget -= _size(page)
        if budget < 0:
            return None
    return frames


def _size(value: Any) -> int:
    return len(json.dumps(value))
