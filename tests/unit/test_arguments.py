"""Settings as options of their own: --width 64 is --set model.width=64, and the help lists what holds here."""

import re

import pytest

from jarilab.cli.arguments import parse
from jarilab.errors import UserError

TASK = '''
from jarilab.tasks.base import Task


class Mine(Task):
    """width: of the page, 100 % at most. lines: how many."""

    def __init__(self, *, width: int = 7, lines: bool = True):
        pass
'''


def settings(*words):
    return parse(["train", *words, "--out", "run"]).settings


def helped(capsys, *words):
    """What --help prints, in one line."""
    with pytest.raises(SystemExit) as end:
        parse([*words, "--help"])
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_setting_is_an_option_of_its_own():
    assert settings("arithmetic", "--width", "64") == {"model.width": "64"}
    assert settings("arithmetic", "--width=64") == settings("arithmetic", "--set", "model.width=64")
    assert settings("arithmetic:maximum=9", "--learning-rate", "0.1") == {"training.learning_rate": "0.1"}
    assert settings("arithmetic", "--encoding", "rotary:base=500") == {"model.encoding": "rotary:base=500"}
    assert settings("arithmetic", "--maximum", "99", "--seed", "3") == {"task.maximum": "99"}
    assert settings("arithmetic") == {}


def test_a_yes_or_no_is_a_word():
    assert settings("arithmetic", "--tied") == {"model.tied": True}
    assert settings("arithmetic", "--no-tied", "--no-balanced") == {"model.tied": False, "task.balanced": False}


def test_files_stand_one_behind_the_other():
    assert settings("translation", "--train", "a.de", "a.en") == {"task.train": ["a.de", "a.en"]}


def test_the_model_decides_which_options_there_are():
    assert settings("translation", "--model", "recurrent", "--cell", "lstm") == {"model.cell": "lstm"}
    assert settings("translation", "--model=recurrent", "--cell", "lstm") == {"model.cell": "lstm"}
    with pytest.raises(UserError, match="unrecognized arguments: --cell lstm"):
        settings("translation", "--cell", "lstm")
    with pytest.raises(UserError, match="arithmetic cannot be done by the model recurrent; use encoder_decoder"):
        settings("arithmetic", "--model", "recurrent")
    with pytest.raises(UserError, match=r"unknown model 'recurent'; did you mean 'recurrent'\?"):
        settings("translation", "--model", "recurent")


@pytest.mark.parametrize(
    ("before", "given"),
    [
        ("--encoding my.py:Mine", {"model.encoding": "my.py:Mine"}),
        ("--encoding=my.py:Mine", {"model.encoding": "my.py:Mine"}),
        ("--set model.encoding=my.py:Mine", {"model.encoding": "my.py:Mine"}),
        ("--out text", {}),
        ("--seed -1", {}),
        ("--json --tied", {"model.tied": True}),
        ("--train text sort --model recurrent", {"task.train": ["text", "sort"]}),
    ],
)
def test_what_an_option_takes_is_not_the_task(before, given):
    options = parse(["train", *before.split(), "translation", "--dropout", "0.5", "--out", "run"])
    assert options.task == "translation"
    assert options.settings == {**given, "model.dropout": "0.5"}


def test_numbers_of_threads_and_jobs_are_checked():
    for command in ("train arithmetic --threads 0", "compare arithmetic --encodings none --jobs 0"):
        flag = command.split()[-2]
        with pytest.raises(UserError, match=f"^{flag} must be 1 or more, got 0$"):
            parse([*command.split(), "--out", "run"])


def test_a_setting_given_twice_is_refused_where_it_differs():
    assert settings("arithmetic", "--width", "64", "--set", "model.width=64") == {"model.width": "64"}
    with pytest.raises(UserError, match=r"^model\.width is given twice, 128 and 64; give it once$"):
        settings("arithmetic", "--width", "64", "--set", "model.width=128")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--widht", "--width"), ("--learning_rate", "--learning-rate"), ("--optimiser", "--optimizer"), ("--ot", "--out")],
)
def test_a_misspelt_option_names_the_nearest(typed, meant):
    with pytest.raises(
        UserError, match=rf"^unrecognized arguments: {typed} 3; did you mean {meant}\?; `jarilab --help`"
    ):
        settings("arithmetic", typed, "3")


def test_no_option_is_guessed_from_its_beginning():
    with pytest.raises(UserError, match="unrecognized arguments: --wid 3"):
        settings("arithmetic", "--wid", "3")


def test_a_pair_without_a_value_is_refused():
    with pytest.raises(UserError, match=r"^--set expects KEY=VALUE, got 'model.width'; write --set model.width=VALUE$"):
        settings("arithmetic", "--set", "model.width")


def test_help_lists_the_defaults_of_the_task_at_hand(capsys):
    arithmetic = helped(capsys, "train", "arithmetic")
    assert "the task arithmetic: --minimum VALUE (0) --maximum VALUE (999)" in arithmetic
    assert re.search(r"the model encoder_decoder: --width VALUE .*?\(64\) --heads VALUE", arithmetic)
    assert "the budget (1000000)" in arithmetic
    assert "stop after so many looks without a better one (not set)" in arithmetic
    translation = helped(capsys, "train", "translation", "--model", "recurrent")
    assert "the task translation: --train FILE [FILE ...] two files, source and target, or one TSV (not set)" in (
        translation
    )
    assert re.search(r"the model recurrent: --width VALUE \(512\)", translation)
    assert "the budget as passes over the data instead (12)" in translation
    assert "its highest value (0.002)" in translation
    assert "--cell" not in helped(capsys, "train", "translation")


def test_help_without_a_task_says_how_to_get_more(capsys):
    text = helped(capsys, "train")
    assert "`jarilab train TASK --help` lists them with their defaults" in text
    assert "--width" not in text


def test_the_encodings_of_a_comparison_are_no_setting(capsys):
    text = helped(capsys, "compare", "arithmetic")
    assert "--encodings SPEC,SPEC,..." in text
    assert "--encoding VALUE" not in text
    assert "--width VALUE" in text


def test_a_name_that_means_two_things_says_which(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(TASK)
    task = f"{tmp_path / 'mine.py'}:Mine"
    assert settings(task, "--task-width", "3", "--model-width", "64") == {"task.width": "3", "model.width": "64"}
    assert "--task-width VALUE of the page, 100 % at most (7)" in helped(capsys, "train", task)
    with pytest.raises(UserError, match=r"unrecognized arguments: --width 3; did you mean --(task|model)-width\?"):
        settings(task, "--width", "3")


@pytest.mark.parametrize("seed", ["9" * 30, "-1", "one", "1e3"])
def test_a_seed_that_no_generator_takes_is_refused(seed):
    assert parse(["predict", "run", "--seed", str(2**63 - 1)]).seed == 2**63 - 1
    with pytest.raises(UserError, match=r"a seed must be from 0 to 2\^63 - 1, got"):
        parse(["predict", "run", "--seed", seed])
