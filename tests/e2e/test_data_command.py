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
    code = main(["data", *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == any(finding["severity"] == "serious" for finding in found)
    return {finding["topic"]: finding for finding in found}


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
    assert main(["data", *words]) == 1
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("serious  overlap")


def test_a_text_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"line number {n} of a text for a model" for n in range(82)]
    text = write("t.txt", [*lines, lines[1].upper()])
    found = findings(capsys, "text", "--check", text)
    assert found["repeats"]["count"] == found["overlap"]["count"] == 1
    assert found["overlap"]["severity"] == "serious"
    assert "83 lines of 20 letters or more" in found["characters"]["text"]
    assert found["unknown"]["severity"] == "note"


@pytest.mark.parametrize(("shared", "code"), [(0, 0), (1, 0), (2, 1)])
def test_the_exit_code_says_whether_a_measurement_is_spoiled(shared: int, code: int) -> None:
    """1 % of 200 held-out pairs is serious. Repeats and copies alone are not."""
    train = [f"eins {n}\tone {n}" for n in range(300)]
    held_out = [f"zwei {n}\ttwo {n}" for n in range(200 - shared)] + train[:shared]
    files = write("a.tsv", [*train, *train[:100]]), write("v.tsv", held_out)
    words = ["translation", "--check", files[0], "--valid", files[1], "--vocab-size", "300"]
    assert main(["data", *words]) == code


def test_labels_that_contradict_and_one_text_are_said_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{'ab'[n % 2]}\ttext {n}" for n in range(60)]
    assert main(["data", "classify", "--check", write("a.tsv", rows)]) == 0
    assert main(["data", "classify", "--check", write("b.tsv", [*rows, "a\ttext 7", "\tx"])]) == 1
    out = capsys.readouterr().out
    assert "b.tsv: 1 of 60 different texts (1.7 %) has several labels; keep the right one of each" in out
    assert "b.tsv: 1 row has no label or no text; it is left out" in out


def test_texts_that_differ_in_signs_may_differ_in_labels() -> None:
    smiles = [f"{label}\tthat was {n} {sign}" for n in range(30) for label, sign in (("good", ":)"), ("bad", ":("))]
    assert main(["data", "classify", "--check", write("a.tsv", smiles)]) == 0


def test_what_training_refuses_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "translation", "--check", write("a.tsv", ["ja\tyes"] * 40))
    assert found["training"]["severity"] == "serious"
    assert "40 pairs of 1 different source" in found["training"]["text"]
    assert found["repeats"]["count"] == 39


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translation", "--check", "missing.tsv"], "expected a file; got a path that does not exist"),
        (["translation", "--check", "a.tsv", "--valid", "no.tsv"], "no.tsv: expected a file; got a path that does not"),
        (["text", "--check", "a.tsv", "--valid", "no.txt"], "no.txt: expected a file; got a path that does not exist"),
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
