"""Files as people have them: what is read, and what each fault is told as."""

import bz2
import gzip
import lzma
import os
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jarilab.core.errors import UserError
from jarilab.data.text.text_files import CHUNK_BYTES, content_hash, document_files, documents, lines


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def whole(path: Path) -> list[str]:
    return ["".join(pieces) for pieces in documents(path)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\xef\xbb\xbf", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\n\n\n", ["", "", ""]),
        (b"  \t \n", ["  \t "]),
        (b"\xef\xbb\xbfa\r\nb\r\n", ["a", "b"]),
        (2 * b"\xef\xbb\xbfa\nb\n", ["a", "b", "a", "b"]),
        (b"a\rb\r\r\nc\r", ["a\rb\r", "c\r"]),
        ("a\u2028b\x85c\u2029d\x0be\x0cf\x1cg\n".encode(), ["a\u2028b\x85c\u2029d\x0be\x0cf\x1cg"]),
        ("שלום\u200f\u200b\ufeffعالم\n".encode(), ["שלום\u200f\u200b\ufeffعالم"]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_lines(tmp_path: Path, content: bytes, expected: list[str], packed: bool) -> None:
    path = write(tmp_path, "any.name", gzip.compress(content) if packed else content)
    assert list(lines(path)) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"))))
def test_lines_are_what_was_written(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    texts = [text.removesuffix("\r").removeprefix("\ufeff") for text in texts]
    path = write(tmp_path_factory.mktemp("lines"), "a", "".join(text + "\n" for text in texts).encode())
    assert list(lines(path)) == texts
    assert "".join(whole(path)) == ("".join(t + "\n" for t in texts) if any(t.strip() for t in texts) else "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\nb\xffd\n", r"a:2: expected UTF-8; got 0xff at byte offset 1 .*; save"),
        (b"\xef\xbb\xbfb\xe9", r"a:1: expected UTF-8; got 0xe9 at byte offset 4"),
        ("half\n한".encode()[:-1], r"a:2: expected UTF-8; got 0xed at byte offset 0"),
        (b"\xed\xa0\x80", r"a:1: expected UTF-8; .* byte offset 0"),
        ("text".encode("utf-16"), r"a: expected UTF-8; .* UTF-16; save it as UTF-8, or: iconv"),
        (b"\xfe\xff\0t", r"UTF-16"),
        (b"a\nb\nc\0\n", r"a:3: expected text; got a NUL .* save it as UTF-8"),
    ],
)
def test_what_is_no_text_is_told_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    for content_or_packed in (content, gzip.compress(content)):
        path = write(tmp_path, "a", content_or_packed)
        with pytest.raises(UserError, match=message):
            list(lines(path))
        with pytest.raises(UserError, match=message):
            whole(path)


def test_the_place_of_a_fault_is_right_far_into_a_document(tmp_path: Path) -> None:
    text = b"x" * (CHUNK_BYTES - 3) + b"\n" + b"y" * (CHUNK_BYTES + 5) + b"\n" + b"z" * (2 * CHUNK_BYTES)
    path = write(tmp_path, "a", text + b"\xff")
    with pytest.raises(UserError, match=rf"a:3: expected UTF-8; .* byte offset {2 * CHUNK_BYTES} "):
        whole(path)
    with pytest.raises(UserError, match=rf"a:3: expected UTF-8; .* byte offset {2 * CHUNK_BYTES} "):
        list(lines(path))


def test_a_line_too_long_is_measured_and_never_held(tmp_path: Path) -> None:
    content = b"short\r\n" + b"x" * 20_000_000 + b"\nmore"
    for path in (write(tmp_path, "a", content), write(tmp_path, "b.gz", gzip.compress(content, 1))):
        tracemalloc.start()
        with pytest.raises(
            UserError, match=r":2: expected lines of at most 1,000 .* got one of 20,000,000 bytes; break"
        ):
            list(lines(path, longest_line=1000))
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
        tracemalloc.stop()


def test_a_sparse_file_of_terabytes_is_refused_in_time(tmp_path: Path) -> None:
    path = write(tmp_path, "a", b"short\n")
    os.truncate(path, 1 << 40)
    with pytest.raises(UserError, match=r"a:2: .* got one of more than 134,217,728 bytes"):
        list(lines(path))


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_longest_line_is_allowed(tmp_path: Path, end: bytes) -> None:
    assert list(lines(write(tmp_path, "a", b"x" * 9 + end), longest_line=9)) == ["x" * 9]
    with pytest.raises(UserError, match="got one of 10"):
        list(lines(write(tmp_path, "a", b"x" * 10 + b"\n"), longest_line=9))


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(os.urandom(1000).hex().encode())
    flipped = packed[:300] + bytes([packed[300] ^ 255]) + packed[301:]
    for content in (packed[:-9], packed[:5], flipped, packed + b"tail"):
        path = write(tmp_path, "a", content)
        with pytest.raises(UserError, match=r"a: expected complete gzip, .*; got .* compress it again"):
            list(lines(path))
        with pytest.raises(UserError, match=r"a: expected complete gzip"):
            whole(path)
    assert len(list(lines(write(tmp_path, "a", packed * 2)))) == 1


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "gz"), (bz2.compress, "bz2"), (lzma.compress, "xz")])
def test_compressed_files_are_read(tmp_path: Path, pack: Callable[[bytes], bytes], name: str) -> None:
    packed = pack(b"one\ntwo\n")
    assert list(lines(write(tmp_path, "no ending", packed))) == ["one", "two"]
    write(tmp_path, f"folder/a.txt.{name}", packed)
    assert whole(tmp_path / "folder") == ["one\ntwo\n"]
    with pytest.raises(UserError, match=r"expected complete gzip, bzip2 or xz; got a damaged .* again"):
        list(lines(write(tmp_path, "cut", pack(os.urandom(1000).hex().encode())[:-40])))


@pytest.mark.parametrize(
    ("start", "remedy"),
    [
        (b"PK\3\4", "a zip archive; save a spreadsheet as CSV, or unpack the archive: unzip 'a b'"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it: zstd -d 'a b'"),
        (b"PAR1", "a Parquet file; convert it, such as: duckdb"),
    ],
)
def test_other_files_are_named_with_the_command_that_converts_them(tmp_path: Path, start: bytes, remedy: str) -> None:
    with pytest.raises(UserError, match=f"got {remedy}"):
        list(lines(write(tmp_path, "a b", start + bytes(100))))


def test_lines_that_end_with_carriage_returns_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "mac", b"a\rb\r" * 600_000)
    with pytest.raises(
        UserError, match=r"mac: expected lines .* got one line with [0-9,]+ lone carriage returns.* tr "
    ):
        list(lines(path))
    assert list(lines(write(tmp_path, "one", b"a\r"))) == ["a\r"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = write(tmp_path, "a", b"x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for path, message in [
        (tmp_path / "no", "expected a file; got .*; check the path"),
        (tmp_path, "expected a file; got a folder; name a file"),
        (tmp_path / "pipe", "expected a file; got no regular file"),
        (file / "inside", "cannot be read .*; check the path"),
        (tmp_path / "loop", "cannot be read"),
    ]:
        with pytest.raises(UserError, match=message):
            list(lines(path))
        with pytest.raises(UserError, match=message):
            content_hash([path])


def test_documents_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", b"\xef\xbb\xbfB\r\n b\n")
    write(tmp_path, "a/z.TXT", b"Z\r")
    write(tmp_path, "a/y.txt.gz", gzip.compress("와이".encode()))
    for name in (".hidden.txt", ".git/c.txt", "image.png", "a/readme.md"):
        write(tmp_path, name, b"\xff\xff\xff")
    assert whole(tmp_path) == ["와이", "Z\r", "B\n b\n"]
    assert document_files(tmp_path / "b.txt") == [tmp_path / "b.txt"]


def test_a_folder_without_documents(tmp_path: Path) -> None:
    write(tmp_path, "a.md", b"x")
    with pytest.raises(UserError, match=r"expected files named \*.txt or \*.txt.gz in this folder; got none; rename"):
        whole(tmp_path)


def test_pieces_are_short_and_end_where_words_do(tmp_path: Path) -> None:
    text = "낱말 words\r\n\n  and\u3000more " * 20_000
    (document,) = documents(write(tmp_path, "a", text.encode()))
    pieces = list(document)
    assert "".join(pieces) == text.replace("\r\n", "\n")
    assert len(pieces) > 5
    assert max(map(len, pieces)) <= 2 * CHUNK_BYTES
    assert all(piece[0].isspace() and not before[-1].isspace() for before, piece in pairwise(pieces))


@pytest.mark.parametrize("letter", ["x", "한", " ", "\r\n", "😀"])
def test_pieces_of_text_without_words_are_short_too(tmp_path: Path, letter: str) -> None:
    text = "a" + letter * 100_000
    for shift in range(3):
        pieces = list(next(documents(write(tmp_path, "a", ("b" * shift + text).encode()))))
        assert "".join(pieces) == "b" * shift + text.replace("\r\n", "\n")
        assert max(map(len, pieces)) <= 2 * CHUNK_BYTES


def test_a_bomb_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = write(tmp_path, "a.gz", gzip.compress(b"x" * 4_000_000 + b"\n" * 2_000_000))
    tracemalloc.start()
    assert sum(len(piece) for piece in next(documents(path))) == 6_000_000
    assert tracemalloc.get_traced_memory()[1] < 3_000_000
    tracemalloc.stop()


def test_the_hash_is_of_the_contents_in_order(tmp_path: Path) -> None:
    a, b, c = (write(tmp_path, name, content) for name, content in [("a", b"1"), ("b", b"2"), ("c", b"1")])
    assert content_hash([a, b]) == content_hash([c, b])
    assert len({content_hash(paths) for paths in ([a], [b], [a, b], [b, a], [write(tmp_path, "d", b"12")])}) == 5


@pytest.mark.parametrize("name", ["a\0b.txt", "\ud800.txt"])
def test_a_name_that_no_file_can_have_is_the_person_s_fault(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected the name of a file"):
        list(lines(tmp_path / name))
