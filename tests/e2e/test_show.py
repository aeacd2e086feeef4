"""`jarilab show`, as a person types it."""

import json
from pathlib import Path

import pytest

from helpers.command import command

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--length", "16", "--d-model", "16", "--n-heads", "2")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_page_is_written_and_told_of(here):
    said = command("show", "rotary,t5:buckets=8,distance=20,alibi", *SMALL)
    assert said.returncode == 0
    assert "open encodings.html in any browser" in said.stderr
    assert "t5:buckets=8,distance=20\n" in said.stdout
    assert "  - rotates queries and keys\n" in said.stdout
    page = (here / "encodings.html").read_text()
    assert page.count("<section>") == 3
    assert "Length 16, d_model 16, 2 heads, d_head 8." in page


def test_an_encoding_of_ones_own(here):
    said = command("show", f"{EXAMPLES / 'my_encoding.py'}:Kerple", *SMALL, "--save", "mine.html")
    assert (said.returncode, said.stderr) == (
        0,
        "jarilab: open mine.html in any browser, or pass --open; it needs no network\n",
    )
    assert "my_encoding.py" in (here / "mine.html").read_text()


def test_numbers_for_programs(here):
    said = command("show", "alibi", *SMALL, "--json", "--causal", "--seed", "3")
    told = json.loads(said.stdout)
    assert {name: told[name] for name in ("length", "d_model", "n_heads", "causal", "seed")} == {
        "length": 16,
        "d_model": 16,
        "n_heads": 2,
        "causal": True,
        "seed": 3,
    }
    lines = told["columns"][0]["drawings"][0]["lines"]
    assert lines[0]["y"][-2:] == [-0.0625, 0]
    assert list(here.iterdir()) == []  # nothing else was asked for


def test_files_for_slides(here):
    said = command("show", "sinusoidal,rotary", *SMALL, "--svg", "slides")
    assert "jarilab: 7 SVG files in slides" in said.stderr
    names = sorted(path.name for path in (here / "slides").iterdir())
    assert names[-1] == "sinusoidal-embed-waves.svg"
    assert not (here / "encodings.html").exists()


def test_the_softmax_of_ones_own_numbers(here):
    said = command("show", "--softmax", "0.3,0.4,0.1", "-1,2", "--divide", "64", "--save", "softmax.html")
    assert said.returncode == 0
    assert "    p   0.3420   0.3780   0.2800" in said.stdout
    assert "softmax of (-1, 2) / √64" in said.stdout
    assert (here / "softmax.html").read_text().count("<section>") == 4
    told = json.loads(command("show", "--softmax=-1,2", "--json").stdout)["softmax"]
    assert told[0]["weights"] == pytest.approx([0.047426, 0.952574], rel=1e-4)


MISTAKES = {
    "nothing": ([], "expected encodings or numbers, got neither; write such as rotary, or --softmax"),
    "name": (["rotery"], "unknown encoding 'rotery'; did you mean 'rotary'?"),
    "empty": ([","], "SPEC: expected encodings, got ','; write such as none,sinusoidal,rotary"),
    "length": (["t5", "--length", "0"], "--length: expected 2 or more, got '0'"),
    "heads": (["t5", "--d-model", "100"], "got d_model=100 and n_heads=8; use d_model=96"),
    "option": (["t5:bucket=4"], "t5 has no option 'bucket'; did you mean 'buckets'?"),
    "file": (["mine.py:Mine"], "file with the encoding, got no file mine.py; write"),
    "no encoding": (["words.py"], "words.py has no class that could be the encoding; write one that derives from"),
    "folder": (["t5", "--save", "."], ". is a folder; expected the name of a file"),
    "no folder": (["t5", "--save", "new/page.html"], "new/page.html: its folder does not exist; make it first"),
    "file for svgs": (["t5", *SMALL, "--svg", "words.py"], "words.py is a file; expected a folder to write SVG files"),
    "no numbers": (["--softmax", "0.3,abc"], "expected numbers with commas between them, got 'abc' in '0.3,abc'"),
    "one number": (["--softmax", "3"], "expected 2 to 256 finite numbers in a row, got 3.0; give such as 0.3,0.4"),
    "infinite": (["--softmax", "1,inf"], "expected 2 to 256 finite numbers in a row"),
    "divisor": (["--softmax", "1,2", "--divide", "0"], "divided by the root of a number above 0, got 0"),
    "both": (["t5", "--softmax", "1,2"], "--softmax expects numbers only, got t5 too; omit one of them"),
    "divided encoding": (["t5", "--divide", "2"], "--divide needs numbers; pass them with --softmax, or omit it"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told(here, name):
    (here / "words.py").write_text("x = 1\n")
    words, message = MISTAKES[name]
    code, out, err = command("show", *words)
    assert (code, message in err, "Traceback" in err) == (2, True, False), err
    if name != "file for svgs":
        assert out == ""
    assert [path.name for path in here.iterdir() if path.suffix != ".py" and path.name != "__pycache__"] == []
