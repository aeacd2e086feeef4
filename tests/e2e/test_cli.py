"""The command line as a person meets it: what each command prints and how it ends, in a process of its own where that
could make a difference."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.command import command
from helpers.runs import held, seal
from helpers.trials import trials_in_this_process
from jarilab.runs.experiment import Experiment

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # as a person's terminal has it
TASK = "arithmetic:maximum=30"
OPTIONS = {
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.n_encoder_layers": 1,
    "model.n_decoder_layers": 1,
    "training.batch_size": 32,
    "training.examples": 640,
    "training.evaluations": 2,
    "training.evaluation_examples": 20,
}


def settings(**others):
    named = {**OPTIONS, **{key.replace("__", "."): value for key, value in others.items()}}
    return [word for key, value in named.items() for word in ("--set", f"{key}={value}")]


def without_waits(err):
    """What a command says, but for what it says it is doing where that takes long, as on a busy machine."""
    return re.sub(r"^jarilab: \S.* \.\.\.\n", "", err, flags=re.MULTILINE)


def jari(*arguments, text=b""):
    """Run a command in a process of its own: its exit code and its two streams."""
    words = [sys.executable, "-m", "jarilab", *map(str, arguments)]
    done = subprocess.run(words, input=text, capture_output=True, env=ENVIRONMENT, timeout=300, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


# Many commands in one process, to import torch once; `main` is all that `python -m jarilab` runs.
MANY = """
import contextlib, io, json, sys
from jarilab.cli import main
for arguments in json.loads(sys.stdin.read()):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except BaseException as error:
            code = repr(error)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def together(*commands):
    """Run commands one after the other in one process: the exit code and the two streams of each."""
    words = [[str(word) for word in command] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        input=json.dumps(words).encode(),
        capture_output=True,
        env=ENVIRONMENT,
        check=True,
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def commands(*every):
    """Run commands one after the other, here."""
    return [command(*words) for words in every]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny finished run, and what training it printed."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    ending = jari("train", TASK, "--encoding", "rotary", "--out", folder, "--threads", 1, "--json", *settings())
    return folder, ending


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


# Every command -------------------------------------------------------------------------------------------------------


def test_train_prints_one_json_object_and_all_else_elsewhere(trained):
    folder, (code, out, err) = trained
    assert code == 0, err
    result = json.loads(out)
    assert out.count("\n") == 1
    assert result == held(folder / "result.json")
    assert (result["encoding"], result["seed"], result["steps"]) == ("rotary", 1, 20)
    assert {"exact_match", "exact_match_+", "exact_match_-", "best", "ceiling", "hash", "parameters"} <= result.keys()
    # No terminal: plain lines, with step and loss.
    lines = without_waits(err).splitlines()
    assert all(re.match(r"run: step \d+/20  loss \d+\.\d+", line) for line in lines)
    assert any(line.startswith("run: step 20/20") for line in lines)
    assert {path.name for path in folder.iterdir()} == {
        ".lock", "run.json", "metrics.jsonl", "outcomes.json", "result.json", "checkpoints",
    }  # fmt: skip


def test_a_finished_run_trained_again_says_the_same(trained):
    folder, (_, before, _) = trained
    code, out, _ = command("train", TASK, "--encoding", "rotary", "--out", folder, "--json", *settings())
    assert (code, json.loads(out)) == (0, json.loads(before))


def test_data_writes_the_file(tmp_path):
    code, out, err = command(
        "data", "arithmetic:maximum=12", "--out", tmp_path / "data.txt", "--set", "task.operators=-"
    )
    assert (code, out, err) == (0, f"169 lines in {tmp_path / 'data.txt'}\n", "")
    lines = (tmp_path / "data.txt").read_text().splitlines()
    assert len(lines) == 169
    assert lines[:3] == ["0-0=0", "0-1=-1", "0-2=-2"]
    assert all(eval(line.replace("=", "==")) for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


def test_evaluate_measures_and_shows_the_ceiling(run):
    code, out, err = command("evaluate", run, "--json", "--threads", 1)
    assert (code, err) == (0, "")
    metrics, result = json.loads(out), json.loads((run / "result.json").read_text())
    assert out.count("\n") == 1
    assert metrics["exact_match"] == result["exact_match"]
    assert (metrics["step"], metrics["examples"], metrics["encoding"]) == (20, 43, "rotary")
    assert metrics["ceiling"] == result["ceiling"]
    code, out, err = command("evaluate", run)
    assert (code, err) == (0, "")
    assert f"{run}: rotary, 43 held-out examples" in out
    assert f"(without positions at most {metrics['ceiling']['all']:.2%} on average)" in out
    assert re.search(r"exact match \+ +\d+\.\d+%", out)


HARD_LINES = [
    (b"12+3\n", None),
    (b"12+x\n", "no token for 'x'; the model knows the characters 0123456789+-"),
    (b"\n", "the line is empty; write an expression such as 21+211"),
    (b"1" * 10_000 + b"\n", "10,000 characters are too many; expressions of this run have at most 5: shorten it"),
    (b"1+\xff2\n", "byte 3 is not UTF-8; save the file as UTF-8"),
    (b"7" * 3_000_000 + b"\n", "expected a line of 1,048,576 bytes at most, got 3,000,001"),
    (b"30-4\r\n", None),
    ("１+２\n".encode(), "no token for '１', '２'; the model knows the characters 0123456789+-"),
    (b"\0\n", "no token for '\\x00'; the model knows the characters 0123456789+-"),
    (b" 12 + 3 =\n", None),
    ("<\u2028b>\n".encode(), "no token for '<', '>', 'b', '\\u2028'; the model knows the characters 0123456789+-"),
    (b"30-4", None),
]


def test_predict_answers_every_line_that_can_be_read(run):
    code, out, err = command("predict", run, text=b"".join(line for line, _ in HARD_LINES))
    assert code == 2
    messages = [f"jarilab: line {n}: {message}" for n, (_, message) in enumerate(HARD_LINES, 1) if message]
    assert err.split("\n") == [*messages, ""]
    answers = out.removesuffix("\n").split("\n")
    assert len(answers) == len(HARD_LINES), "an answer stands beside its question"
    assert [not answer for answer in answers] == [message is not None for _, message in HARD_LINES]
    assert answers[0] == answers[9]
    assert answers[6] == answers[11]


def test_predict_prints_one_json_object_a_line(run):
    code, out, err = command("predict", run, "--json", text=b"\xef\xbb\xbf12+3\nx\n30-4\n")
    assert code == 2
    assert err.splitlines() == ["jarilab: line 2: no token for 'x'; the model knows the characters 0123456789+-"]
    first, second, third = (json.loads(line) for line in out.splitlines())
    assert (first["line"], first["input"], first["error"]) == (1, "12+3", None), "a byte order mark is no character"
    assert (second["line"], second["input"], second["answer"], second["tokens"]) == (2, "x", None, [])
    assert second["error"] == "no token for 'x'; the model knows the characters 0123456789+-"
    assert third["line"] == 3
    for one in (first, third):
        written = [token["token"] for token in one["tokens"]]
        assert "".join(written).removesuffix("<eos>") == one["answer"]
        product = 1.0
        for token in one["tokens"]:
            product *= token["probability"]
        assert product == pytest.approx(2.718281828459045 ** one["log_probability"])


def test_predict_with_nothing_to_answer(run):
    assert command("predict", run) == (0, "", "")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_fault(run):
    process = subprocess.Popen(
        [sys.executable, "-m", "jarilab", "predict", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip
    process.stdout.close()
    process.stdin.write(b"1+1\n" * 10)
    process.stdin.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(), without_waits(err)) == (0, "")


def test_walk_follows_a_head(run):
    code, out, err = command("walk", run, "--input", "12+1", "--site", "decoder.0.cross", "--head", 1)
    assert (code, err) == (0, "")
    assert re.match(r"12\+1 -> .*    encoding none, decoder\.0\.cross, head 1\n", out)
    assert re.search(r"weights: softmax of each row    \(\d x 4\)", out)
    assert "away from what the model itself computed." in out
    code, out, err = command("walk", run, "--input", "12+1", "--json")
    assert (code, err) == (0, "")
    walked = json.loads(out)
    assert out.count("\n") == 1
    assert (walked["input"], walked["site"], walked["head"], walked["encoding"]) == ("12+1", "encoder.0", 0, "rotary")
    assert walked["error"] < 1e-10
    assert [step["shape"] for step in walked["steps"] if step["name"] == "weights"] == [[4, 4]]


def test_walk_shows_what_the_divisor_does(run):
    code, out, err = command("walk", run, "--input", "12+1", "--softmax", "--json")
    assert (code, err) == (0, "")
    assert [divisor["name"] for divisor in json.loads(out)["divisors"]] == ["1", "sqrt(8)", "8"]


def test_a_source_is_a_word(run):
    both, beam, prompt, wrong = commands(
        ["predict", run, "12+3", "30-4"],
        ["predict", run, "--beam-size", "2", "12+3"],
        ["predict", run, "--beam-size", "2", "--prompt", "12+3"],
        ["predict", run, "x", "12+3"],
    )
    answers = both[1].splitlines()
    assert (both[0], len(answers), both[2]) == (0, 2, "")
    assert beam == prompt
    assert wrong[:2] == (2, f"\n{answers[0]}\n")
    assert wrong[2] == "jarilab: line 1: no token for 'x'; the model knows the characters 0123456789+-\n"


def test_walk_without_an_input_takes_an_example(run):
    code, out, err = command("walk", run, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["input"]


def test_train_without_a_folder_says_which(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--encoding", "RoPE:base=500", "--seed", 3, *settings(training__examples="6.4e1")]
    done = command("train", TASK, *options)
    assert done.returncode == 0, done.stderr
    folder = "runs/arithmetic-rotary_base=500-3"
    assert done.stderr.startswith(f"jarilab: training into {folder}\n")
    assert done.stdout.startswith(f"{folder}: rotary:base=500, ")
    experiment = json.loads((tmp_path / folder / "run.json").read_text())["experiment"]
    assert experiment["model_options"]["encoding"] == "rotary:base=500", "as it is called here"
    assert experiment["training"]["examples"] == 64


def test_a_refused_training_does_not_say_that_it_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = command("train", "text", "--train", "missing.txt")
    assert (code, out) == (2, "")
    assert err.startswith("jarilab: missing.txt: expected a file; got a path that does not exist"), err


@pytest.mark.slow
def test_a_terminal_without_input_says_that_it_waits(run):
    controller, terminal = pty.openpty()
    os.write(controller, b"1+1\n\x04")  # a line, and Ctrl-D
    done = subprocess.run(
        [sys.executable, "-m", "jarilab", "predict", run],
        stdin=terminal,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=300,
        check=False,
    )
    os.close(terminal)
    os.close(controller)
    assert without_waits(done.stderr) == "jarilab: type a line to answer; Ctrl-D on an empty line ends\n"
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)


# What there is -------------------------------------------------------------------------------------------------------


def test_runs_are_listed(run, tmp_path):
    shutil.copytree(run, tmp_path / "deep" / "done")
    going = shutil.copytree(run, tmp_path / "going", ignore=shutil.ignore_patterns("result.json"))
    lines = (going / "metrics.jsonl").read_text().splitlines()
    (going / "metrics.jsonl").write_text("".join(line + "\n" for line in lines if json.loads(line)["step"] <= 10))
    shutil.copytree(run, tmp_path / "never", ignore=shutil.ignore_patterns("result.json", "metrics.jsonl"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "notes").mkdir()
    as_json, as_text, nothing = commands(["runs", tmp_path, "--json"], ["runs", tmp_path], ["runs", tmp_path / "notes"])
    code, out, err = as_json
    assert (code, err) == (0, "")
    broken, done, not_yet, never = json.loads(out)["runs"]
    assert (broken["run"], broken["state"]) == (str(tmp_path / "broken"), "damaged")
    assert broken["problem"].startswith(f"{tmp_path / 'broken' / 'run.json'}")
    assert (done["run"], done["state"], done["step"]) == (str(tmp_path / "deep" / "done"), "finished", 20)
    assert (done["task"], done["encoding"], done["seed"]) == ("arithmetic", "rotary", 1)
    assert (done["metric"], done["size"] > 10_000, done["age"] >= 0) == ("exact_match", True, True)
    result = json.loads((run / "result.json").read_text())
    assert done["value"] == result["exact_match"]
    assert (not_yet["state"], not_yet["step"], not_yet["steps"]) == ("not finished", 10, 20)
    assert (not_yet["metric"], not_yet["value"]) == ("exact_match", json.loads(lines[9])["value"])
    assert (never["state"], never["step"], never["value"]) == ("never begun", None, None)
    _, out, _ = as_text
    lines = out.splitlines()
    assert lines[0].split() == ["run", "task", "encoding", "seed", "size", "changed", "state", "measured"]
    assert re.search(r"going +arithmetic +rotary +1 +0\.\d MB +\d+ \w+ ago +at step 10 of 20 +exact match", out)
    assert re.search(r"never +arithmetic +rotary .* never begun$", out, re.MULTILINE)
    assert nothing == (0, f"no runs in {tmp_path / 'notes'}\n", "")


def test_tasks_and_encodings_are_listed():
    tasks, encodings, both, table = commands(["tasks", "--json"], ["encodings", "--json"], ["tasks"], ["encodings"])
    code, out, err = tasks
    assert (code, err) == (0, "")
    found = {task["name"]: task for task in json.loads(out)["tasks"]}
    assert found["arithmetic"]["models"] == ["encoder_decoder", "decoder", "recurrent"]
    assert found["arithmetic"]["what"].startswith("All expressions i + j and i - j")
    options = {option["name"]: option for option in found["arithmetic"]["options"]}
    assert options["answers"]["choices"] == ["plain", "reversed", "padded"]
    code, out, err = encodings
    assert (code, err) == (0, "")
    found = {encoding["name"]: encoding for encoding in json.loads(out)["encodings"]}
    assert found["rotary"]["also"] == ["rope"]
    assert (found["rotary"]["axes"], found["rotary"]["hooks"]) == ([1], ["rotate"])
    assert found["none"]["hooks"] == []
    assert [option["name"] for option in found["rotary"]["options"]] == ["base", "fraction", "pairing"]
    _, out, _ = table
    assert re.search(r"^rotary +1 +rotate +anywhere +yes +0 +Su et al. 2021\n    Rotates pair i", out, re.MULTILINE)
    assert "arithmetic    encoder_decoder, decoder, recurrent  All expressions" in both[1]


def test_a_report_of_runs_is_written(run, tmp_path):
    ours = shutil.copytree(run, tmp_path / "<b>")
    shutil.copytree(run, tmp_path / "other")
    one, several, named, again = commands(
        ["report", ours, "--json"],
        ["report", ours, tmp_path / "other"],
        ["report", ours, "--out", tmp_path / "mine.html"],
        ["train", TASK, "--encoding", "rotary", "--out", ours, *settings()],
    )
    code, out, err = one
    told = "in any browser, or pass --open; it needs no network"
    assert (code, err) == (0, f"jarilab: open {ours / 'report.html'} {told}\n")
    assert json.loads(out) == {"report": str(ours / "report.html"), "runs": [str(ours)]}
    page = (ours / "report.html").read_text()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count('"curve":') == 1
    assert several[:2] == (0, f"{tmp_path / 'report.html'}\n")
    assert (tmp_path / "report.html").read_text().count('"curve":') == 2
    assert (named[0], (tmp_path / "mine.html").exists()) == (0, True)
    assert again[0] == 0, "it is still a run"


@pytest.mark.slow
def test_laws_of_an_encoding():
    code, out, err = command("laws", "none", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["encoding"] == "none"
    assert found["broken"] == 0
    assert found["holds"] == sum(law["verdict"] == "holds" for law in found["laws"]) > 5


# Mistakes ------------------------------------------------------------------------------------------------------------

TRAIN = ["train", TASK, "--out", "{new}"]
MISTAKES = {
    "command": (["trian", "arithmetic"], "unknown command 'trian'; did you mean 'train'? Known: card, causes,"),
    "no command": ([], "the following arguments are required: COMMAND; `jarilab --help` lists the options"),
    "task": (["train", "arithmetik", "--out", "{new}"], "unknown task 'arithmetik'; did you mean 'arithmetic'? Known:"),
    "encoding": ([*TRAIN, "--encoding", "rotery"], "unknown encoding 'rotery'; did you mean 'rotary'? Known: alibi,"),
    "part of a sum": ([*TRAIN, "--encoding", "none+lerned"], "unknown encoding 'lerned'; did you mean 'learned'?"),
    "encoding option": (
        [*TRAIN, "--encoding", "rotary:bse=500"],
        "rotary has no option 'bse'; did you mean 'base'? Options: base, fraction, pairing",
    ),
    "encoding value": (
        [*TRAIN, "--encoding", "rotary:base=many"],
        "rotary: base: expected a number, got 'many' (default",
    ),
    "encoding pair": (
        [*TRAIN, "--encoding", "rotary:base"],
        "rotary: expected key=value, got 'base'; write rotary:key=value,key=value",
    ),
    "task option": (
        ["data", "arithmetic:maxmum=9", "--out", "{new}"],
        "arithmetic has no option 'maxmum'; did you mean 'maximum'?",
    ),
    "key": ([*TRAIN, "--set", "model.d_modle=16"], "has no option 'd_modle'; did you mean 'd_model'?"),
    "section": ([*TRAIN, "--set", "modle.d_model=16"], "'modle.d_model'; did you mean 'model.d_model'?"),
    "value": ([*TRAIN, "--set", "model.d_model=wide"], "d_model: expected an integer"),
    "pair": ([*TRAIN, "--set", "model.d_model"], "--set expects KEY=VALUE, got 'model.d_model'; write --set model"),
    "infinite": ([*TRAIN, "--set", "training.clip=inf"], "training: clip: expected a finite number, got 'inf'"),
    "flag": ([*TRAIN, "--sed", "3"], f"arguments: --sed 3; did you mean --seed? see `jarilab train {TASK} --help`"),
    "setting flag": ([*TRAIN, "--d-modle", "16"], "unrecognized arguments: --d-modle 16; did you mean --d-model? see"),
    "device": ([*TRAIN, "--device", "cuda"], "finds no accelerator; use --device cpu or auto"),
    "layers": ([*TRAIN, "--n-layers", "3"], "did you mean --n-encoder-layers or --n-decoder-layers? see"),
    "setting twice": (
        [*TRAIN, "--d-model", "16", "--set", "model.d_model=32"],
        "one value of model.d_model, got 32 and 16",
    ),
    "setting value": ([*TRAIN, "--d-model", "wide"], "d_model: expected an integer"),
    "seed": ([*TRAIN, "--seed", "one"], "--seed: expected an integer"),
    "long seed": ([*TRAIN, "--seed", "9" * 30], "--seed: expected an integer of 9,223,372,036,854,775,807 at most"),
    "threads": ([*TRAIN, "--threads", "0"], "--threads: expected 1 or more, got '0'"),
    "no task": (["train"], "train expects a task, such as jarilab train arithmetic; or a run"),
    "no encodings": (["compare", TASK], f"required: --encodings, --out; `jarilab compare {TASK} --help` lists the"),
    "alias far from all": ([*TRAIN, "--encoding", "roep"], "unknown encoding 'roep'; did you mean 'rope'? Kno"),
    "nothing near": ([*TRAIN, "--encoding", "xyzzy"], "unknown encoding 'xyzzy'; Known: alibi,"),
    "family": ([*TRAIN, "--encoding", "relative"], "'relative' is more than one encoding ("),
    "odd head width": (
        [*TRAIN, "--encoding", "rotary", "--set", "model.d_model=60", "--set", "model.n_heads=4"],
        "rotary needs an even head width; got 15 (d_model=60, n_heads=4); use d_model=64, or fraction=0.933333",
    ),
    "width": (
        [*TRAIN, "--set", "model.d_model=18", "--set", "model.n_heads=4"],
        "d_model must be divisible by n_heads; got d_model=18, n_heads=4; use d_model=16 or 20",
    ),
    "short table": (
        [*TRAIN, "--encoding", "learned:positions=2"],
        "learned:positions=2 knows 2 positions, but the source side of arithmetic has 5; use positions=5",
    ),
    "cross": (
        [*TRAIN, "--set", "model.cross_encoding=sinusoidal"],
        "sinusoidal cannot be the encoding of cross-attention; use it in the encoder and the decoder",
    ),
    "large": (["data", "arithmetic:maximum=9999", "--out", "{new}"], "200,000,000 expressions do not fit into memory"),
    "small": (["data", "arithmetic:maximum=1", "--out", "{new}"], "8 expressions are too few to hold some out"),
    "file": (["data", TASK, "--out", "{file}/x"], "{file}/x cannot be written: Not a directory"),
    "no study": (["compare", "{folder}"], "{folder} is a folder and holds no study: it has no study.json; name a task"),
    "no encoding": (["compare", TASK, "--out", "{new}", "--encodings", ","], "--encodings: expected encodings, got"),
    "no seeds": (
        ["compare", TASK, "--out", "{new}", "--encodings", "none", "--seeds", "0"],
        "a comparison needs at least one seed, got 0",
    ),
    "twice": (
        ["compare", TASK, "--out", "{new}", "--encodings", "none,none"],
        "two trials would be called none-1, of none and none; name each encoding once",
    ),
    "tune": (
        ["compare", TASK, "--out", "{new}", "--encodings", "none", "--tune", "a,b"],
        "--tune: expected learning rates such as 0.002,0.004; got 'a,b'",
    ),
    "jobs": (
        ["compare", TASK, "--out", "{new}", "--encodings", "none", "--jobs", "0"],
        "--jobs: expected 1 or more, got '0'\n",
    ),
    "no run": (["evaluate", "{folder}"], "{folder} is not a run: it has no run.json"),
    "model as run": (["predict", "{model}", "1+1"], "{model} is not a run but a model of transformers"),
    "no folder": (["predict", "{new}"], "{new} does not exist; name the folder of a run, as `jarilab runs`"),
    "name of a model": (["predict", "{new}"], "No model is downloaded by its name: for one of Hugging Face, pass its"),
    "file as run": (["walk", "{file}", "--input", "1+1"], "{file} is not a run: it has no run.json"),
    "foreign folder": (["train", TASK, "--out", "{folder}"], "{folder} exists and is not a run; choose another"),
    "other run": (
        ["train", TASK, "--out", "{run}", "--encoding", "none", *settings()],
        "{run} holds another run; choose another --out, or give its settings:\n  model.encoding: none here, rotary",
    ),
    "folder of runs": (["evaluate", "{runs}"], "{runs} holds runs and is not a run itself; name one:\n  {runs}/one"),
    "walk of runs": (["walk", "{runs}"], "{runs} holds runs and is not a run itself; name one:\n  {runs}/one"),
    "no folder of runs": (["runs", "{new}"], "{new} does not exist; name a folder that holds runs"),
    "report of nothing": (["report", "{runs}/one"], "{runs}/one has no curve yet: nothing of it was trained"),
    "report into a folder": (["report", "{run}", "--out", "{folder}"], "{folder} is a folder; expected the name of a"),
    "shell": (["completion", "tcsh"], "invalid choice: 'tcsh' (choose from"),
    "words and prompt": (["predict", "{run}", "1+1", "--prompt", "1+1"], "as words or as --prompt, got both"),
    "another kind": (["predict", "{run}", "--threshold", "1"], "the options of this run are --beam-size,"),
    "site": (["walk", "{run}", "--input", "1+1", "--site", "encdr.0"], "unknown site 'encdr.0'; did you mean 'enco"),
    "head": (["walk", "{run}", "--input", "1+1", "--head", "2"], "encoder.0 has the heads 0 to 1, got 2"),
    "input": (["walk", "{run}", "--input", "1*1"], "no token for '*'; the model knows the characters 0123456789+-"),
    "laws": (["laws", "rotery"], "unknown encoding 'rotery'; did you mean 'rotary'?"),
    "no python file": ([*TRAIN, "--encoding", "mine.py:Mine"], "file with the encoding, got no file mine.py; write"),
}  # fmt: skip


@pytest.fixture(scope="module")
def mistakes(run, tmp_path_factory):
    """What became of all MISTAKES, and the folder they were made in."""
    base = tmp_path_factory.mktemp("mistakes")
    places = {"new": base / "new", "file": base / "file", "folder": base / "folder", "run": run}
    places["file"].write_text("mine")
    places["folder"].mkdir()
    (places["folder"] / "thesis.tex").write_text("mine")
    (base / "runs" / "one").mkdir(parents=True)
    (base / "model").mkdir()
    (base / "model" / "config.json").write_text("{}")
    places |= {"runs": base / "runs", "model": base / "model"}
    shutil.copy(run / "run.json", base / "runs" / "one")

    def filled(text):
        for name, path in places.items():
            text = text.replace(f"{{{name}}}", str(path))
        return text

    commands = [[filled(word) for word in command] for command, _ in MISTAKES.values()]
    endings = together(*commands)
    return dict(zip(MISTAKES, endings, strict=True)), filled, base


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_line_and_exits_2(mistakes, name):
    endings, filled, _ = mistakes
    code, out, err = endings[name]
    assert (code, out) == (2, "")
    assert filled(MISTAKES[name][1]) in err
    assert err.startswith("jarilab: ")
    assert "Traceback" not in err
    if name not in ("other run", "family", "folder of runs", "walk of runs"):
        assert without_waits(err).count("\n") == 1


def test_mistakes_leave_nothing_behind(mistakes):
    _, _, base = mistakes
    there = sorted(str(path.relative_to(base)) for path in base.rglob("*"))
    assert there == [
        "file",
        "folder",
        "folder/thesis.tex",
        "model",
        "model/config.json",
        "runs",
        "runs/one",
        "runs/one/run.json",
    ]
    assert (base / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["command", pytest.param("key", marks=pytest.mark.long)])
def test_a_mistake_in_a_process_of_its_own(tmp_path, name):
    command, message = MISTAKES[name]
    code, out, err = jari(*(word.replace("{new}", str(tmp_path / "new")) for word in command))
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_the_settings_of_a_task_are_listed():
    code, out, err = command("train", "arithmetic", "--help")
    assert (code, err) == (0, "")
    listed = " ".join(out.split())
    assert re.search(r"the task arithmetic:.* --maximum INTEGER .*\(default: 999\)", listed)
    assert re.search(r"the model encoder_decoder:.* --d-model INTEGER .*\(default: 64\)", listed)
    assert (
        "--optimizer {muon,adamw} muon (Muon for matrices, AdamW for the rest) or adamw (AdamW for all) (default: muon)"
        in listed
    )


# Files of others -----------------------------------------------------------------------------------------------------


def test_a_run_that_names_a_python_file_is_not_executed(run, tmp_path):
    theirs = shutil.copytree(run, tmp_path / "theirs")
    trace = tmp_path / "executed"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: pass\n")
    record = held(theirs / "run.json")
    record["experiment"]["model_options"]["encoding"] = f"{tmp_path / 'evil.py'}:Evil"
    record["hash"] = Experiment(**record["experiment"]).hash
    seal(theirs / "run.json", record)
    code, out, err = command("evaluate", theirs)
    assert (code, out) == (2, "")
    assert f"names the Python file {tmp_path / 'evil.py'}" in err
    assert "--trust-code" in err
    assert not trace.exists()


def test_a_damaged_checkpoint_is_refused_by_name(run, tmp_path):
    theirs = shutil.copytree(run, tmp_path / "theirs")
    newest = sorted((theirs / "checkpoints").iterdir())[-1]
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    code, out, err = command("predict", theirs, text=b"1+1\n")
    assert (code, out) == (2, "")
    assert f"jarilab: checkpoint {newest} is damaged: model.safetensors does not match its checksum" in err
    assert "Traceback" not in err


# Signals -------------------------------------------------------------------------------------------------------------


def started(folder, command, until, text):
    """A command that has come so far that the file `until` of its folder holds `text`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jarilab", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    end = time.monotonic() + 120
    while not any(text in path.read_text() for path in folder.glob(until)):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_a_signal_leaves_a_checkpoint_to_go_on_from(tmp_path, number, code):
    folder = tmp_path / "run"
    command = ["train", TASK, "--out", folder, "--threads", 1, *settings(training__examples=32 * 10_000)]
    process = started(tmp_path, command, "run/metrics.jsonl", '"step": 50,')
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, b"")
    assert err.decode().endswith("run the same command again to continue\n")
    (kept,) = (folder / "checkpoints").iterdir()
    step = int(kept.name.removeprefix("step-"))
    assert step >= 50
    process = started(tmp_path, command, "run/metrics.jsonl", f'"step": {step - step % 50 + 50},')
    process.send_signal(number)
    assert process.wait(60) == code
    process.communicate()
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(50, steps[-1] + 1, 50)), "gone on from there, not begun again"


# What is imported ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import jarilab",
        "import jarilab; jarilab.__version__; dir(jarilab)",
        "import sys; from jarilab.cli import main; main(['--help'])",
        "import sys; from jarilab.cli import main; main(['laws', '--help'])",
    ],
)
def test_nothing_heavy_is_imported_for_a_word_of_help(code):
    script = f"import sys\ntry:\n    exec({code!r})\nexcept SystemExit as end:\n    assert not end.code\n"
    script += "print(sorted({'torch', 'numpy', 'scipy', 'pydantic', 'rich'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=ENVIRONMENT)
    assert done.stdout.decode().splitlines()[-1] == "[]"


def test_help_and_version():
    code, out, err = jari("--help")
    assert (code, err) == (0, "")
    assert {"data", "train", "evaluate", "predict", "compare", "walk", "laws", "runs", "report"} <= set(out.split())
    code, out, err = jari("--version")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"jarilab \d+\.\d+\.\d+\S*\n", out)


# Comparing -----------------------------------------------------------------------------------------------------------

COMPARE = ["compare", TASK, "--encodings", "none,rotary:base=500", "--jobs", "2", *settings(training__examples=64)]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison in whose folder one trial first held another run, and what the two attempts printed."""
    folder = tmp_path_factory.mktemp("compare") / "why"
    other = folder / "none-1"
    other.mkdir(parents=True)
    (other / "notes.txt").write_text("mine")
    failed = jari(*COMPARE, "--out", folder, "--json")
    kept = {path: path.stat().st_mtime_ns for path in (folder / "rotary_base=500-1").rglob("*") if path.is_file()}
    shutil.rmtree(other)
    with trials_in_this_process():
        return folder, failed, kept, command(*COMPARE, "--out", folder, "--json")


@pytest.mark.long
@pytest.mark.slow
def test_a_trial_that_fails_leaves_the_others(compared):
    folder, (code, out, err), kept, _ = compared
    assert code == 0
    assert "jarilab: 1 of 2 trials failed; the others are kept, and the same command tries again:\n  none-1: " in err
    reason = f"{folder / 'none-1'} exists and is not a run; choose another --out"
    assert reason in err
    table = json.loads(out)
    assert [row["encoding"] for row in table["encodings"]] == ["rotary:base=500"]
    (left_out,) = table["unfinished"]
    assert (left_out["encoding"], left_out["seed"], left_out["reason"]) == ("none", 1, reason)
    assert "Traceback" not in err
    assert folder / "rotary_base=500-1" / "result.json" in kept


@pytest.mark.slow
def test_compare_writes_the_table_and_the_report(compared):
    folder, _, kept, (code, out, err) = compared
    assert code == 0, err
    table = json.loads(out)
    assert out.count("\n") == 1
    assert table == json.loads((folder / "table.json").read_text())
    assert err.endswith(f"jarilab: open {folder / 'report.html'} in any browser, or pass --open; it needs no network\n")
    assert [row["encoding"] for row in table["encodings"]] == ["none", "rotary:base=500"]
    for row in table["encodings"]:
        assert {
            "mean",
            "low",
            "high",
            "interval",
            "best_mean",
            "groups",
            "parameters",
            "seconds_per_step",
        } <= row.keys()
        assert row["low"] <= row["mean"] <= row["high"]
        assert set(row["groups"]) == {"+", "-"}
    for row in table["trials"]:
        assert (row["seed"], row["examples"], row["held_out"], row["steps"]) == (1, 64, 43, 2)
        assert json.loads((Path(row["run"]) / "result.json").read_text())["exact_match"] == row["value"]
    (difference,) = table["differences"]
    assert (difference["first"], difference["second"]) == ("none", "rotary:base=500")
    assert difference["verdict"].startswith("one seed each, so not ranked")
    assert 0 < table["ceiling"]["-"] < table["ceiling"]["all"] < table["ceiling"]["+"] < 1
    # The trial that was finished was not trained again.
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
def test_the_report_holds_what_it_shows(compared):
    folder = compared[0]
    page = (folder / "report.html").read_text(encoding="utf-8")
    (payload,) = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    payload = json.loads(payload)
    assert {"title", "task", "summary", "differences", "trials", "examples", "what_ran"} <= payload.keys()
    table = json.loads((folder / "table.json").read_text())
    assert payload["summary"] == table["encodings"]
    assert payload["task"]["ceiling"] == table["ceiling"]
    for trial in payload["trials"]:
        assert [row["examples"] for row in trial["curve"]] == [32, 64]
        assert trial["curve"][-1]["value"] == trial["value"]
    for example in payload["examples"]:
        assert [model["encoding"] for model in example["models"]] == ["none", "rotary:base=500"]
        bag, _ = example["models"]
        for site in bag["sites"]:
            assert site["trust"]["masked_weight"] == 0
            assert site["trust"]["rebuild_error"] < 1e-6
            assert site["equal_rows"] in (None, [0.0, 0.0]), "without positions equal tokens have equal rows"
    assert payload["what_ran"]["threads per trial"] == 1


@pytest.mark.slow
def test_a_trial_is_the_run_that_its_command_would_give(compared, tmp_path):
    folder = compared[0]
    again = tmp_path / "again"
    options = ["--encoding", "rotary:base=500", "--threads", 1, *settings(training__examples=64)]
    code, _, err = command("train", TASK, "--out", again, *options)
    assert code == 0, err
    for path in (again / "checkpoints").rglob("model.safetensors"):
        assert path.read_bytes() == (folder / "rotary_base=500-1" / path.relative_to(again)).read_bytes()


@pytest.mark.long
def test_compare_stopped_by_a_signal_stops_its_trials_and_goes_on(tmp_path):
    folder = tmp_path / "why"
    command = ["compare", TASK, "--encodings", "none,rotary", "--jobs", "2", "--out", folder]
    command += settings(training__examples=32 * 10_000)
    process = started(tmp_path, command, "why/rotary-1/metrics.jsonl", '"step": 50,')
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, b"")
    assert b"stopped after writing a checkpoint" in err
    assert list((folder / "rotary-1" / "checkpoints").iterdir()), "the trial wrote its checkpoint"
    # The lock is free, so nothing trains there any more.
    for trial in folder.glob("*-1"):
        with (trial / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on_and_trains_nothing_twice(tmp_path):
    folder = tmp_path / "why"
    words = ["compare", TASK, "--encodings", "none,rotary", "--jobs", "2", "--out", folder]
    words += settings(training__examples=32 * 150)
    process = started(tmp_path, words, "why/rotary-1/metrics.jsonl", '"step"')
    process.kill()
    process.communicate(timeout=60)
    assert json.loads((folder / "study.json").read_text())["encodings"] == ["none", "rotary"]
    # Its trials end with it, with a checkpoint each; the same command goes on from these.
    with trials_in_this_process():
        code, out, err = command("compare", folder, "--seeds", 1, "--json")
    assert code == 0, err
    assert [row["encoding"] for row in json.loads(out)["encodings"]] == ["none", "rotary"]
    for name in ("none-1", "rotary-1"):
        steps = [json.loads(line)["step"] for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        assert steps == sorted(set(steps)), "each step once"
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*/*.*")}
    with trials_in_this_process():
        code, out, err = command("compare", folder, "--encodings", "+alibi", "--json")
    assert code == 0, err
    assert [row["encoding"] for row in json.loads(out)["encodings"]] == ["none", "rotary", "alibi"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is full")
def test_a_full_disk_and_closed_streams_are_told_without_a_traceback(tmp_path: Path) -> None:
    jari = [sys.executable, "-m", "jarilab"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*jari, "tasks", "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "jarilab: standard output: No space left on device\n")
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m jarilab tasks >&-"], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    code, _, err = command("train", "arithmetic", "--out", tmp_path / ("x" * 300))
    assert code == 2
    assert "File name too long" in err
