"""What is found in texts before training, each fault planted."""

import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from jarilab.data.finding import Finding
from jarilab.data.text.alignment import MIN_ROWS, check_alignment
from jarilab.data.text.checks import find_equal_documents, find_in_pairs, find_overlap, find_repeats, find_scripts
from jarilab.data.text.scan import (
    DIGIT,
    QUESTION,
    SCRIPT,
    SCRIPTS,
    Keys,
    normal,
    repeated,
    scan_documents,
    scan_pairs,
    shared,
)

SIDES = ("source", "target")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JARILAB_CACHE", str(tmp_path / "cache"))


def corpus(count: int, seed: int = 1) -> tuple[list[str], list[str]]:
    """Sentences of 3 to 12 words, and translations of about the same number of words, two in five questions."""
    draw = random.Random(seed)
    source, target = [], []
    for number in range(count):
        words = draw.randint(3, 12)
        end = "?" if draw.random() < 0.4 else "."
        source.append(" ".join(draw.choices(["ein", "Hund", "rennt", "schnell"], k=words)) + f" {number}{end}")
        target.append(" ".join(draw.choices(["a", "dog", "runs", "quickly"], k=words + draw.randint(-1, 1))) + end)
    return source, target


def write(folder: Path, source: list[str], target: list[str], name: str = "a") -> list[Path]:
    paths = [folder / f"{name}.de", folder / f"{name}.en"]
    for path, lines in zip(paths, (source, target), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def in_pairs(folder: Path, source: list[str], target: list[str]) -> dict[str, Finding]:
    return {finding.topic: finding for finding in find_in_pairs(scan_pairs([write(folder, source, target)]), SIDES)}


def test_texts_are_compared_by_letters_and_digits() -> None:
    assert normal(" Straße, Nr. 5! ") == normal("STRASSE nr 5") == "strassenr5"
    assert normal("\u1100\u1161\uff21") == "\uac00a"
    assert normal(" !? ") == "!?"


def test_vowels_that_are_marks_tell_texts_apart() -> None:
    assert normal("लड़का") != normal("लड़की")  # boy, girl
    assert normal("น้ำ") != normal("นำ")  # water, lead
    assert normal("I ❤️ you") == normal("I ❤ you")


def test_a_scan_knows_places_scripts_and_marks(tmp_path: Path) -> None:
    paths = write(tmp_path, ["a b?", "", "c"], ["가 나 3", "x", "Привет"])
    scan = scan_pairs([paths, paths])
    assert (len(scan), scan.ends, scan.blank) == (4, [2, 4], [(2, 2), (0, 0)])
    assert [str(scan.place(row, 1)) for row in (1, 3)] == [f"{paths[1]}:3"] * 2
    assert [[SCRIPTS[mark & SCRIPT] for mark in row] for row in scan.rows["marks"][:2].tolist()] == [
        ["Latin", "Hangul"], ["Latin", "Cyrillic"]]  # fmt: skip
    assert scan.rows["marks"][0, 0] & QUESTION
    assert scan.rows["marks"][0, 1] & DIGIT
    assert (scan_pairs([paths, paths]).rows == scan.rows).all(), "from the cache"


@pytest.mark.parametrize("count", [MIN_ROWS + 60, 3000])
@pytest.mark.parametrize(("side", "lines", "shift"), [(1, 1, 1), (0, 1, -1), (1, 3, 3), (0, 7, -7)])
def test_a_slip_is_found_with_its_line_and_size(tmp_path: Path, count: int, side: int, lines: int, shift: int) -> None:
    sides = corpus(count)
    middle = count // 2
    del sides[side][middle : middle + lines]
    del sides[1 - side][-lines:]
    alignment = check_alignment(scan_pairs([write(tmp_path, *sides)]).rows)
    assert alignment is not None
    assert alignment.slip is not None
    assert alignment.slip.shift == shift
    assert alignment.slip.start == pytest.approx(middle, abs=15)
    assert alignment.slip.stop == len(sides[0])


def test_a_slip_is_said_in_words(tmp_path: Path) -> None:
    source, target = corpus(1000)
    del target[500], source[-1]
    finding = in_pairs(tmp_path, source, target)["alignment"]
    assert finding.severity == "serious"
    assert "a target belongs to the source 1 line after it" in finding.text
    assert "1 line missing from the target" in finding.remedy


def test_aligned_and_unrelated_texts_do_not_slip(tmp_path: Path) -> None:
    source, target = corpus(1000)
    assert in_pairs(tmp_path, source, target)["alignment"].severity == "note"
    unrelated = corpus(1000, seed=2)[1]
    finding = in_pairs(tmp_path, source, unrelated)["alignment"]
    assert (finding.severity, "hardly correlate" in finding.text) == ("warning", True)
    assert "alignment" not in in_pairs(tmp_path, source[:100], target[:100])


def test_copies_ratios_scripts_and_blank_sides(tmp_path: Path) -> None:
    source, target = corpus(100)
    target[3], target[7] = source[3].upper(), target[7] * 9
    target[9], target[11] = "Собака бежит быстро.", " "
    found = in_pairs(tmp_path, source, target)
    assert {topic: found[topic].count for topic in ("copies", "ratio", "script", "blank")} == dict.fromkeys(
        ("copies", "ratio", "script", "blank"), 1)  # fmt: skip
    assert "a.de:4" in found["copies"].text
    assert "a.de:8" in found["ratio"].text
    assert "Latin script of most, but in Cyrillic, such as" in found["script"].text
    assert "a.en:10" in found["script"].text
    assert "the first is line 12" in found["blank"].text
    assert all(found[topic].remedy for topic in ("copies", "ratio", "script", "blank"))


def test_forty_equal_lines_are_one(tmp_path: Path) -> None:
    scan = scan_pairs([write(tmp_path, ["Ja.", "ja", "Nein."] + ["JA!"] * 38, ["Yes."] * 41)])
    (finding,) = find_repeats(scan, "pairs")
    assert (finding.count, finding.total, finding.severity) == (39, 41, "warning")
    assert "a.de:2 and" in finding.text
    assert finding.text.endswith("a.de:1")
    assert not list(find_repeats(scan_pairs([write(tmp_path, ["a", "b"], ["x", "x"])]), "pairs"))


def test_overlap_names_both_places(tmp_path: Path) -> None:
    train = scan_pairs([write(tmp_path, ["Eins.", "Zwei."], ["One.", "Two."])])
    valid = scan_pairs([write(tmp_path, ["Drei.", "zwei!"], ["Three.", "Other."], "valid")])
    (finding,) = find_overlap(valid, train, "sources")
    assert (finding.count, finding.total) == (1, 2)
    assert "valid.de:2 and" in finding.text
    assert finding.text.endswith("a.de:2")
    assert not list(find_overlap(valid, train, "targets", side=1))
    is_held_out = np.array([True, False])
    assert not list(find_overlap(train, train, "sources", is_held_out, ~is_held_out))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [(), (2,)])
def test_millions_of_lines_are_compared_in_little_memory(columns):
    values = np.random.default_rng(1).integers(0, 2**64, (4_000_000, *columns), np.uint64)
    values[3_999_999], values[2_000_007] = values[17], values[7]
    is_late = np.arange(len(values)) >= 2_000_000
    tracemalloc.start()
    try:
        assert repeated(Keys(values)) == (2, 2_000_007, 7)
        assert shared(Keys(values, is_late), Keys(values, ~is_late)) == (2, 2_000_007, 7)
        assert tracemalloc.get_traced_memory()[1] < 28_000_000, "7 bytes a line"
    finally:
        tracemalloc.stop()


def test_documents_and_their_lines(tmp_path: Path) -> None:
    line = "a line that is long enough to be compared"
    for name, text in (("a", f"{line}\nshort\n"), ("b", f"{line.upper()} \n\nshort!\n"), ("c", "가 " * 30 + "\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    scan = scan_documents([tmp_path])
    assert (len(scan), scan.ends) == (3, [1, 2, 3])
    (equal,) = find_equal_documents(scan)
    assert (equal.count, equal.total) == (1, 3)
    (repeats,) = find_repeats(scan, "lines")
    assert "b.txt:1 and" in repeats.text
    (script,) = find_scripts(scan, scan.rows, "lines")
    assert "c.txt:1" in script.text


def test_a_document_of_short_lines_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short\n" * 50)
    scan = scan_documents([tmp_path / "a.txt"])
    assert len(scan) == 0
    assert not list(find_repeats(scan, "lines"))
