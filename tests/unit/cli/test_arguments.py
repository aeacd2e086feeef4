"""Flags of settings and runs, suggestions for unknown flags, and --help."""

import argparse
import re
import subprocess
from pathlib import Path

import pytest

import jarilab.cli.completion
from jarilab.cli.arguments import OTHER_NAMES, Parser, parse, parser_of
from jarilab.cli.completion import SHELLS, script, verbs
from jarilab.cli.setting_flags import settings_from
from jarilab.core.errors import UserError
from jarilab.core.storage.files import seal_record, write_json
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import FORMAT
from jarilab.tasks.base import registry as tasks

TASK = '''
from jarilab.tasks.base import Task


class Mine(Task):
    """d_model: of the page, 100 % at most. lines: how many."""

    model_options, training_size = {}, 1
    training_batch = loss = evaluate = None

    def __init__(self, *, d_model: int = 7, lines: bool = True):
        pass
'''


def parsed(*words: str) -> argparse.Namespace:
    return parse(words)[1]


def settings(*words):
    return settings_from(parsed("train", *words, "--out", "run"))


def helped(capsys, *words):
    """The output of --help in one line."""
    with pytest.raises(SystemExit) as end:
        parse([*words, "--help"])
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def refused(*words: str) -> str:
    """The error of an invalid command line."""
    with pytest.raises(UserError) as error:
        parse(words)
    return str(error.value)


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_prints_its_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert helped(capsys, verb).startswith(f"usage: jarilab {verb}")


def test_every_setting_has_a_flag():
    assert settings("arithmetic", "--d-model", "64") == {"model.d_model": "64"}
    assert settings("arithmetic", "--d-model=64") == settings("arithmetic", "--set", "model.d_model=64")
    assert settings("arithmetic:maximum=9", "--lr", "0.1") == {"training.lr": "0.1"}
    assert settings("arithmetic", "--encoding", "rotary:base=500") == {"model.encoding": "rotary:base=500"}
    assert settings("arithmetic", "--maximum", "99", "--seed", "3") == {"task.maximum": "99"}
    assert settings("arithmetic") == {}


def test_a_boolean_has_a_flag_for_no():
    assert settings("arithmetic", "--tied") == {"model.tied": True}
    assert settings("arithmetic", "--no-tied", "--no-balanced") == {"model.tied": False, "task.balanced": False}


def test_a_list_of_files_is_several_words():
    assert settings("translation", "--train", "a.de", "a.en") == {"task.train": ["a.de", "a.en"]}


def test_flags_depend_on_the_model():
    assert settings("translation", "--model", "recurrent", "--cell", "lstm") == {"model.cell": "lstm"}
    assert settings("translation", "--model=recurrent", "--cell", "lstm") == {"model.cell": "lstm"}
    with pytest.raises(UserError, match="unrecognized arguments: --cell lstm"):
        settings("translation", "--cell", "lstm")
    with pytest.raises(UserError, match=r"translation cannot be learned by the model vit: .*; use encoder_decoder"):
        settings("translation", "--model", "vit")
    with pytest.raises(UserError, match=r"unknown model 'recurent'; did you mean 'recurrent'\?"):
        settings("translation", "--model", "recurent")


@pytest.mark.parametrize(
    ("before", "given"),
    [
        ("--encoding my.py:Mine", {"model.encoding": "my.py:Mine"}),
        ("--encoding=my.py:Mine", {"model.encoding": "my.py:Mine"}),
        ("--set model.encoding=my.py:Mine", {"model.encoding": "my.py:Mine"}),
        ("--out text", {}),
        ("--json --tied", {"model.tied": True}),
        ("--train text sort --model recurrent", {"task.train": ["text", "sort"]}),
    ],
)
def test_the_value_of_a_flag_is_not_the_task(before, given):
    options = parsed("train", *before.split(), "translation", "--dropout", "0.5", "--out", "run")
    assert options.task == "translation"
    assert settings_from(options) == {**given, "model.dropout": "0.5"}


def test_words_after_two_hyphens_may_begin_with_one():
    parser = Parser("ask", "")
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--threads")
    parser.more = "sources"
    for words in (
        ["1", "--", "-3+5", "--x"],
        ["1", "--threads", "2", "3", "--", "-3+5"],
        ["--threads", "2", "--", "-5"],
    ):
        expected = [word for word in words if word not in ("--", "--threads", "2")]
        assert parser.read(words).sources == expected
    with pytest.raises(UserError, match=r"unrecognized arguments: -3\+5"):
        parser.read(["1", "--threads", "2", "-3+5", "--", "4"])


def test_options_of_a_verb_have_the_types_of_its_function():
    options = parsed("train", "arithmetic", "--seed", "3", "--threads", "2", "--precision", "float32")
    assert options.verb == {"seed": 3, "threads": 2, "precision": "float32"}
    told = refused("compare", "arithmetic", "--encodings", "none", "--out", "x", "--jobs", "0")
    assert told == "--jobs: expected 1 or more, got '0'"
    told = refused("train", "arithmetic", "--precision", "half")
    assert told.startswith("--precision: expected 'auto', 'float32' or 'bfloat16', got 'half'")


def test_a_power_of_ten_is_an_integer():
    assert parsed("train", "arithmetic", "--seed", "1e3").verb == {"seed": 1000}
    options = parsed("train", "arithmetic", "--examples", "1e6", "--batch-size", "2.5e2")
    training = Experiment.of("arithmetic", None, settings_from(options)).training
    assert (training["examples"], training["batch_size"]) == (1_000_000, 250)
    for text in ("1.5", "1e-3", "1.23e1", "1e400"):
        assert "expected an integer" in refused("train", "arithmetic", "--seed", text)


def test_two_values_of_a_setting_are_refused():
    assert settings("arithmetic", "--d-model", "64", "--set", "model.d_model=64") == {"model.d_model": "64"}
    with pytest.raises(UserError, match=r"one value of model\.d_model, got 128 and 64"):
        settings("arithmetic", "--d-model", "64", "--set", "model.d_model=128")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--d-modle", "--d-model"), ("--learning_rate", "--lr"), ("--optimiser", "--optimizer"), ("--ot", "--out")],
)
def test_a_misspelt_flag_suggests_the_closest(typed, meant):
    told = refused("train", "arithmetic", typed, "3")
    assert told == f"unrecognized arguments: {typed} 3; did you mean {meant}? see `jarilab train arithmetic --help`"


def test_an_unknown_flag_without_a_close_match_has_no_suggestion():
    told = refused("train", "arithmetic", "--frobnicate", "3")
    assert told == "unrecognized arguments: --frobnicate 3; see `jarilab train arithmetic --help`"


def test_a_flag_cannot_be_abbreviated():
    assert refused("train", "arithmetic", "--drop", "3").startswith("unrecognized arguments: --drop 3")


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("--learning-rate", "--lr"),
        ("--batch", "--batch-size"),
        ("--batch_size=8", "--batch-size"),
        ("--hidden-size", "--d-model"),
        ("--num-heads", "--n-heads"),
        ("--n-layers", "--n-encoder-layers or --n-decoder-layers"),
        ("--num-layers", "--n-encoder-layers or --n-decoder-layers"),
        ("--gpu", "--device cuda"),
    ],
)
def test_a_flag_of_another_program_suggests_ours(typed, suggested):
    assert f"{typed} 3; did you mean {suggested}? see" in refused("train", "arithmetic", typed, "3")


def test_every_alias_leads_to_existing_flags():
    flags = {flag for task in tasks.names() for flag in parser_of("train", [task]).flags}
    flags |= {flag for verb in ("data", "predict", "serve") for flag in parser_of(verb, []).flags}
    flags |= {"--beam-size", "--max-new-tokens", "--count"}  # of what a run answers
    assert set(OTHER_NAMES) <= flags
    assert all(flag != f"--{alias}" or "n-layers" in alias for flag, names in OTHER_NAMES.items() for alias in names)


def test_words_after_two_dashes_are_not_flags(run_of):
    assert parsed("predict", run_of("text"), "--", "--lr").sources == ["--lr"]


def test_a_pair_without_a_value_is_refused():
    with pytest.raises(
        UserError, match=r"^--set expects KEY=VALUE, got 'model.d_model'; write --set model.d_model=VALUE$"
    ):
        settings("arithmetic", "--set", "model.d_model")


# A file with one class -----------------------------------------------------------------------------------------------


def test_a_file_with_one_class_needs_no_class_name(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(TASK)
    assert settings(str(file), "--lines") == {"task.lines": True}
    assert settings(f"{file}:d_model=3", "--lines") == settings(f"{file}:Mine", "--lines")
    assert tasks.spec(str(file)).name == f"{file}:Mine"
    assert tasks.spec(f"{file}:d_model=3").options == {"d_model": 3}


# Runs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_of(tmp_path):
    """Makes the folder of a run with only its run.json."""

    def make(kind: str, **changes: object) -> str:
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        experiment = Experiment.of(kind, precision="float32").as_dict() | changes
        record = {"format": FORMAT, "data": "", "kept": {}, "environment": {"threads": 1}, "experiment": experiment}
        record["hash"] = Experiment(**experiment).hash
        write_json(folder / "run.json", seal_record(record))
        return str(folder)

    return make


def test_help_of_predict_lists_the_options_of_the_run(capsys, run_of):
    detection = helped(capsys, "predict", run_of("detection"))
    assert re.search(r"--threshold NUMBER [^-(]*\(default: 0\.5\)", detection)
    assert "--beam-size" not in detection
    assert "--temperature" not in detection
    arithmetic = helped(capsys, "predict", run_of("arithmetic"))
    assert re.search(r"--beam-size INTEGER [^-(]*\(default: 1\)", arithmetic)
    assert "--n-best INTEGER" in arithmetic
    assert "--beam-size INTEGER" in helped(capsys, "evaluate", run_of("arithmetic"))
    assert "--n-best" not in helped(capsys, "evaluate", run_of("arithmetic"))
    general = helped(capsys, "predict")
    assert "`jarilab predict RUN --help` also lists the options of that run" in general
    assert "--beam-size" not in general


def test_an_option_of_another_kind_of_run_lists_those_of_this_run(run_of):
    run = run_of("detection")
    assert refused("predict", run, "--beam-size", "3") == (
        f"unrecognized arguments: --beam-size 3; the options of this run are --threshold, --draw; "
        f"see `jarilab predict {run} --help`"
    )
    assert "; this run has no such options; see" in refused("evaluate", run, "--beam-size", "3")
    assert "did you mean --threshold?" in refused("predict", run, "--treshold", "3")


def test_files_to_measure_on_are_several_words(run_of):
    options = parsed("evaluate", run_of("translation"), "--data", "a.de", "a.en", "--beam-size", "2")
    assert (options.verb, options.answer) == ({"data": ["a.de", "a.en"]}, {"beam_size": 2})


def test_the_run_may_follow_its_options(run_of):
    run = run_of("text")
    options = parsed("predict", "--stop", "x", "--top-k", "5", run, "one", "--seed", "7", "two")
    assert (options.run, options.sources) == (run, ["one", "two"])
    assert options.answer == {"stop": ("x",), "top_k": 5, "seed": 7}


@pytest.mark.parametrize("seed", ["9" * 30, "-1", "one", "1.5"])
def test_a_seed_out_of_range_is_refused(seed, run_of):
    run = run_of("text")
    assert parsed("predict", run, "--seed", str(2**63 - 1)).answer == {"seed": 2**63 - 1}
    assert refused("predict", run, f"--seed={seed}").startswith("--seed: expected")


def test_the_file_of_a_run_is_executed_only_with_trust_code(run_of, tmp_path):
    file, trace = tmp_path / "theirs.py", tmp_path / "executed"
    file.write_text(f"open({str(trace)!r}, 'w').close()\n{TASK}")
    run = run_of("arithmetic", task=f"{file}:Mine", task_options={})
    for words in (["predict", run, "--help"], ["predict", run], ["evaluate", run, "--beam-size", "2"]):
        told = refused(*words)
        assert f"names the Python file {file}" in told
        assert not trace.exists()
    assert parsed("predict", run, "--trust-code").verb == {"trust_code": True}
    assert trace.exists()


# What --help lists ---------------------------------------------------------------------------------------------------


def test_help_lists_the_defaults_of_the_task(capsys):
    arithmetic = helped(capsys, "train", "arithmetic")
    bounds = r"--minimum INTEGER [^-(]*\(default: 0\) --maximum INTEGER [^-(]*\(default: 999\)"
    assert re.search(f"the task arithmetic: {bounds}", arithmetic)
    assert re.search(r"the model encoder_decoder: --d-model INTEGER [^(]*\(default: 64\) --n-heads INTEGER", arithmetic)
    assert "each time it is seen (default: 1000000)" in arithmetic
    assert "not set" not in arithmetic
    assert re.search(r"--norm {pre,post} [^)]*\(pre\) .*?\(default: pre\)", arithmetic)
    assert (
        "--optimizer {muon,adamw} muon (Muon for matrices, AdamW for the rest) or adamw (AdamW for all) (default: muon)"
        in (arithmetic)
    )
    assert "usage: jarilab train [options] [TASK] " in arithmetic
    translation = helped(capsys, "train", "translation", "--model", "recurrent")
    assert "the task translation: --train FILE [FILE ...] " in translation
    assert re.search(r"the model recurrent: --d-model INTEGER [^(]*\(default: 512\)", translation)
    assert "passes over the data, instead of examples (default: 12)" in translation
    assert "the highest learning rate (default: 0.002)" in translation
    assert "--cell" not in helped(capsys, "train", "translation")


def test_help_without_a_task_says_how_to_list_all_options(capsys):
    text = helped(capsys, "train")
    assert "`jarilab train TASK --help` lists all options" in text
    assert text.index("--encoding TEXT positional encoding") < text.index("--seed")
    assert "--d-model" not in text
    assert "--out RUN folder of the run (default: runs/TASK-ENCODING-SEED)" in text


def test_the_usage_names_required_flags(capsys):
    assert "usage: jarilab heads [options] --data FILE MODEL" in helped(capsys, "heads")


def test_help_names_flags_and_one_default(capsys):
    detection = helped(capsys, "train", "detection")
    assert "inside the feed-forward network (default: 192) --norm" in detection
    assert "--encoder-encoding TEXT encoding of the encoder alone (default: --encoding)" in detection
    assert "(ImageSets/Main/train.txt) (default: scenes)" in detection
    classify = helped(capsys, "train", "classify")
    assert "share of the texts to hold out if --valid is not given (default: 0.1)" in classify
    assert "--columns COLUMN [COLUMN ...] columns of a TSV or CSV" in classify


def test_compare_has_no_flag_for_one_encoding(capsys):
    text = helped(capsys, "compare", "arithmetic")
    assert "--encodings SPEC,SPEC,..." in text
    assert "--encoding TEXT" not in text
    assert "--d-model INTEGER" in text


def test_a_name_of_two_settings_needs_its_section(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    task = f"{tmp_path / 'mine.py'}:Mine"
    assert settings(task, "--task-d-model", "3", "--model-d-model", "64") == {
        "task.d_model": "3",
        "model.d_model": "64",
    }
    assert "--task-d-model INTEGER of the page, 100 % at most (default: 7)" in helped(capsys, "train", task)
    assert re.search(
        r"--d-model 3; did you mean --task-d-model or --model-d-model\?", refused("train", task, "--d-model", "3")
    )


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict", "compare", "walk"])
def test_every_option_of_a_verb_is_described(verb):
    flags = parser_of(verb, []).flags_by_dest.values()
    assert [flag.name for flag in flags if not flag.option.meaning] == []


# Completion ----------------------------------------------------------------------------------------------------------

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _jarilab
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def asked_once():
    """Inspects the parsers once for all shells."""
    found = verbs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jarilab.cli.completion, "verbs", lambda: found)
        yield


@pytest.fixture(scope="module")
def completion(tmp_path_factory, asked_once) -> Path:
    file = tmp_path_factory.mktemp("completion") / "jarilab.bash"
    file.write_text(script("bash"))
    return file


def test_the_script_of_bash_parses(completion):
    assert subprocess.run(["bash", "-n", completion], check=True, capture_output=True).stderr == b""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tr", {"train"}),
        ("ta", {"tasks"}),
        ("train ari", {"arithmetic"}),
        ("train arithmetic --enc", {"--encoding", "--encoder-encoding"}),
        ("train text --ce", set()),
        ("train arithmetic --encoding rotary2", {"rotary2d"}),
        ("train arithmetic --norm p", {"pre", "post"}),
        ("predict run --bea", {"--beam-size"}),
        ("evaluate run --bea", {"--beam-size"}),
        ("predict run --thresh", {"--threshold"}),
        ("completion b", {"bash"}),
        ("export run --to o", {"onnx"}),
    ],
)
def test_bash_completes(completion, tmp_path, typed, offered):
    words = ["jarilab", *typed.split()]
    done = subprocess.run(
        ["bash", "-c", ASK, "ask", completion, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == offered


def test_every_script_has_commands_and_options(asked_once):
    for shell in SHELLS:
        text = script(shell)
        for word in ("train", "arithmetic", "weight-decay", "threshold", "rotary"):
            assert word in text, shell
