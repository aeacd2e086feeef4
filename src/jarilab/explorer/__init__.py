"""The explorer: a page, live or saved, of what trained models attend to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text
from jarilab.data.text.word_links import pharaoh
from jarilab.explorer import page_folder
from jarilab.explorer.noscript import noscript, sentence
from jarilab.explorer.page_file import saved_page
from jarilab.explorer.preview import figure_of, preview_image, preview_payload
from jarilab.explorer.run_subject import RunSubject
from jarilab.explorer.session import Explorer
from jarilab.explorer.subject import Subject
from jarilab.explorer.tape_subject import TapeSubject
from jarilab.inspect.figures.figure import FORMATS
from jarilab.inspect.measure.words import WordsOf
from jarilab.inspect.record.capture import Tape
from jarilab.pages.kit.page import assemble, frame

STYLES = (
    "kit/theme.css",
    "kit/base.css",
    "kit/maps.css",
    "explore.css",
    "model_map.css",
    "panels.css",
    "image.css",
)


PAGES = ("", ".html", ".htm")
"""Endings of files that hold a page."""


@dataclass(frozen=True)
class Page:
    """A page in one file. A notebook displays it.

    payload: its data, if a figure can be drawn from them. height: the largest in a notebook, in pixels; a longer page
    scrolls.
    """

    html: str
    payload: Mapping[str, Any] = field(default_factory=dict, repr=False)
    height: int = 720

    def save(self, path: str | Path) -> None:
        """Write the page; or, if the name ends in .svg, .pdf or .png, a figure of the head at which it opens.

        Raises UserError for another ending, and if it cannot be written.
        """
        path = Path(path)
        check_ending(path)
        if path.suffix.lower() in PAGES:
            write_text(path, self.html)
        elif self.payload:
            figure_of(self.payload).save(path)
        else:
            raise UserError(
                f"{path}: expected a name that ends in .html for this small page, got {path.suffix!r}; for a figure, "
                "use tape.figure(site, head)"
            )

    def _repr_html_(self) -> str:
        return frame(self.html, self.height)


def check_ending(path: Path) -> None:
    """Raises UserError for a name of a file that `Page.save` does not write."""
    if path.suffix.lower() not in (*PAGES, *FORMATS):
        raise UserError(
            f"{path}: expected a name that ends in .html for a page, or in {', '.join(FORMATS)} for a figure, got "
            f"{path.suffix!r}; name it such as page.html or attention.svg"
        )


def render(data: dict[str, Any]) -> str:
    """The HTML of a payload."""
    names = ", ".join(view["name"] for view in data["views"])
    title = f"{data['views'][0]['input']} · {names}"
    image, script = preview_image(data), _script(data)
    return assemble(
        "jarilab.explorer",
        "explore.html",
        STYLES if script == "explore.js" else STYLES[:-1],
        script,
        data,
        title,
        live=data["live"],
        beside=data.get("folder", False),
        packed=True,
        worker=_worker(data),
        noscript=noscript(data, image),
        description=sentence(data),
        image=image,
    )


def _script(data: Mapping[str, Any]) -> str:
    """The script of a page; that of a tape lacks the panels that need a model."""
    has_model = any(view["edits"] or view["opens"] for view in data["views"])
    return "explore.js" if has_model or data["live"] else "tape.js"


def _worker(data: Mapping[str, Any]) -> str:
    """The script that runs the models of a page; none if it has no models."""
    has_models = any("program" in view.get("engine", {}) for view in data["views"])
    return "worker.js" if has_models else ""


def open_explorer(
    runs: Sequence[str | Path] = (),
    models: Sequence[str | Path] = (),
    *,
    link: tuple[str, str] | None = None,
    align: str | None = None,
    trust_code: bool = False,
) -> Explorer:
    """An explorer of folders of Hugging Face models, then of runs.

    link: two tokens of the first model; pages open at the head that connects them most. align: gold links between the
    tokens of source and answer, such as `0-0 1-2`, counted from 0. Raises UserError for a folder without a model or a
    run.
    """
    if not runs and not models:
        raise UserError("nothing to explore: expected the folder of a run, got none")
    gold = None if align is None else pharaoh(align)
    flags = [*(["--align", align] if align else []), *(["--trust-code"] if trust_code else [])]
    subjects: list[Subject] = []
    if models:
        # Only these need transformers.
        from jarilab.explorer.huggingface_subject import HuggingFaceSubject

        for number, folder in enumerate(models):
            subjects.append(HuggingFaceSubject(folder, "--against" if number else "--model"))
    folders = [Path(run) for run in runs]
    for folder, name in zip(folders, _names(folders), strict=True):
        subjects.append(RunSubject(folder, name, gold=gold, trust_code=trust_code))
    return Explorer(subjects, link=link, flags=flags)


def _names(folders: Sequence[Path]) -> list[str]:
    """A name for each run: that of its folder, or its path if two have the same."""
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise UserError("the same run is given twice; name each once")
    return names


def explore(
    *runs: str | Path,
    input: str,
    image: str | Path | None = None,
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
    """The attention of these models on one input, side by side on a page.

    runs: folders of runs.
    image: file that a model such as LLaVA reads beside the input, a text.
    model: folder of a Hugging Face model, shown before the runs.
    against: folder of a second Hugging Face model.
    link: two tokens of such a model; the page opens at the head that connects them most.
    site: attention layer that the page opens at (default: that of the head that matters most).
    head: head that the page opens at (default: the head that matters most).
    step: training step of all runs (default: the newest).
    align: gold links between the tokens of source and answer, such as 0-0 1-2, counted from 0 (default: none).
    still: save the page without the models, so that it is small but computes no other inputs and no edits.

    Raises UserError for a folder that is no run or has no checkpoint, and for an input that a run cannot read.
    """
    if model is None and (against is not None or link is not None):
        raise UserError(
            "against and link go with a model of another library; give model=FOLDER, too"
        )
    if model is not None and (step is not None or align is not None):
        raise UserError("step and align are for runs of jari alone; leave them out beside model")
    models = [folder for folder in (model, against) if folder is not None]
    explorer = open_explorer(runs, models, link=link, align=align, trust_code=trust_code)
    return page(explorer, explorer.input_of(input, image), site, head, step, still=still)


def page(
    explorer: Explorer,
    line: str,
    site: str | None = None,
    head: int | None = None,
    step: int | None = None,
    *,
    still: bool = False,
) -> Page:
    """The page of one input as a file. Raises UserError for an input, site, head or step that does not exist."""
    payload = saved_page(explorer, line, site, head, explorer.all_at(step), still=still)
    return Page(render(payload), payload)


def save_folder(
    explorer: Explorer,
    out: str | Path,
    line: str,
    site: str | None = None,
    head: int | None = None,
    step: int | None = None,
    *,
    runtime: str | Path = page_folder.DEFAULT_RUNTIME,
) -> Path:
    """Save the page of one input as a folder, for models that are too large for a file.

    Writes index.html, an ONNX file for each model, and ONNX Runtime Web. Any server of files shows it, such as `python
    -m http.server`. runtime: the folder `dist` of the npm package onnxruntime-web, which is never downloaded.

    Raises UserError for an input, site, head or step that does not exist, and if no model can be exported.
    """
    out = Path(out)
    initial = {"site": site, "head": head, "steps": explorer.all_at(step)}
    data = page_folder.write_models(explorer, out, Path(runtime), line, initial)
    write_text(out / "index.html", render(data))
    return out


def show(
    tape: Tape,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    title: str = "tape",
    *,
    words: WordsOf = None,
) -> Page:
    """The maps of a tape.

    tokens: names of the tokens of `source` and `target`, or of both if they are equal; positions by default.
    words: merges tokens into words, for all sequences or by sequence: the index of each token's word, as `word_ids()`
    of a tokenizer's encoding gives it. True reads the marks of token names, such as `Ġ`, `▁` and `##`. Weights are
    summed over the keys of a word, and their mean is taken over its queries.
    Raises UserError for a tape of several inputs and for names or words that do not fit.
    """
    explorer = Explorer([TapeSubject(tape, tokens, title, words)])
    payload = explorer.look("", live=False)
    return Page(render(payload), payload)


def preview(
    tape: Tape,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    *,
    words: WordsOf = None,
) -> Page:
    """One map of a tape, of about 300 pixels, with a control for the head; a notebook draws it for a tape.

    tokens, words: as in `show`. Of a tape of several inputs, the first is drawn.
    """
    payload = preview_payload(tape, tokens, words)
    html = assemble(
        "jarilab.explorer", "preview.html", STYLES[:3], "preview.js", payload, "jari", live=False
    )
    return Page(html, height=600)


__all__ = [
    "Explorer",
    "Page",
    "explore",
    "open_explorer",
    "page",
    "preview",
    "render",
    "save_folder",
    "show",
]
