"""Still figures of the lessons, for who reads them in a checkout: what the live page of a lesson opens at.

`python docs/build --keep` writes them into docs/site/figures. Both languages show the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import live
import trained
from places import CACHE, TEXTS, jarilab

FIGURES = TEXTS / "figures"
COUNTED = "four, six, eight"
LONG = "one, two, three, " * 5


@dataclass(frozen=True)
class Still:
    """One head of a run as it reads a line.

    site, head: without them, all heads of the model.
    """

    run: str
    line: str
    site: str | None = None
    head: int | None = None


STILLS: dict[str, Still] = {
    "bag-none": Still("add-none", "21+211", "encoder.0", 3),
    "bag-rotary": Still("add-rotary", "21+211", "encoder.0", 3),
    "query-key-value": Still("add-none", "12+1", "encoder.0", 0),
    "masks": Still("count-rotary", COUNTED, "decoder.0.self", 0),
    "cross": Still("add-rotary", "12+1", "decoder.1.cross", 0),
    "seq2seq": Still("reverse", "3 1 4 1 5 9", "decoder.0.cross", 0),
    "beyond-sinusoidal": Still("count-sinusoidal", LONG, "decoder.1.self", 0),
    "beyond-alibi": Still("count-alibi", LONG, "decoder.1.self", 0),
    "language": Still("count-none", COUNTED, "decoder.1.self", 0),
    "heads": Still("add-rotary", "123+456"),
    "images": Still("digits-rotary2d", "#0", "encoder.0", 0),
    "norms": Still("add-rotary", "999-1", "encoder.1", 0),
}
NUMBERED: dict[str, tuple[str, str, str]] = {
    "break": ("add-rotary", "21+211", "break.most_head"),
    "pronouns": ("pronouns", live.PRONOUNS, "break.pronoun_head"),
}
"""Heads that a number of the lessons names: the run, the line and the number."""
DRAWN: dict[str, tuple[str, str]] = {
    "sinusoids-matrix": ("sinusoidal", "sinusoidal-embed-matrix"),
    "sinusoids-products": ("sinusoidal", "sinusoidal-embed-products"),
    "where-t5": ("t5", "t5-bias-distance"),
    "where-alibi": ("alibi", "alibi-bias-distance"),
    "rotary-half": ("rotary", "rotary-rotate-pairs"),
    "rotary-interleaved": ("rotary:pairing=interleaved", "rotary-rotate-pairs"),
}
"""Drawings of `jarilab show --svg`: the encoding, and the file."""


def names() -> list[str]:
    """Of all figures."""
    return [*STILLS, *NUMBERED, *DRAWN]


def keep(numbers: Mapping[str, Any]) -> None:
    """Write all figures from the runs that are there. numbers: those that lessons quote, of the same runs."""
    FIGURES.mkdir(exist_ok=True)
    stills = dict(STILLS)
    for name, (run, line, number) in NUMBERED.items():
        site, head = numbers[number].split(", head ")
        stills[name] = Still(run, line, site, int(head))
    for name, still in stills.items():
        trace, tape = trained.taped(trained.opened(still.run), still.line)
        tokens = {frame: list(one.names) for frame, one in trace.sequences.items()}
        shown: Any = tokens if len(tokens) > 1 else next(iter(tokens.values()))
        width = 8.5 if still.site else 17.5
        tape.figure(still.site, still.head, tokens=shown, width=width).save(FIGURES / f"{name}.svg")
    for name, (encoding, drawing) in DRAWN.items():
        folder = CACHE / "stills"
        folder.mkdir(exist_ok=True)
        out = "--svg", str(folder), "--save", str(folder / "page.html")
        jarilab("show", encoding, "--d-model", "64", *out)
        shutil.copy(folder / f"{drawing}.svg", FIGURES / f"{name}.svg")


def size(folder: Path = FIGURES) -> int:
    """Bytes of all figures."""
    return sum(path.stat().st_size for path in folder.glob("*.svg"))
