"""Runs and settings from before options had the names of today."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import jarilab
from helpers.runs import held as read_held
from helpers.runs import tiny, train
from jarilab.errors import UserError
from jarilab.models.base import registry as models
from jarilab.options import options_of
from jarilab.runs import former
from jarilab.runs.experiment import Experiment
from jarilab.training.state import Progress

TRAINING = {"epochs": "passes"}
DETECTION = {"min_digits": "fewest", "max_digits": "most"}
CAPTIONS = {"image_weight": "picture_weight"}


def renamed(options: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """With the names of then."""
    assert names.keys() <= options.keys()
    return {names.get(name, name): value for name, value in options.items()}


def without_later(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Without the options that a model got later."""
    later = former.LATER[model]
    assert later.items() <= options.items()
    return {name: value for name, value in options.items() if name not in later}


def without_positions(training: dict[str, Any]) -> dict[str, Any]:
    """Without the option of training that came later."""
    assert former.POSITIONS.items() <= training.items()
    return {name: value for name, value in training.items() if name not in former.POSITIONS}


def of_before(run: Path, folder: Path, task_names: dict[str, str]) -> tuple[Path, str]:
    """A copy of a run whose run.json was written before, and the hash that it was given then."""
    there = shutil.copytree(run, folder / "before")
    record = read_held(there / "run.json")
    held = record["experiment"]
    held["training"] = without_positions(renamed(held["training"], TRAINING))
    held["task_options"] = renamed(held["task_options"], task_names)
    held["model_options"] = without_later(held["model"], held["model_options"])
    record["data"] = record["data"].replace("images", "pictures")
    (there / "run.json").write_text(json.dumps(record))
    return there, hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()[:12]


def test_a_detector_of_before_opens_and_is_the_same_run(
    image_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, then = of_before(image_runs / "detection", tmp_path, DETECTION)
    opened, now = jarilab.load(run), jarilab.load(image_runs / "detection")
    assert opened.experiment == now.experiment
    assert opened.experiment.hash == json.loads((run / "run.json").read_text())["hash"] == then
    assert {"min_digits", "max_digits"} <= opened.experiment.task_options.keys()
    (one,), (other,) = (jarilab.predict(either, ["#3"], threshold=0) for either in (opened, now))
    assert one == other
    assert train(run, now.experiment)["hash"] == then
    assert "is finished already" in capsys.readouterr().err


def test_a_run_of_before_goes_on(tmp_path: Path) -> None:
    train(tmp_path / "run", tiny())
    run, then = of_before(tmp_path / "run", tmp_path, {})
    (run / "result.json").unlink()
    assert train(run, tiny())["hash"] == then


def test_a_painter_of_before_has_the_hash_of_then() -> None:
    experiment = Experiment.of("captions", settings={"task.image_weight": 7.5})
    record = experiment.as_dict()
    record["training"] = without_positions(renamed(record["training"], TRAINING))
    record["task_options"] = renamed(record["task_options"], CAPTIONS)
    record["model_options"] = without_later(record["model"], record["model_options"])
    again = Experiment.read(record, "run.json")
    assert again == experiment
    assert again.task_options["image_weight"] == 7.5
    assert again.hash == hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


@pytest.mark.parametrize("model", former.LATER)
def test_what_came_later_was_before_what_it_is_by_default(model: str) -> None:
    options = options_of(models.spec(model).target)
    for name, value in former.LATER[model].items():
        assert options[name].default == value, name


def test_every_model_with_such_layers_is_known() -> None:
    layered = {name for name in models.names() if former.LAYERS.keys() <= options_of(models.spec(name).target).keys()}
    assert layered == set(former.LATER)


@pytest.mark.parametrize("setting", [{"model.scale": "none"}, {"model.norm_kind": "rms"}, {"model.gated": True}])
def test_an_option_that_came_later_makes_another_run_where_it_is_used(setting: dict[str, Any]) -> None:
    before, now = Experiment.of("arithmetic"), Experiment.of("arithmetic", settings=setting)
    assert before.hash != now.hash
    ((name, value),) = setting.items()
    assert now.difference(before) == [f"{name}: {value} here, {before.model_options[name[6:]]} there"]
    assert Experiment.read(now.as_dict(), "run.json") == now


@pytest.mark.parametrize(
    ("task", "before", "now", "value"),
    [
        ("arithmetic", "training.passes", "training.epochs", 2),
        ("detection", "task.fewest", "task.min_digits", 2),
        ("detection", "task.most", "task.max_digits", 3),
        ("captions", "task.picture_weight", "task.image_weight", 3.0),
    ],
)
def test_a_setting_works_by_its_name_of_before_with_a_line_that_says_the_new_one(
    capsys: pytest.CaptureFixture[str], task: str, before: str, now: str, value: float
) -> None:
    expected = Experiment.of(task, settings={now: value})
    assert capsys.readouterr().err == ""
    assert Experiment.of(task, settings={before: value}) == expected
    assert capsys.readouterr().err == f"jarilab: {before} is called {now} now\n"


def test_an_option_given_by_both_its_names_is_refused() -> None:
    with pytest.raises(UserError, match=r"training\.passes is called training\.epochs now, and both were given; omit"):
        Experiment.of("arithmetic", settings={"training.passes": 3, "training.epochs": 2})


def test_a_name_of_before_means_nothing_to_other_tasks() -> None:
    with pytest.raises(UserError, match="reverse has no option 'fewest'"):
        Experiment.of("reverse", settings={"task.fewest": 2})


def test_the_progress_of_a_checkpoint_of_before_is_read() -> None:
    held = {"step": 5, "examples": 80, "seconds": 1.0, "cpu_seconds": 2.0, "losses": [0.5], "run": "abc"}
    progress = Progress.of({**held, "best": {"step": 3, "exact_match": 0.25}, "looks_without_better": 2})
    assert (progress.step, progress.evaluations_without_better, progress.losses) == (5, 2, [0.5])
    assert progress.best == {"step": 3, "exact_match": 0.25}


def test_the_data_of_before_are_told_from_others() -> None:
    assert former.same_data("60 captioned images of 16 x 16", "60 captioned pictures of 16 x 16")
    assert not former.same_data("60 captioned images of 16 x 16", "61 captioned pictures of 16 x 16")


@pytest.mark.parametrize(
    ("then", "lengths", "test_lengths"),
    [
        ({"shortest": 1, "longest": 25, "test_longest": None}, "1..25", None),
        ({"shortest": 3, "longest": 20, "test_longest": 40}, "3..20", "3..40"),
    ],
)
def test_lengths_of_before_are_ranges_now(then: dict[str, Any], lengths: str, test_lengths: str | None) -> None:
    options = {"task.lengths": lengths, "task.test_lengths": test_lengths or "null"}
    now = Experiment.of("copy", "rotary", options, 1, "float32")
    record = now.as_dict()
    record["training"] = renamed(record["training"], TRAINING)
    del record["training"]["positions"]
    record["model_options"] = without_later(record["model"], record["model_options"])
    kept = {name: value for name, value in record["task_options"].items() if "lengths" not in name}
    record["task_options"] = kept | then
    assert Experiment.read(record, "run.json") == now
    assert now.hash == hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


def test_lengths_that_could_not_be_said_then_make_another_run() -> None:
    made = [Experiment.of("copy", "rotary", {"task.test_lengths": text}) for text in ("null", "1..30", "2..30", "30")]
    assert len({experiment.hash for experiment in made}) == 4
