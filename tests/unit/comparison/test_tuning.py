"""Learning rates, chosen with equal budgets."""

import json

import pytest

import jarilab
from helpers.runs import TINY
from jarilab.comparison.report import tuned_facts
from jarilab.comparison.study import Study, best_rates, tuned_values
from jarilab.core.errors import UserError
from jarilab.tasks.metrics import METRICS

TASK = "arithmetic:maximum=30"
SETTINGS = {**TINY, "training.examples": 32, "training.evaluations": 1}


def found(**values):
    return [
        {"encoding": name, "lr": rate, "value": value} for name, own in values.items() for rate, value in own.items()
    ]


def test_each_encoding_gets_the_rate_that_it_is_best_with():
    reached = found(none={0.1: 0.5, 0.2: 0.7, 0.3: 0.7}, t5={0.1: 0.9, 0.2: 0.1})
    assert best_rates(reached, METRICS["exact_match"]) == {"none": 0.2, "t5": 0.1}
    assert best_rates(reached, METRICS["loss"]) == {"none": 0.1, "t5": 0.2}


def test_all_encodings_are_tuned_with_the_same_budget_at_a_seed_that_is_not_compared(tmp_path):
    study = Study.of(TASK, ["none", "t5"], 2, SETTINGS, "float32", rates=[0.01, 0.02])
    trials = study.tuning(tmp_path)
    assert [trial.name for trial in trials] == ["none-rate=0.01", "none-rate=0.02", "t5-rate=0.01", "t5-rate=0.02"]
    assert {trial.experiment.seed for trial in trials} == {0}
    assert {trial.experiment.options.examples for trial in trials} == {32}
    compared = study.trials(tmp_path, {"none": 0.01, "t5": 0.02})
    rates = [(trial.name, trial.experiment.options.lr) for trial in compared]
    assert rates == [("none-1", 0.01), ("t5-1", 0.02), ("none-2", 0.01), ("t5-2", 0.02)]


def test_a_report_has_the_rate_of_each_encoding_alone():
    rows = [{"encoding": "none", "lr": 0.01}, {"encoding": "t5", "lr": 0.02}]
    assert tuned_facts({"encodings": rows, "tuning": [{}]}) == {"training: lr": "none 0.01, t5 0.02"}
    assert tuned_facts({"encodings": rows, "tuning": []}) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("trials_here")
def test_a_study_is_tuned_and_compared_with_what_was_best(tmp_path):
    how = {"encodings": ["none", "t5"], "settings": SETTINGS, "precision": "float32", "rates": [0.001, 0.02]}
    table = jarilab.compare(TASK, tmp_path / "study", **how)
    study = Study.read(tmp_path / "study")
    trials = study.tuning(tmp_path / "study")
    task = study.experiment.resolved.build_task()
    assert table["tuning"] == tuned_values(trials, task.metric)
    chosen = best_rates(table["tuning"], task.metric)
    assert {row["encoding"]: row["lr"] for row in table["encodings"]} == chosen
    for row in table["trials"]:
        run = json.loads((tmp_path / "study" / f"{row['encoding']}-1" / "run.json").read_text())
        assert run["experiment"]["training"]["lr"] == chosen[row["encoding"]]
    again = jarilab.compare(tmp_path / "study", train=False)
    for row, other in zip(table["trials"], again["trials"], strict=True):
        for key in row:
            assert row[key] == other[key], key
    assert again == table
    with pytest.raises(UserError, match=r"another study.*\n  learning rates to choose among: \(0\.1, 0\.2\) here"):
        jarilab.compare(TASK, tmp_path / "study", **how | {"rates": [0.1, 0.2]})


@pytest.mark.parametrize("rates", [[0.1], [0.1, 0.1], [0.0, 0.1], [-1.0, 0.1], [float("nan"), 0.1]])
def test_rates_that_cannot_be(tmp_path, rates):
    with pytest.raises(UserError, match="expected two different learning rates above 0 or more to choose among, got"):
        jarilab.compare(TASK, tmp_path / "study", encodings=["none"], rates=rates)
    assert not (tmp_path / "study").exists()


def test_a_fixed_rate_cannot_be_tuned(tmp_path):
    settings = {"training.lr": 0.1}
    with pytest.raises(UserError, match=r"the learning rate is tuned.*omit training\.lr"):
        jarilab.compare(TASK, tmp_path / "study", encodings=["none"], rates=[0.1, 0.2], settings=settings)
