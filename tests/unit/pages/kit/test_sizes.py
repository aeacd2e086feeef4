"""Six letter sizes on all pages: a style writes one of them by its name."""

import re
from pathlib import Path

import jarilab

SOURCES = Path(jarilab.__file__).parent
SIZES = {"12", "14", "16", "19", "24", "32"}
STYLED = re.compile(r"(?<![-\w])font(?:-size)?:\s*([^;}\"`]+)")
DRAWN = re.compile(r"""["']?font-size["']?[:=]\s*["']?(\d[\d.]*)""")


def other_sizes(text: str) -> list[str]:
    """The sizes in styles and drawings that are none of the six."""
    named = re.compile(r"var\(--t[1-6]\)|inherit")
    styled = [value for value in STYLED.findall(text) if not named.search(value) and re.search(r"\d", value)]
    return styled + [size for size in DRAWN.findall(text) if size not in SIZES]


def test_every_letter_has_one_of_six_sizes() -> None:
    files = [path for path in SOURCES.rglob("*") if path.suffix in (".css", ".js", ".html") and "static" in path.parts]
    assert len(files) > 50
    written = {str(path.relative_to(SOURCES)): other_sizes(path.read_text(encoding="utf-8")) for path in files}
    assert {name: sizes for name, sizes in written.items() if sizes} == {}


def test_another_size_is_found() -> None:
    assert other_sizes("p { font-size: .9rem }") == [".9rem "]
    assert other_sizes("p { font: 600 1rem/1.4 var(--sans) }") == ["600 1rem/1.4 var(--sans) "]
    assert other_sizes('svg("text", { "font-size": 13 })') == ["13"]
    assert other_sizes('p { font: var(--t3)/1.4 var(--sans) } svg("text", { "font-size": 12 })') == []
