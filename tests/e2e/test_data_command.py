"""`jarilab data TASK --check`: what is wrong with data, before training."""

import json
import os
import re
from pathlib import Path

import pytest

from jarilab.cli import main

KOREAN = Path(os.environ.get("JARILAB_DATA", "/nowhere")) / "tatoeba-ko-en" / "kor.txt"
TATOEBA = pytest.mark.skipif(not KOREAN.exists(), reason="JARILAB_DATA names no folder with tatoeba-ko-en/kor.txt")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JARILAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def findings(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict]:
    assert main(["data", *words, "--json"]) == 0
    return {finding["topic"]: finding for finding in json.loads(capsys.readouterr().out)}


def write(name: str, lines: list[str]) -> str:
    Path(name).write_text("".join(f"{line}\n" for line in lines))
    return name


def test_a_corpus_is_checked_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write("a.tsv", ["source\ttarget", *(f"eins {n}\tone {n}" for n in range(50)), "Eins 7!\tone 7", "\tx"])
    valid = write("v.tsv", ["eins 3\tone 3", "neu\tnew"])
    words = ["translation", "--check", train, "--valid", valid, "--vocab-size", "300", "--longest", "6"]
    found = findings(capsys, *words)
    assert found["repeats"]["count"] == 1
    assert (found["overlap"]["count"], found["overlap"]["total"]) == (1, 2)
    assert "first line is a title" in found["columns"]["text"]
    assert found["blank"]["count"] == 1
    assert {path.name for path in tmp_path.iterdir()} == {"a.tsv", "v.tsv", "cache"}
    assert main(["data", *words]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("serious  overlap")


def test_a_text_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"line number {n} of a text for a model" for n in range(82)]
    text = write("t.txt", [*lines, lines[1].upper()])
    found = findings(capsys, "text", "--check", text)
    assert found["repeats"]["count"] == found["overlap"]["count"] == 1
    assert "83 lines of 20 letters or more" in found["characters"]["text"]
    assert found["unknown"]["severity"] == "note"


def test_what_training_refuses_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "translation", "--check", write("a.tsv", ["ja\tyes"] * 40))
    assert found["training"]["severity"] == "serious"
    assert "40 pairs of 1 different sources" in found["training"]["text"]
    assert found["repeats"]["count"] == 39


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translation", "--check", "missing.tsv"], "expected a file; got a path that does not exist"),
        (["translation", "--check", "empty.tsv", "empty.tsv"], r"empty\.tsv hold no usable lines; .*; fill the file"),
        (["classify", "--check", "empty.tsv"], r"empty\.tsv holds no usable lines; .*; fill the file"),
        (["translation"], "expected --check FILE .* or --out FILE"),
        (["arithmetic", "--check", "a"], "expected a task that reads files, got arithmetic"),
        (["text", "--check", "a.tsv:0"], "expected a weight above 0"),
    ],
)
def test_what_cannot_be_checked_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("a.tsv", ["a\tb"])
    write("empty.tsv", [""])
    assert main(["data", *words]) == 2
    assert re.search(message, capsys.readouterr().err)


@TATOEBA
def test_a_real_corpus_that_slips_half_way(capsys: pytest.CaptureFixture[str]) -> None:
    """The example of the guide: a Korean line is lost in the middle of 3,798."""
    pairs = [line.split("\t")[:2] for line in KOREAN.read_text(encoding="utf-8").splitlines()]
    middle = len(pairs) // 2
    english = write("train.en", [pair[0] for pair in pairs[:-1]])
    korean = write("train.ko", [pair[1] for n, pair in enumerate(pairs) if n != middle])
    slip = findings(capsys, "translation", "--check", english, korean, "--vocab-size", "1000")["alignment"]
    assert slip["severity"] == "serious"
    assert "a target belongs to the source 1 line after it" in slip["text"]
    (line,) = (int(word.split(":")[1]) for word in slip["text"].split() if word.startswith("train.en:"))
    assert line == pytest.approx(middle, abs=30)
    whole = findings(capsys, "translation", "--check", str(KOREAN), "--vocab-size", "1000")
    assert whole["alignment"]["severity"] == "note"
    assert whole["columns"]["text"].endswith("columns 1 and 2 of 3")
