"""Invalid text on the command line, and the order of answers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import language_run
from jarilab.cli import main


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_run(tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, language: Path) -> dict[str, str]:
    """Valid and invalid files by name, and two runs."""
    folder = tmp_path_factory.mktemp("files")
    contents = {
        "source": b"".join(b"%d eins\n" % n for n in range(200)),
        "target": b"".join(b"%d one\n" % n for n in range(200)),
        "short": b"".join(b"%d one\n" % n for n in range(190)),
        "empty": b"",
        "blank": b"\n \n",
        "latin": b"eins\nf\xfcnf\nzwei\n",
        "nul": b"eins\nzw\0ei\n",
        "columns": b"eins\tone\nzwei two\n",
    }
    found = {name: str(folder / name) for name in [*contents, "missing", "new"]}
    for name, content in contents.items():
        Path(found[name]).write_bytes(content)
    options = [
        "--d-model",
        "8",
        "--n-heads",
        "2",
        "--d-ff",
        "8",
        "--epochs",
        "1",
        "--vocab-size",
        "300",
        "--longest",
        "20",
    ]
    options += ["--n-encoder-layers", "1", "--n-decoder-layers", "1", "--evaluations", "1", "--threads", "1"]
    found["run"] = str(folder / "run")
    train = ["train", "translation", "--train", found["source"], found["target"], "--out", found["run"]]
    assert main([*train, *options]) == 0
    return found | {"language": str(language)}


TRAIN = ["train", "translation", "--out", "{new}", "--train"]
TEXT_TRAIN = ["train", "text", "--out", "{new}", "--train"]
MISTAKES: dict[str, tuple[list[str], str]] = {
    "lengths": (
        [*TRAIN, "{source}", "{short}"],
        "expected as many lines in both files; got 200 in {source} and 190 in {short}; line 191 is the first without",
    ),
    "lengths of held-out files": (
        [*TRAIN, "{source}", "{target}", "--valid", "{short}", "{target}"],
        "got 190 in {short} and 200 in {target}; line 191 is the first without a partner",
    ),
    "empty": ([*TRAIN, "{empty}", "{empty}"], "{empty} and {empty} hold no usable lines; expected text"),
    "blank": ([*TRAIN, "{blank}", "{blank}"], "{blank} and {blank} hold no usable lines; expected text"),
    "no utf-8": (
        [*TRAIN, "{latin}", "{target}"],
        "{latin}:2: expected UTF-8; got 0xfc at byte offset 1 of the line; save",
    ),
    "nul": ([*TRAIN, "{nul}", "{target}"], "{nul}:2: expected text; got a NUL"),
    "missing": ([*TRAIN, "{source}", "{missing}"], "{missing}: expected a file; got a path that"),
    "folder": ([*TRAIN, "{run}", "{target}"], "{run}: expected a file; got a folder; name a file"),
    "one column": ([*TRAIN, "{columns}"], "{columns}:2: expected two columns with a tab between; got one: 'zwei two'"),
    "three files": (
        [*TRAIN, "{source}", "{target}", "{short}"],
        "--train expects two files, source and target, or one of tab-separated values; got 3: write --train text.de",
    ),
    "no files": (["train", "translation", "--out", "{new}"], "or one of tab-separated values; got 0: write --train"),
    "model": (
        [*TRAIN, "{source}", "{target}", "--model", "detector"],
        "translation cannot be learned by the model detector: translation needs a model that can write token by token",
    ),
    "one sequence": (
        [*TRAIN, "{source}", "{target}", "--model", "decoder", "--no-joint"],
        "reads source and target as one sequence, got two; use --joint if the task has it",
    ),
    "vocabulary": (
        [*TRAIN, "{source}", "{target}", "--vocab-size", "5"],
        "bpe needs a size from 259 to 1,000,000; got 5; choose",
    ),
    "tokenizer": ([*TRAIN, "{source}", "{target}", "--tokenizer", "wrods"], "tokenizer: expected bpe"),
    "text missing": ([*TEXT_TRAIN, "{missing}"], "{missing}: expected a file; got a path that"),
    "text empty": ([*TEXT_TRAIN, "{empty}"], "holds no usable lines; expected text"),
    "text no utf-8": ([*TEXT_TRAIN, "{latin}"], "{latin}:2: expected UTF-8; got 0xfc at byte offset 1"),
    "beam": (
        ["predict", "{run}", "--beam-size", "0"],
        "a beam is 1 hypothesis wide or more, got beam_size 0; 1 is greedy",
    ),
    "beam of evaluate": (
        ["evaluate", "{run}", "--beam-size", "0"],
        "a beam is 1 hypothesis wide or more, got beam_size 0",
    ),
    "best": (
        ["predict", "{run}", "--n-best", "5", "--beam-size", "2"],
        "expected 1 to 2, got best 5",
    ),
    "no best": (["predict", "{run}", "--n-best", "0"], "expected 1 to 1, got best 0"),
    "penalty": (
        ["predict", "{run}", "--length-penalty", "nan"],
        "--length-penalty: expected a finite number, got 'nan'",
    ),
    "top p": (["predict", "{language}", "--prompt", "one", "--top-p", "2"], "top_p: expected a probability above 0"),
    "stop": (
        ["predict", "{language}", "--prompt", "one", "--stop", ""],
        "--stop: expected a text of one character or more",
    ),
    "temperature": (
        ["predict", "{language}", "--prompt", "one", "--temperature", "-1"],
        "temperature: expected 0 (the likeliest always)",
    ),
    "data": (["evaluate", "{run}", "--data", "{source}", "{short}"], "line 191 is the first without a partner"),
    "data missing": (["evaluate", "{run}", "--data", "{missing}"], "{missing}: expected a file; got a path that"),
    "data of a text": (
        ["evaluate", "{language}", "--data", "{source}", "{target}"],
        "--data expects one file or folder",
    ),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs a command with lines on standard input; returns its exit code and output."""

    def ask(command: list[str], lines: bytes = b"") -> tuple[int, str, str]:
        (tmp_path / "lines").write_bytes(lines)
        capsys.readouterr()
        with (tmp_path / "lines").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            code = main(command)
        return code, *capsys.readouterr()

    return ask


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_is_one_line_and_exits_2(asked: Any, places: dict[str, str], name: str) -> None:
    command, message = MISTAKES[name]
    code, out, err = asked([word.format_map(places) for word in command], b"one eins\n")
    assert (code, out) == (2, "")
    assert message.format_map(places) in err
    assert err.startswith("jarilab: ")
    assert err.count("\n") == 1
    assert not Path(places["new"]).exists()


LINES = "eins\n\n7 eins\neins \xff\n".encode("latin-1") + b"eins " * 99 + b"\n7 eins\n"


def test_answers_are_in_the_order_of_their_lines(asked: Any, places: dict[str, str]) -> None:
    code, out, err = asked(["predict", places["run"], "--beam-size", "2"], LINES)
    answers = out.split("\n")
    assert code == 2
    assert [re.sub(r"\d+ tokens", "N tokens", line) for line in err.splitlines()] == [
        "jarilab: line 2: the line is empty; write a text to answer",
        "jarilab: line 4: byte 6 is not UTF-8; save the file as UTF-8",
        "jarilab: line 5: N tokens are too many; this run reads at most 20: cut the line",
    ]
    assert len(answers) == 7
    assert answers[6] == answers[1] == answers[3] == answers[4] == ""
    assert answers[2] == answers[5]
    assert asked(["predict", places["run"]]) == (0, "", "")
    assert asked(["predict", places["run"], "--beam-size", "2", "--prompt", "7 eins"]) == (0, f"{answers[2]}\n", "")


def test_several_answers_per_line(asked: Any, places: dict[str, str]) -> None:
    command = ["predict", places["run"], "--beam-size", "3", "--n-best", "3"]
    code, out, _ = asked(command, LINES)
    rows = [line.split("\t") for line in out.split("\n")]
    assert code == 2
    answers = [[row for row in rows if row[0] == line] for line in "136"]
    assert all(1 <= len(same) <= 3 for same in answers), "answers that are written alike are one"
    assert [row[0] for row in rows] == [
        *(["1"] * len(answers[0])),
        "",
        *(["3"] * len(answers[1])),
        "",
        "",
        *(["6"] * len(answers[2])),
        "",
    ]
    scores = [[float(row[1]) for row in same] for same in answers]
    assert scores[1] == sorted(scores[1], reverse=True)
    assert scores[1] == scores[2]
    _, out, _ = asked([*command, "--json"], LINES)
    found = [json.loads(line) for line in out.splitlines()]
    assert [(row["line"], row["rank"]) for row in found if row["error"] is None] == [
        (int(same[0][0]), rank) for same in answers for rank in range(1, len(same) + 1)
    ]


def test_a_text_is_continued(asked: Any, places: dict[str, str]) -> None:
    command = ["predict", places["language"], "--max-new-tokens", "9", "--seed", "2"]
    code, out, err = asked([*command, "--prompt", "one two"])
    assert (code, err) == (0, "")
    assert out.startswith("one two")
    assert len(out) == len("one two") + 9 + 1
    assert asked(command, b"one two\none two\n") == (0, out + out, "")
    code, found, _ = asked([*command, "--json"], b"one two\n")
    assert json.loads(found) == {"prompt": "one two", "text": out[len("one two") : -1]}
    code, found, _ = asked([*command, "--prompt", "one two", "--stop", out[9:11]])
    assert (code, found) == (0, out[: out.index(out[9:11], 7)] + "\n")
