"""What files become: the same numbers whenever they are prepared, made once, and made anew when damaged."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jarilab.core.errors import UserError
from jarilab.core.storage.content_cache import cache_folder
from jarilab.data.text import PADDING, store
from jarilab.data.text.pairs import PairCounts
from jarilab.data.text.store import Encoded, prepare_documents, prepare_pairs, train_tokenizer, train_tokenizers
from jarilab.data.text.tokenizers import UNKNOWN, Tokenizer, train

ENGLISH = ["a cat", "the cat sat", "the dog sat on the mat", "no"]
KOREAN = ["고양이", "고양이가 앉았다", "개가 매트에 앉았다", "아니"]
SOURCE = train("words", ENGLISH, size=100)
TARGET = train("characters", KOREAN, size=100)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JARILAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tsv(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{one}\t{other}\n" for one, other in zip(ENGLISH, KOREAN, strict=True)))
    return path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that files were encoded rather than found."""
    made: list[int] = []
    batches = store._batches

    def batches_counted(items: Iterator) -> Iterator:
        made.append(1)
        return batches(items)

    monkeypatch.setattr(store, "_batches", batches_counted)
    return made


def row_of(encoded: Encoded, number: int) -> list[int]:
    return encoded.ids[encoded.offsets[number] : encoded.offsets[number + 1]].tolist()


def texts(encoded: Encoded, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(row_of(encoded, number)) for number in range(len(encoded))]


def entries(cache: Path) -> list[Path]:
    assert not list(cache.glob(".*")), "something unfinished was left"
    return sorted(cache.iterdir())


def test_pairs_become_numbers(tsv: Path) -> None:
    made = prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    assert texts(made.source, SOURCE) == ENGLISH
    assert texts(made.target, TARGET) == KOREAN
    assert made.counts == PairCounts(pairs=4)
    assert len(made) == len(made.source) == len(made.target) == 4
    assert made.source.lengths.tolist() == [2, 3, 6, 1]
    assert made.source.lengths.dtype == torch.int32
    assert made.source.tokens == 12
    assert made.target.tokens == len("".join(KOREAN))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("the cat sat\n\nthe cat\nno\nno\n")
    two.write_text("개\n개\n고양이고양이\n\n고양이\n")
    made = prepare_pairs([[one, two]], SOURCE, TARGET, longest=3)
    assert made.counts == PairCounts(pairs=2, blank=2, too_long=1)
    assert texts(made.source, SOURCE) == ["the cat sat", "no"]
    assert prepare_pairs([[one, two]], SOURCE, TARGET, longest=3).counts == made.counts


def test_all_too_long(tsv: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in (1, 4, 4096):
        monkeypatch.setattr(store, "_BATCH_ROWS", rows)
        with pytest.raises(UserError, match=r"pairs of at most 1 tokens a side; got 4, all longer; raise the limit"):
            prepare_pairs([[tsv]], SOURCE, TARGET, longest=1)
    assert entries(cache) == []


@pytest.mark.parametrize("content", ["", "\n \n", "\t\n"])
def test_nothing_usable_leaves_nothing(tmp_path: Path, cache: Path, content: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    for call in (
        lambda: prepare_pairs([[path]], SOURCE, TARGET, longest=9),
        lambda: prepare_documents([path], SOURCE)[0],
        lambda: prepare_documents([tmp_path], SOURCE)[0],
        lambda: train_tokenizers([[path]], "bpe", 300, joint=True),
        lambda: train_tokenizers([[path]], "bpe", 300, joint=False),
        lambda: train_tokenizer([path], "bpe", 300),
    ):
        with pytest.raises(UserError, match="holds no usable lines"):
            call()
    assert entries(cache) == []


def test_line_ends_marks_and_packing_make_no_difference(tmp_path: Path, cache: Path) -> None:
    content = "a cat\t고양이\nno\t아니\n".encode()
    forms = [content, content.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + content, gzip.compress(content)]
    for number, form in enumerate(forms):
        path = tmp_path / f"{number}.tsv"
        path.write_bytes(form)
        prepare_pairs([[path]], SOURCE, TARGET, longest=9)
        prepare_documents([path], TARGET)[0]
    manifests = [json.loads((entry / "manifest.json").read_text()) for entry in entries(cache)]
    assert len(manifests) == 2 * len(forms)
    assert len({json.dumps(manifest["files"]) for manifest in manifests}) == 2


@given(st.lists(st.lists(st.integers(1, 70_000), max_size=9), min_size=1), st.data())
def test_rows_are_padded(rows: list[list[int]], data: st.DataObject) -> None:
    ids = np.array([number for row in rows for number in row], np.uint32)
    encoded = Encoded(ids, np.cumsum([0, *map(len, rows)], dtype=np.int64))
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    longest = max(len(rows[n]) for n in chosen)
    expected = [rows[n] + [PADDING] * (longest - len(rows[n])) for n in chosen]
    assert encoded.padded(torch.tensor(chosen)).tolist() == encoded.padded(chosen).tolist() == expected
    assert encoded.padded(chosen).dtype == torch.int64


def test_rows_that_are_none(tsv: Path) -> None:
    encoded = prepare_pairs([[tsv]], SOURCE, TARGET, longest=50).source
    for indices in ([-1], [0, 4]):
        with pytest.raises(IndexError, match="from 0 to 3; got"):
            encoded.padded(indices)
    assert encoded.padded([]).shape == (0, 0)


def test_a_large_vocabulary_has_wide_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("w0 w65531 w65532 none")
    for words, kind in ((65_532, np.uint16), (65_533, np.uint32)):
        data = json.loads(SOURCE.to_json()) | {"pieces": [f" w{number}" for number in range(words)]}
        encoded = prepare_documents([path], Tokenizer.from_json(json.dumps(data)))[0]
        assert encoded.ids.dtype == kind
        assert row_of(encoded, 0) == [4, 65_535, 65_536 if words > 65_532 else UNKNOWN, UNKNOWN]


def test_batches_make_no_difference(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"{ENGLISH[n % 4]} {n}\t{KOREAN[n % 3]}\n" for n in range(500)))
    hashes = set()
    for rows, characters in ((4096, 1 << 18), (7, 1 << 18), (4096, 100)):
        monkeypatch.setattr(store, "_BATCH_ROWS", rows)
        monkeypatch.setattr(store, "_BATCH_CHARACTERS", characters)
        prepare_pairs([[path]], SOURCE, TARGET, longest=6)
        (entry,) = entries(cache)
        hashes.add((entry / "manifest.json").read_text())
        shutil.rmtree(cache)
    assert len(hashes) == 1


def test_documents_are_rows(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    long = "개가 매트에\r\n\n 앉았다 " * 3_000
    for name, text in (("a.txt", "고양이\n"), ("b.txt", " \n"), ("c.txt", ""), ("d.txt", long)):
        (folder / name).write_bytes(text.encode())
    assert texts(prepare_documents([folder], TARGET)[0], TARGET)[0][:3] == "고양이"
    tokenizer = train_tokenizer([folder], "bpe", 300)
    encoded = prepare_documents([folder], tokenizer)[0]
    assert texts(encoded, tokenizer) == ["고양이\n", long.replace("\r\n", "\n")]
    assert row_of(encoded, 1) == tokenizer.encode(long.replace("\r\n", "\n"))


def test_the_second_time_is_found(tsv: Path, tmp_path: Path, cache: Path, counted: list[int]) -> None:
    first = prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    copy = tmp_path / "another name"
    shutil.copy(tsv, copy)
    second = prepare_pairs([[copy]], SOURCE, TARGET, longest=50)
    assert len(counted) == len(entries(cache)) == 1
    assert second.target.padded(range(4)).equal(first.target.padded(range(4)))
    assert second.counts == first.counts


def test_whatever_is_different_is_made_anew(tsv: Path, counted: list[int]) -> None:
    prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    prepare_pairs([[tsv]], SOURCE, TARGET, longest=49)
    prepare_pairs([[tsv]], TARGET, TARGET, longest=50)
    prepare_pairs([[tsv]], TARGET, SOURCE, longest=50)
    prepare_pairs([[tsv, tsv]], SOURCE, TARGET, longest=50)
    tsv.write_text(tsv.read_text() + "no\t아니\n")
    assert len(prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)) == 5
    prepare_documents([tsv], SOURCE)[0]
    assert len(counted) == 7


def damage(entry: Path, how: str) -> None:
    ids, manifest = entry / "source.ids", entry / "manifest.json"
    match how:
        case "a bit":
            ids.write_bytes(bytes([ids.read_bytes()[0] ^ 1]) + ids.read_bytes()[1:])
        case "cut":
            ids.write_bytes(ids.read_bytes()[:-2])
        case "file missing":
            (entry / "target.offsets").unlink()
        case "file too many":
            (entry / "more").touch()
        case "no manifest":
            manifest.unlink()
        case "manifest of nonsense":
            manifest.write_text("[1, 2]")
        case "manifest cut":
            manifest.write_text(manifest.read_text()[:50])
        case "manifest of other facts":
            manifest.write_text(manifest.read_text().replace('"longest": 50', '"longest": 51'))
        case "manifest too large":
            manifest.write_text(manifest.read_text() + " " * 1_000_001)
        case "a file in its place":
            shutil.rmtree(entry)
            entry.touch()
        case _:
            raise ValueError(how)


@pytest.mark.parametrize(
    "how",
    [
        "a bit",
        "cut",
        "file missing",
        "file too many",
        "no manifest",
        "manifest of nonsense",
        "manifest cut",
        "manifest of other facts",
        "manifest too large",
        "a file in its place",
    ],
)
def test_a_damaged_entry_is_made_anew(tsv: Path, cache: Path, counted: list[int], how: str) -> None:
    prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    damage(entries(cache)[0], how)
    again = prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    assert len(counted) == 2
    assert texts(again.source, SOURCE) == ENGLISH
    assert texts(prepare_pairs([[tsv]], SOURCE, TARGET, longest=50).target, TARGET) == KOREAN
    assert len(counted) == 2
    assert len(entries(cache)) == 1


def test_a_failure_leaves_nothing(tsv: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store._Writer, "rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    assert entries(cache) == []
    tsv.write_bytes(tsv.read_bytes() + b"\xff\n")
    with pytest.raises(UserError, match=r"pairs.tsv:5: expected UTF-8"):
        prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    assert entries(cache) == []


def test_what_a_killed_process_left_goes_after_a_day(tsv: Path, cache: Path) -> None:
    old, new, other = (cache / name for name in (".jari-unfinished-old", ".jari-unfinished-new", ".other"))
    for folder in (old, new, other):
        folder.mkdir(parents=True)
        (folder / "source.ids").touch()
    for folder in (old, other):
        os.utime(folder, (time.time() - 90_000, time.time() - 90_000))
    prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_a_cache_that_cannot_be_written(tsv: Path, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(UserError, match=r"expected to write the cache in \S*cache; got: .*; .* JARILAB_CACHE"):
        prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)


def test_an_entry_outlives_its_folder(tsv: Path, cache: Path) -> None:
    made = prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    cached_pairs = prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    shutil.rmtree(cache)
    assert texts(made.source, SOURCE) == texts(cached_pairs.source, SOURCE) == ENGLISH


PREPARE = """
import sys
from pathlib import Path
from jarilab.core.storage import content_cache
from jarilab.data.text.store import prepare_pairs, train_tokenizers
path = Path(sys.argv[1])
for _ in range(5):
    source, target = train_tokenizers([[path]], "words", 50, joint=False)
    made = prepare_pairs([[path]], source, target, longest=50)
    print(made.source.padded(range(4)).tolist(), made.counts)
    for entry in content_cache.cache_folder().iterdir():
        if not entry.name.startswith("."):
            (entry / "manifest.json").unlink(missing_ok=True)
"""


@pytest.mark.slow
def test_processes_at_once_do_not_hurt_each_other(tsv: Path, cache: Path) -> None:
    command = [sys.executable, "-c", PREPARE, str(tsv)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [process.communicate() for process in running]
    assert [error for _, error in results] == [""] * 2
    assert len({line for output, _ in results for line in output.splitlines()}) == 1
    assert len(entries(cache)) == 2


def test_what_another_process_finished_first_stays(
    tsv: Path, cache: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = store._Writer.rows
    finished: list[int] = []

    def rows_while_another_finishes(self: store._Writer, numbers: list[list[int]]) -> None:
        monkeypatch.setattr(store._Writer, "rows", rows)
        rows(self, numbers)
        if not finished:
            prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
            finished.extend(entry.stat().st_ino for entry in cache.iterdir() if not entry.name.startswith("."))

    monkeypatch.setattr(store._Writer, "rows", rows_while_another_finishes)
    made = prepare_pairs([[tsv]], SOURCE, TARGET, longest=50)
    assert len(counted) == 2
    assert [entry.stat().st_ino for entry in entries(cache)] == finished
    assert texts(made.target, TARGET) == KOREAN


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("JARILAB_CACHE", "~/mine")
    assert cache_folder() == Path("/home/somebody/mine")
    monkeypatch.delenv("JARILAB_CACHE")
    assert cache_folder() == Path("/caches/jarilab")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path("/home/somebody/.cache/jarilab")


def test_tokenizers_of_pairs(tsv: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = train_tokenizers([[tsv]], "words", 100, joint=False)
    both, same = train_tokenizers([[tsv]], "words", 100, joint=True)
    assert source.unknown("고양이 cat") == ["고양이"]
    assert target.unknown("고양이 cat") == ["cat"]
    assert same is both
    assert both.unknown("고양이 cat") == []
    assert train_tokenizers([[tsv]], "words", 100, joint=True, lowercase=True)[0].form.lowercase
    monkeypatch.setattr(store, "train", None)
    assert train_tokenizers([[tsv]], "words", 100, joint=False) == (source, target)
    tokenizer, again = train_tokenizers([[tsv]], "words", 100, joint=True)
    assert tokenizer == both
    assert tokenizer is again
    assert len(entries(cache)) == 3


def test_lengths_of_millions_of_rows_take_4_bytes_each():
    offsets = np.arange(0, 3_000_003, 3)
    rows = Encoded(np.zeros(3_000_000, np.uint16), offsets)
    tracemalloc.start()
    try:
        assert (rows.lengths == 3).all()
        assert rows.lengths_of(torch.tensor([0, 999_999])).tolist() == [3, 3]
        assert tracemalloc.get_traced_memory()[1] < 6_500_000
    finally:
        tracemalloc.stop()
