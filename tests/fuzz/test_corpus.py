"""Every reader gets its corpus, which holds what it reads and what it once fell over."""

from pathlib import Path

import pytest

from fuzz.targets import TARGETS, feed, remove_folder

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(scope="module", autouse=True)
def cleared():
    yield
    remove_folder()


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_reads_or_refuses(name, unchecked):
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    read = [feed(TARGETS[name], path.read_bytes()) for path in inputs]
    for length in (0, 1, 7):
        feed(TARGETS[name], inputs[0].read_bytes()[:length])
    assert len(read) == len(inputs)


def test_every_corpus_has_its_reader_and_all_are_small():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 200_000


def test_the_check_can_fail():
    def falls_over(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        feed(falls_over, b"x")
