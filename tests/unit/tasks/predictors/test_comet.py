"""COMET by another program: its command line and output are those of unbabel-comet 2.2.7."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

import jarilab
from jarilab.cli import main
from jarilab.core.errors import UserError
from jarilab.tasks.predictors.comet import Comet

PAIRS = [("ein Haus\r", "a house"), ("zwei\u2028Häuser", "two houses")]
PROGRAM = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
for flags in (("-s", "--sources"), ("-t", "--translations"), ("-r", "--references"), ("--model",)):
    parser.add_argument(*flags, required=True)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--only_system", action="store_true")
cfg = parser.parse_args()
read = [[line.strip() for line in open(path, encoding="utf-8").readlines()]
        for path in (cfg.sources, cfg.translations, cfg.references)]
json.dump(read, open({seen!r}, "w"))
assert len({{len(lines) for lines in read}}) == 1 and cfg.only_system
print("Seed set to 1", file=sys.stderr)
{end}
print("{{}}\\tscore: {{:.4f}}".format(cfg.translations, 0.81234))
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, end: str = "") -> Path:
    """A `comet-score` on PATH with an environment of its own, in which unbabel-comet is 2.2.7."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "site" / "unbabel_comet-2.2.7.dist-info").mkdir(parents=True, exist_ok=True)
    about = "Metadata-Version: 2.1\nName: unbabel-comet\nVersion: 2.2.7\n"
    (folder / "site" / "unbabel_comet-2.2.7.dist-info" / "METADATA").write_text(about)
    python, program = folder / "bin" / "python3.11", folder / "bin" / "comet-score"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} "$@"\n')
    program.write_text(f"#!{python}\n" + PROGRAM.format(seen=str(folder / "seen.json"), end=end))
    for file in (python, program):
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    return program


def test_the_program_is_called_with_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    scores = Comet.find("some/model").judge(PAIRS, ["a\nhouse", ""])
    assert scores == {"comet": 0.8123, "signature_comet": "some/model|unbabel-comet 2.2.7"}
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == [["ein Haus", "zwei Häuser"], ["a house", ""], ["a house", "two houses"]]


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("sys.exit('no model')", r"expected a score; got exit code 1 and ''; read its own"),
        ("print('x\\tscore: nan'); sys.exit()", "expected a score; got exit code 0 and 'x.tscore: nan'"),
    ],
)
def test_a_failure_of_the_program_is_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, message: str
) -> None:
    install(tmp_path, monkeypatch, end)
    with pytest.raises(UserError, match=message):
        Comet.find("some/model").judge(PAIRS, ["", ""])
    (tmp_path / "bin" / "comet-score").write_text("#!/nowhere/python\n")
    with pytest.raises(UserError, match="comet-score: expected a program that runs"):
        Comet.find("some/model").judge(PAIRS, ["", ""])


@pytest.mark.slow
def test_a_translation_is_judged_by_comet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"model.d_model": 8, "model.n_heads": 1, "model.n_encoder_layers": 1, "model.n_decoder_layers": 1}
    (tmp_path / "a.tsv").write_text("".join(f"eins {n}\tone {n}\n" for n in range(40)))
    settings = {"task.train": str(tmp_path / "a.tsv"), "task.vocab_size": 300, "training.examples": 40, **model}
    jarilab.train("translation", tmp_path / "run", settings=settings, threads=1)
    monkeypatch.setenv("PATH", "/nowhere")
    run = str(tmp_path / "run")
    assert main(["evaluate", run, "--comet"]) == 2
    assert "expected the program comet-score on PATH; got none; install it" in capsys.readouterr().err
    monkeypatch.undo()
    install(tmp_path, monkeypatch)
    assert main(["evaluate", run, "--comet"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\n  COMET +0\.8123\n", out)
    assert "  COMET Unbabel/wmt22-comet-da|unbabel-comet 2.2.7" in out
    assert "comet" not in jarilab.evaluate(run, threads=1)
    jarilab.train("number-words", tmp_path / "words", settings={**model, "training.examples": 8}, threads=1)
    assert main(["evaluate", str(tmp_path / "words"), "--comet"]) == 2
    assert "comet: expected a run that BLEU judges" in capsys.readouterr().err
