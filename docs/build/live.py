"""The pages that lessons carry: each is one file that answers in the browser, saved by a command of jari."""

from __future__ import annotations

import time

import planted_heads
from places import LIVE, jarilab


def explored(*runs: str, at: str, site: str | None = None, head: int = 0) -> tuple[str, ...]:
    """The command that explores runs. site, head: what the page opens at; the head that says most, by default."""
    opening = () if site is None else ("--site", site, "--head", str(head))
    return "explore", *(f"runs/{run}" for run in runs), "--input", at, *opening


def caused(circuit: str) -> tuple[str, ...]:
    """The command that asks which head of a planted model gives the answer."""
    words = "--text", planted_heads.TEXT, "--answer", planted_heads.ANSWERS[circuit]
    return "causes", f"circuits/{circuit}", *words


PRONOUNS = "the animal did not cross the street because it was too tired"
CAUSES = ("--at", "8", "--answer", "es", "--rival", "sie")
"""Of the translation of `PRONOUNS`: the pronoun, beside that of the street."""
PAGES: dict[str, tuple[str, ...]] = {
    "bag": explored("add-none", "add-rotary", at="21+211"),
    "query-key-value": explored("add-none", at="12+1", site="encoder.0"),
    "sqrt": ("show", "--softmax", "0.3,0.4,0.1", "30,40,10", "--divide", "64"),
    "masks": explored("count-rotary", at="four, six, eight, ten"),
    "cross": explored("add-rotary", at="12+1", site="decoder.1.cross"),
    "seq2seq": (*explored("reverse", at="3 1 4 1 5 9"), "--still"),
    "sinusoids": ("show", "sinusoidal,sinusoidal:layout=concatenated"),
    "where": ("show", "learned,shaw,t5,alibi", "--length", "32", "--d-model", "64"),
    "rotary": ("show", "rotary,rotary:pairing=interleaved", "--d-model", "64"),
    "beyond": explored("count-sinusoidal", "count-alibi", at="one, two, three, " * 6),
    "language": explored("count-none", "count-sinusoidal", at="four, six, eight, ten"),
    "heads": explored("add-rotary", at="123+456"),
    "images": explored("digits-none", "digits-rotary2d", at="#0"),
    "norms": explored("add-rotary", at="999-1", site="encoder.1"),
    "break": explored("add-rotary", at="21+211"),
    "pronouns": explored("pronouns", at=PRONOUNS),
    "causes": ("causes", "runs/pronouns", "--text", PRONOUNS, *CAUSES),
    "decoy": caused("decoy"),
    "backup": caused("backup"),
}


def make() -> None:
    """Save all pages. Those that are there stay."""
    LIVE.mkdir(parents=True, exist_ok=True)
    for name, words in PAGES.items():
        path = LIVE / f"{name}.html"
        if path.exists():
            continue
        start = time.monotonic()
        jarilab(*words, "--out" if words[0] == "causes" else "--save", str(path))
        size = path.stat().st_size / 1e6
        print(f"  page {name}: {time.monotonic() - start:.0f} s, {size:.1f} MB", flush=True)
