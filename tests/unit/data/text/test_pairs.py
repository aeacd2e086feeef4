"""Pairs of lines, and of cells."""

from pathlib import Path

import pytest

from jarilab.core.errors import UserError
from jarilab.data.text.pairs import PairCounts, pairs


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read_pairs(*paths: Path) -> tuple[list[tuple[str, str]], PairCounts]:
    reading = PairCounts()
    return list(pairs([paths], reading)), reading


def test_pairs_of_two_files(tmp_path: Path) -> None:
    one = write(tmp_path, "one", b"a b\n\n \nc\nd\t1\n\n")
    two = write(tmp_path, "two", "가 나\nx\n\u3000\n\nd\t2\n\n".encode())
    assert read_pairs(one, two) == ([("a b", "가 나"), ("d\t1", "d\t2")], PairCounts(pairs=2, blank=4))


def test_pairs_of_two_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "p.tsv", "a\t가\nb \t나\r\n\n\tx\ny\t\n\t\n".encode())
    assert read_pairs(path) == ([("a", "가"), ("b ", "나")], PairCounts(pairs=2, blank=4))


def test_a_missing_column(tmp_path: Path) -> None:
    path = write(tmp_path, "p.tsv", b"a\tb\nonly one\n")
    with pytest.raises(UserError, match=r"p.tsv:2: expected two columns .* got one: 'only one'; .* or give"):
        read_pairs(path)


@pytest.mark.parametrize(("left", "right", "first"), [(3, 5, 4), (5, 3, 4), (0, 1, 1), (2, 1, 2)])
def test_files_of_different_length(tmp_path: Path, left: int, right: int, first: int) -> None:
    one, two = write(tmp_path, "one", b"x\n" * left), write(tmp_path, "two", b"y\n" * right)
    message = rf"got {left} in \S*one and {right} in \S*two; line {first} .* partner; align"
    with pytest.raises(UserError, match=message):
        read_pairs(one, two)


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \n\t\n", b"\xef\xbb\xbf", b"\t\n"])
def test_nothing_usable(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, "a", content)
    with pytest.raises(UserError, match=r"a holds no usable lines; expected text; fill the file or name another"):
        read_pairs(path)
    with pytest.raises(UserError, match=r"a and \S*a hold no usable lines"):
        read_pairs(path, path)


def test_one_or_two_files(tmp_path: Path) -> None:
    path = write(tmp_path, "a", b"a\tb")
    with pytest.raises(UserError, match="expected two files, or one of tab-separated values; got 3"):
        read_pairs(path, path, path)
