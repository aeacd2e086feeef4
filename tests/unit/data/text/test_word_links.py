"""Gold links of words: Pharaoh alignments and files of pairs."""

from pathlib import Path

import pytest

from jarilab.core.errors import UserError
from jarilab.data.text.word_links import LinkedWords, pharaoh, read_links, word_spans

TEXTS = [("the house", "das kleine Haus"), ("yes", "ja")]


def read(folder: Path, name: str, text: str, texts=TEXTS) -> list[LinkedWords]:
    (folder / name).write_text(text)
    return list(read_links(folder / name, texts))


def test_pharaoh_reads_source_first():
    assert pharaoh("0-0 1-2  12-3\n") == [(0, 0), (2, 1), (3, 12)]
    assert pharaoh("") == []
    for wrong in ("0-0 1:2", "0-0 1-", "0-0 -1-2", "0-0 1-2-3", "0-0 １-2"):
        with pytest.raises(UserError, match=r"links such as 0-0 1-2, .* got '.*' as link 2; leave out possible"):
            pharaoh(wrong)


def test_alignments_of_pairs(tmp_path: Path) -> None:
    first, second = read(tmp_path, "gold.txt", "0-0 1-2\n\n")
    assert first.links == (("alignment", 0, 0), ("alignment", 2, 1))
    assert first.possible == ()
    assert first.cross
    assert second.links == ()
    assert second.origin.endswith("gold.txt:2")


def test_pairs_of_one_text(tmp_path: Path) -> None:
    text = "1\t2\t0\tcoreference\n\n3\t1\t0\n3\t0\t1\tpossible\n"
    first, second, third = read(tmp_path, "links.tsv", text, [("a b c",), ("a",), ("a  b",)])
    assert first.links == (("coreference", 2, 0),)
    assert not first.cross
    assert second.links == ()
    assert (third.links, third.possible) == ((("link", 1, 0),), ((0, 1),))
    assert third.origin.endswith("links.tsv:3")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "0-0\n", r"a\.txt: .* for each example, at least 2; got 1; name the file"),
        ("a.txt", "0-0\n0-0\n\n\n", r"a\.txt: .* for each example, 2; got 4; name the file"),
        ("a.txt", "0-0\n0:0\n", r"a\.txt:2: expected links such as 0-0 1-2, .*'0:0'"),
        ("a.txt", "0-0\n1-0\n", r"a\.txt:2: .* below 1 for .* below 1 for .*; got query 0 and key 1; check"),
        ("a.txt", "1-3\n\n", r"a\.txt:1: .* below 3 for .* below 2 for .*; got query 3 and key 1; check"),
        ("a.tsv", "1\t0\n", r"a\.tsv:1: expected example, query word, key word .*; got '1\\t0'; correct"),
        ("a.tsv", "1\t0\t0\t\n", r"a\.tsv:1: expected example"),
        ("a.tsv", "1\t0\t-1\n", r"a\.tsv:1: expected example"),
        ("a.tsv", "2\t0\t0\n1\t0\t0\n", r"a\.tsv:2: expected examples in order, counted from 1; got 1 after 2; sort"),
        ("a.tsv", "0\t0\t0\n", r"a\.tsv:1: expected examples in order, counted from 1; got 0 after 1"),
        ("a.tsv", "1\t3\t1\n", r"a\.tsv:1: .* got query 3 and key 1"),
        ("a.tsv", "1\t0\t0\n\n3\t0\t0\n", r"a\.tsv:3: expected one of the examples 1 to 2 in column 1; got 3; name"),
    ],
)  # fmt: skip
def test_faults_are_named_with_their_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, name, text)


def test_words_are_between_white_space() -> None:
    assert word_spans("  나는 \u3000간다. ") == [(2, 4), (6, 9)]
