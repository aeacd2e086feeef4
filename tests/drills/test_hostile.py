"""No verb executes a Python file that a run names, unless --trust-code says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drills.hostile import CODE_FIELDS, VERBS, Attack, commands_on, seal, with_code
from helpers.command import command
from helpers.folders import bert
from helpers.runs import tiny, train
from jarilab.cli import commands
from jarilab.cli.arguments import parser_of

FROM_A_RUN = ("--from", "--against", "--model")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a harmless Hugging Face model and a run, both small."""
    folder = tmp_path_factory.mktemp("hostile")
    bert(folder / "bert")
    (folder / "bert" / "sums.txt").write_text("1+2\n3+4\n")
    train(folder / "strings" / "run", tiny(training__examples=32, training__evaluations=1))
    return folder


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "train"])
def test_no_verb_executes_a_file_that_a_run_names(root: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    run, canary = root / "strings" / "run", root / "canary"
    (run / "evil.py").write_text(f"open({str(canary)!r}, 'w').close()\nclass Mine: pass\n")
    canary.unlink(missing_ok=True)
    harmless = json.loads((run / "run.json").read_text())
    for field in CODE_FIELDS:
        seal(run, with_code(harmless, field, run / "evil.py"))
        said = command(*commands_on(run, "1+2", root)[verb])
        assert not canary.exists(), field
        assert "Traceback" not in said.stderr, said.stderr
    seal(run, harmless)


def test_every_option_that_takes_a_run_is_in_the_drill() -> None:
    words = [[str(word).partition("=")[0] for word in line] for line in commands_on(Path(), "", Path()).values()]
    for verb in commands.names():
        for flag in set(FROM_A_RUN) & set(parser_of(verb, []).flags):
            named = [line for line in words if line[0] == verb and flag in line]
            assert named or (verb, flag) == ("compare", "--model"), f"{verb} {flag}: add it to commands_on"
        if "RUN" in parser_of(verb, []).usage_words:
            assert [verb, "--help"] in [[line[0], line[-1]] for line in words], f"{verb}: add it to commands_on"


def test_a_trusted_file_is_executed(root: Path) -> None:
    """The canary is left when the code does run, so the test above can fail."""
    run, canary = root / "strings" / "run", root / "trusted"
    (run / "mine.py").write_text(f"open({str(canary)!r}, 'w').close()\nraise ValueError\n")
    harmless = json.loads((run / "run.json").read_text())
    seal(run, with_code(harmless, ("task",), run / "mine.py"))
    command("train", "--from", run, "--trust-code", "--help")
    assert canary.exists()
    seal(run, harmless)


def test_the_watch_hears_the_trials_of_a_comparison(root: Path, tmp_path: Path) -> None:
    run, attack = root / "strings" / "run", Attack(tmp_path)
    seal(run, json.loads((run / "run.json").read_text()))  # and so a study, whose trial is not trained yet
    assert attack.open_with(["compare", run.parent, "--seeds", "1"]) == "a trial"
    attack.watch.text = "train"  # a word of every trial
    assert attack.open_with(["compare", run.parent, "--seeds", "1"]) == "executed"
    assert len(attack.watch.seen) == 1
