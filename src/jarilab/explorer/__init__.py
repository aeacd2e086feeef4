"""Look into trained models: what attends to what, on one page that is live or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text
from jarilab.explorer import page_file, page_folder
from jarilab.explorer.foreign_session import ForeignExplorer
from jarilab.explorer.session import Explorer
from jarilab.explorer.unscripted import unscripted
from jarilab.inspect.record.capture import Tape
from jarilab.pages.kit.page import assemble, frame

STYLES = ("kit/theme.css", "kit/base.css", "kit/maps.css", "explore.css", "panels.css", "image.css")


@dataclass(frozen=True)
class Page:
    """A page that needs nothing else. In a notebook it shows itself."""

    html: str

    def save(self, path: str | Path) -> None:
        """Write it as a file. Raises UserError where that cannot be."""
        write_text(Path(path), self.html)

    def _repr_html_(self) -> str:
        return frame(self.html)


def render(data: dict[str, Any]) -> str:
    """The HTML of a payload."""
    beside = data.get("folder", False)
    title = " · ".join(["jari", *(view["name"] for view in data["views"])])
    return assemble(
        "jarilab.explorer",
        "explore.html",
        STYLES,
        "main.js",
        data,
        title,
        live=data["live"],
        beside=beside,
        unscripted=unscripted(data),
    )


def explore(
    *runs: str | Path,
    input: str,
    model: str | Path | None = None,
    against: str | Path | None = None,
    link: tuple[str, str] | None = None,
    site: str | None = None,
    head: int | None = None,
    step: int | None = None,
    align: str | None = None,
    still: bool = False,
    trust_code: bool = False,
) -> Page:
    """What the models of these runs attend to while they read `input`, side by side.

    model, against: folders of Hugging Face transformers, shown before the runs, all of them still. link: two of their
    tokens; the page opens at the head that connects them most.
    site, head: what the page opens at; the head that says most, by default. step: of training, at which all runs are
    shown; the newest, by default. align: gold links between the tokens of
    source and answer, such as `0-0 1-2`, counted from 0. still: a file that computes nothing by itself; by default it
    carries the models, where they are small enough, and runs them on other inputs and under edits.

    Heads beside the open one are in the file too while it stays small.
    Raises UserError for a folder that is no run or has no checkpoint, and for an input that a run cannot read.
    """
    if model is None and (against is not None or link is not None):
        raise UserError(
            "against and link go with a model of another library; give model=FOLDER, too"
        )
    if model is not None:
        if step is not None or align is not None:
            raise UserError(
                "step and align are for runs of jari alone; leave them out beside model"
            )
        folders = [model] if against is None else [model, against]
        foreign = ForeignExplorer(folders, runs, link=link, trust_code=trust_code)
        return Page(render(foreign.look(input, live=False, site=site, head=head)))
    session = Explorer(runs, align=align, trust_code=trust_code)
    return page(session, input, site, head, step, still=still)


def page(
    explorer: Explorer,
    line: str,
    site: str | None = None,
    head: int | None = None,
    step: int | None = None,
    *,
    still: bool = False,
) -> Page:
    """The page of one input as a file. Raises UserError for an input, a site, a head or a step that is not there."""
    return Page(render(page_file.whole(explorer, line, site, head, step, still=still)))


def save_folder(
    explorer: Explorer,
    out: str | Path,
    line: str,
    site: str | None = None,
    head: int | None = None,
    step: int | None = None,
    *,
    runtime: str | Path = page_folder.USUAL_RUNTIME,
) -> Path:
    """Write the page of one input as a folder, for models that are too large for a file: index.html, a model as ONNX
    for each run, and ONNX Runtime Web, copied from `runtime`. Any server of files shows it: `python -m http.server`.

    runtime: the folder `dist` of the npm package onnxruntime-web, which is never fetched.
    Raises UserError for what is not there, and where no model can be written.
    """
    out = Path(out)
    opens = {"site": site, "head": head, "step": step}
    page = page_folder.write_models(explorer, out, Path(runtime), line, opens)
    write_text(out / "index.html", render(page))
    return out


def show(
    tape: Tape,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    title: str = "tape",
) -> Page:
    """The maps of a tape. tokens: names for the tokens of `source` and `target`, or of both where they are the same;
    their places by default. Raises UserError where the tape is of several inputs or the names do not fit."""
    return Page(render(page_file.of_tape(tape, tokens, title)))


__all__ = [
    "Explorer",
    "ForeignExplorer",
    "Page",
    "explore",
    "page",
    "render",
    "save_folder",
    "show",
]
