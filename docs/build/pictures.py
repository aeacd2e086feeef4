"""Draw a picture of the pages: `python docs/build/pictures.py NAME FOLDER ...`. The first two need Chromium on PATH.

explore runs/demo/none-1 runs/demo/rotary-1    docs/explore.png, of the runs of `make demo`
encodings                                      docs/encodings.png, of `jarilab show`
images runs/boxes runs/painter                 docs/images.png, of a detector and a painter of `--captions attributes`
paper-figure MINILM                            docs/paper-figure.png, of the folder of all-MiniLM-L6-v2
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

import jarilab
from jarilab.data.images import draw
from places import DOCS

EXPLORE = ("--input", "21+211", "--site", "encoder.1", "--head", "5")
EXPLORE_SIZE = ViewportSize(width=1280, height=1010)
"""Pixels. The maps of the head end above the lower edge."""
SHOW_SIZE = ViewportSize(width=1300, height=1285)
FOUND = ("#0", "#1")
"""Held-out images in which a detector finds digits."""
CAPTIONS = ("a small red 3 top left", "a large blue 7 bottom right", "a small green 5 bottom left")
PAINTED = 4
"""Images of each caption."""
HEIGHT, GAP = 320, 12
"""Pixels of images.png, and between its parts."""
SENTENCE = "The animal didn't cross the street because it was too tired."
HEAD = ("encoder.2", 3)
"""A head of MiniLM in which "it" attends to "tired"."""


def explore(*runs: str) -> None:
    """The first screen of a page of `jarilab explore`."""
    _photograph("explore.png", EXPLORE_SIZE, "html[data-ready]", "explore", *runs, *EXPLORE)


def encodings() -> None:
    """The first screen of a page of `jarilab show`."""
    _photograph("encodings.png", SHOW_SIZE, "svg", "show", "sinusoidal,rotary,t5")


def images(detector: str, painter: str) -> None:
    """Boxes that one run finds, beside images that the other paints."""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for name in FOUND:
            file = Path(folder, f"{name[1:]}.png")
            list(jarilab.predict(detector, [name], draw=str(file)))
            parts.append(Image.open(file).convert("RGB"))
    painted = jarilab.predict(painter, CAPTIONS, count=PAINTED)
    parts.append(draw.grid([image for row in painted for image in row.images], PAINTED))
    parts = [part.resize((part.width * HEIGHT // part.height, HEIGHT)) for part in parts]
    sheet = Image.new("RGB", (sum(part.width + GAP for part in parts) - GAP, HEIGHT), "white")
    left = 0
    for part in parts:
        sheet.paste(part, (left, 0))
        left += part.width + GAP
    sheet.save(DOCS / "images.png", optimize=True)


def paper_figure(folder: str) -> None:
    """The map of one head, as the guide to figures draws it."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad(), jarilab.record(model) as tape:
        model(**inputs)
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    tape.figure(*HEAD, tokens=tokens, width=7.4).save(DOCS / "paper-figure.png", dpi=150)


PICTURES: dict[str, Callable[..., None]] = {
    "explore": explore,
    "encodings": encodings,
    "images": images,
    "paper-figure": paper_figure,
}


def _photograph(name: str, size: ViewportSize, ready: str, *words: str) -> None:
    """The first screen of a page that a command saves, once it has an element `ready`.

    Raises SystemExit without Chromium, or if the command fails.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("expected Chromium on PATH, got none; install it")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder, "page.html")
        command = [sys.executable, "-m", "jarilab", *words, "--save", str(page_file)]
        if subprocess.run(command).returncode:
            sys.exit(f"{' '.join(command)} failed")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )  # as root
        page = browser.new_page(viewport=size, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector(ready)
        page.wait_for_timeout(1000)  # drawings are faded in
        page.screenshot(path=DOCS / name)
        browser.close()
    Image.open(DOCS / name).convert("RGB").quantize(256).save(DOCS / name, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PICTURES:
        sys.exit(f"expected one of {', '.join(PICTURES)}, got {sys.argv[1:]}\n\n{__doc__}")
    PICTURES[sys.argv[1]](*sys.argv[2:])
