"""Numbers out of range, for every numeric option of verbs, tasks, models, encodings and predictors."""

import math

import pytest

from jarilab import api
from jarilab.cli import main
from jarilab.cli.run_arguments import all_answer_options
from jarilab.comparison.launchers.resources import Resources
from jarilab.core.errors import UserError
from jarilab.core.options import TYPE_NAMES, options_of
from jarilab.encodings.base import registry as encodings
from jarilab.runs.task_settings import models_for, settings_of
from jarilab.tasks.base import registry as tasks

SENSELESS = ["nan", "inf", "-inf", "1e308", "-1e308", "1e-320"]
TOO_MANY = ["1" + "0" * 20, "-1" + "0" * 20]
"""For a count; to float32 it is a number like any other."""


def numbers():
    """Every numeric option, by owner and name."""
    verbs = (api.train, api.evaluate, api.predict, api.compare, api.walk)
    groups = {f"{verb.__name__}()": options_of(verb) for verb in verbs} | {"resources": options_of(Resources)}
    groups |= {name: options_of(encodings.spec(name).target) for name in encodings.names()}
    for task in tasks.names():
        groups |= {f"{task} {model}": settings_of(task, model) for model in models_for(tasks.spec(task).target)}
    for kind in ("options", "scoring"):
        groups |= {f"{kind} {number}": options for number, options in enumerate(all_answer_options(kind))}
    for owner, options in groups.items():
        for name, option in options.items():
            if option.kind in TYPE_NAMES.values():
                yield owner, name, option


def told(option, owner, text) -> str:
    """The error for a value; None if it is accepted and finite."""
    try:
        assert math.isfinite(option.read(owner, text))
    except UserError as error:
        return str(error)
    return ""


def test_no_option_accepts_a_number_that_tensors_cannot_hold():
    found = list(numbers())
    assert len(found) > 100
    for owner, name, option in found:
        for text in SENSELESS + (TOO_MANY if option.kind == TYPE_NAMES[int] else []):
            assert "got " in told(option, owner, text), f"{owner} takes {name}={text}"


@pytest.mark.parametrize("text", ["0", "-1"])
def test_the_error_names_the_number(text):
    said = [told(option, owner, text) for owner, _, option in numbers()]
    refused = [one for one in said if one]
    assert refused
    assert all("got " in one for one in refused)


FOLDERS = {"a\udcff": "expected the name of a folder in UTF-8", "/".join(["a"] * 2000): "at most 200"}


@pytest.mark.parametrize("out", FOLDERS, ids=["bytes", "deep"])
@pytest.mark.parametrize("verb", ["train copy", "compare copy --encodings none"])
def test_an_invalid_folder_is_refused_before_anything_is_written(out, verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*verb.split(), "--out", out]) == 2
    assert FOLDERS[out] in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


TYPED = [
    ("train copy --out run --threads 100000", "threads: expected 1 to"),
    ("train copy --out run --threads 0", "1 or more, got"),
    ("train copy --out run --lr 1e308", "a number from 1e-36 to 1e+36; got 1e+308"),
    ("train copy --out run --seed -1", "seed must be from 0 to 2^63 - 1, got -1"),
    ("train copy --out run --snapshots 100000000000000000000", "100000 or less"),
    ("compare copy --encodings none --out run --seeds 1000000000000", "10000 or less"),
    ("compare copy --encodings none --out run --jobs 0", "1 or more"),
    ("compare copy --encodings none --out run --tune 0.1,1e308", "a number from 1e-36 to 1e+36; got 1e+308"),
]


@pytest.mark.parametrize(("words", "told"), TYPED, ids=range(len(TYPED)))
def test_a_number_out_of_range_is_refused_with_the_range(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("set_to", "threads"), [("1", 1), ("0", None), ("2,1", None), ("", None), ("99999", "limit")])
def test_threads_are_those_of_the_environment_unless_an_option_says_more(
    set_to: str, threads: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", set_to)
    expected = {None: api.cores(), "limit": api.MAX_THREADS_PER_CORE * api.cores()}.get(threads, threads)
    assert api.checked_threads(None) == expected
    assert api.checked_threads(2) == 2
