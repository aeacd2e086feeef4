"""Every table of docs/results comes from a kept file of measurements."""

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "build"))

import results  # pyright: ignore[reportMissingImports]  # noqa: E402

PAGES = sorted(results.RESULTS.glob("*.md"))
EXAMPLE = results.kept(["| a | b |", "| :--- | ---: |", "| x | 1 |"], kept_from="script", command="make demo")


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    return results.kept_tables(results.RESULTS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.keep(tmp_path / "page.json", {"key": EXAMPLE})
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_are_those_of_the_kept_file(page: Path, tables: dict[str, str]) -> None:
    assert "\n".join(results.differences(page, tables)) == "", "run `python docs/build/results.py`"


def test_every_kept_table_is_shown(tables: dict[str, str]) -> None:
    marks = {mark for page in PAGES for mark in results.MARK.findall(page.read_text(encoding="utf-8"))}
    assert marks == set(tables)


def kept_facts() -> Iterator[tuple[str, dict[str, str]]]:
    for path in sorted(results.RESULTS.glob("*.json")):
        if path.stem not in {*results.OTHER_WRITERS, "longer_text"}:
            yield from ((f"{path.stem}/{key}", one) for key, one in json.loads(path.read_text()).items())


@pytest.mark.parametrize(("name", "one"), list(kept_facts()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_kept_table_says_how_it_was_measured(name: str, one: dict[str, str]) -> None:
    assert one["kept_from"] == "script", f"{name}: measure it by a script, or leave it out"
    assert one["processor"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"])
    command = one["command"]
    assert command.startswith(("python ", "jarilab ", "make ")), command
    for script in re.findall(r"\S+\.py\b", command):
        assert (ROOT / script).is_file(), f"{name} was measured by {script}, which is gone: withdraw the table"
    assert {len(row) for row in (*one["rows"], one["heads"], one["align"])} == {len(one["heads"])}


def test_a_typed_number_is_found_with_file_and_line(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("# T\n\n<!-- table: page/key -->\n\n| old |\n\nText.\n\n| c |\n| --- |\n")
    results.main([])
    written = page.read_text()
    assert (
        written
        == "# T\n\n<!-- table: page/key -->\n\n| a | b |\n| :--- | ---: |\n| x | 1 |\n\nText.\n\n| c |\n| --- |\n"
    )
    page.write_text(written.replace("x | 1", "x | 2"))
    assert list(results.differences(page, results.kept_tables(folder))) == [
        "page.md:7: has | x | 2 |, its kept file | x | 1 |",
        "page.md:11: a table without the mark <!-- table: PAGE/KEY --> and an empty line above",
    ]


def test_what_a_script_prints_is_kept(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("<!-- table: page/new -->\n\nText.\n")
    program = "print('| m |'); print('| ---: |'); print('| 7 |')"
    results.main(["measure", "page", "new", "--folder", str(folder), "--", "python", "-c", program])
    one = json.loads((folder / "page.json").read_text())["new"]
    assert one["kept_from"] == "script"
    assert one["rows"] == [["7"]]
    assert one["processor"]
    assert page.read_text() == "<!-- table: page/new -->\n\n| m |\n| ---: |\n| 7 |\n\nText.\n"
    with pytest.raises(SystemExit, match="expected 2 tables"):
        results.main(["measure", "page", "a", "b", "--folder", str(folder), "--", "python", "-c", program])


def test_rows_of_a_benchmark_can_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    timing = import_module("timing")
    rows = timing.Table(as_json=False)
    rows.add(encoding="rotary", ms=1.5, over_none=timing.Spread(1.0, 0.9, 1.1))
    rows.add(encoding="alibi", ms=1.25, over_none=timing.Spread(1.0, 1.0, 1.0))
    [(_, lines)] = results.parsed(capsys.readouterr().out)
    one = results.kept(lines)
    assert one["heads"] == ["encoding", "ms", "over_none"]
    assert one["rows"] == [["rotary", "1.5", "1.000 [0.900 1.100]"], ["alibi", "1.25", "1.000 [1.000 1.000]"]]


NUMBER = re.compile(r"(?<![\w.,])(?:\d[\d,]*\.\d+|\d[\d,]*(?= ?%| (?:ms|s|seconds|CPU-seconds|minutes|hours|MB|GB)\b))")
"""A measured number: with a decimal point, a percentage, a time or memory. Others are mostly settings and counts."""
INTENDED = {"95"}
"""Levels of intervals."""


def numbers_of_prose(text: str) -> set[str]:
    """The measured numbers outside tables, code, headings and addresses."""
    text = re.sub(
        r"```.*?```|`[^`]*`|\]\([^)]*\)|(?:torch|transformers|Python) [\d.]+", "", text, flags=re.DOTALL | re.I
    )
    prose = re.sub(r"^(    |\||#|<!--).*$", "", text, flags=re.MULTILINE)
    return set(NUMBER.findall(prose)) - INTENDED


def known_numbers(page: Path) -> set[str]:
    """The numbers in the tables and in the kept file of a page."""
    table = "\n".join(re.findall(r"^\|.*$", page.read_text(encoding="utf-8"), re.MULTILINE))
    kept = page.with_suffix(".json")
    return set(re.findall(r"\d(?:[\d,.]*\d)?", table + (kept.read_text() if kept.exists() else "")))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem not in results.OTHER_WRITERS], ids=lambda page: page.stem
)
def test_numbers_in_the_prose_are_kept(page: Path) -> None:
    unknown = numbers_of_prose(page.read_text(encoding="utf-8")) - known_numbers(page)
    assert unknown == set(), "show these numbers in a kept table, or leave them out"


def test_a_typed_number_in_the_prose_is_found() -> None:
    text = (
        "# 1.5\n\nIt ends at 97.5 % and 2.25 in [3.5](x/4.5.md), `5.5`, with PyTorch 2.13 on 2026-11-24.\n\n| 6.5 |\n"
        "\nIt takes 1,234 CPU-seconds, 17 s and 29 MB for 3 seeds.\n"
    )
    assert numbers_of_prose(text) == {"97.5", "2.25", "3.5", "1,234", "17", "29"}
