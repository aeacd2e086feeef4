"""The table of finished trials, and how a terminal shows it."""

import csv
import io
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

from helpers.runs import held, seal
from jarilab.cli.result_output import table_text
from jarilab.comparison.statistics import mean_interval
from jarilab.comparison.study import Trial
from jarilab.comparison.table import interval_of, tabulate
from jarilab.comparison.table_export import figures_csv, latex, trials_csv
from jarilab.core.errors import UserError
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import FORMAT
from jarilab.runs.outcomes import FILE, TRAINED, write_outcomes
from jarilab.tasks.metrics import METRICS


@pytest.fixture
def trials(tmp_path):
    """Two encodings and two seeds, finished: results written here."""
    made = []
    for seed, encoding in ((1, "none"), (1, "rotary"), (2, "none"), (2, "rotary")):
        experiment = Experiment.of("arithmetic:maximum=30", encoding, {"training.examples": 100}, seed, "float32")
        made.append(written(Trial(f"{encoding}-{seed}", experiment, tmp_path / f"{encoding}-{seed}")))
    return made


def written(trial):
    """The trial, with run.json and result.json as training leaves them."""
    exact = {"none": 0.1, "rotary": 0.8}[trial.experiment.encoding] + 0.02 * trial.experiment.seed
    result = {
        "hash": trial.experiment.hash,
        "metric": "exact_match",
        "exact_match": exact,
        "exact_match_+": exact + 0.1,
        "exact_match_-": exact - 0.1,
        "group_examples": {"+": 20, "-": 23},
        "parts": {"digits of the answer": {"1": {"value": exact - 0.05, "examples": 13}}},
        "peak_memory": 400 * 2**20,
        "examples": 43.0,
        "best": {"step": 1, "exact_match": exact + 0.01},
        "parameters": 1000,
        "trained_examples": 512,
        "steps": 4,
        "seconds": 8.0,
        "cpu_seconds": 6.0,
    }
    trial.folder.mkdir(exist_ok=True)
    record = {"format": FORMAT, "hash": trial.experiment.hash, "experiment": trial.experiment.as_dict()}
    record |= {"data": "", "kept": {}, "environment": {"threads": 1}}
    seal(trial.folder / "run.json", record)
    seal(trial.folder / "result.json", result)
    return trial


def test_the_table_has_the_means_of_the_seeds(trials):
    task = trials[0].experiment.resolved.build_task()
    table = tabulate(trials, task)
    assert [(row["encoding"], row["seed"]) for row in table["trials"]] == [
        ("none", 1), ("rotary", 1), ("none", 2), ("rotary", 2),
    ]  # fmt: skip
    assert [row["encoding"] for row in table["encodings"]] == ["none", "rotary"]
    rotary = table["encodings"][1]
    assert (rotary["mean"], rotary["best_mean"], rotary["trials"]) == pytest.approx((0.83, 0.84, 2))
    assert rotary["groups"] == pytest.approx({"+": 0.93, "-": 0.73})
    low, high = rotary["group_intervals"]["+"]
    ends = mean_interval([0.92, 0.94], 20)
    assert (low, high) == pytest.approx((ends.low, ends.high))
    part = rotary["parts"]["digits of the answer"]["1"]
    ends = mean_interval([0.77, 0.79], 13)
    assert (part["value"], part["low"], part["high"]) == pytest.approx((0.78, ends.low, ends.high))
    assert part["examples"] == 13
    assert (rotary["peak_memory"], rotary["held_out"]) == (400 * 2**20, 43)
    command = shlex.split(table["trials"][3]["command"])
    assert command[:5] == ["jarilab", "train", "arithmetic", "--out", str(trials[3].folder)]
    assert (rotary["seconds_per_step"], rotary["cpu_seconds"], rotary["parameters"]) == (2.0, 6.0, 1000)
    assert rotary["interval"] == "95 % over 2 seeds (Student's t) and 43 examples (Wilson)"
    (difference,) = table["differences"]
    assert difference["difference"] == pytest.approx(-0.7)
    assert difference["verdict"] == "rotary is better"
    assert table["ceiling"] == task.ceiling()
    assert table["metric"] == "exact_match"
    assert [row["value"] for row in table["trials"]] == pytest.approx([0.12, 0.82, 0.14, 0.84])
    assert [row["best_value"] for row in table["trials"]] == pytest.approx([0.13, 0.83, 0.15, 0.85])
    assert table["task"] == "arithmetic"
    assert table["describe"] == task.describe()


def with_outcomes(trials):
    """Keep an outcome of each of 43 examples."""
    for trial in trials:
        value = held(trial.folder / "result.json")["exact_match"]
        outcomes = (np.arange(43) < round(43 * value)).astype(float)
        path = trial.folder / "result.json"
        seal(path, held(path) | {"exact_match": outcomes.mean()})
        write_outcomes(trial.folder, trial.experiment.hash, {TRAINED: outcomes})


def test_pairs_are_compared_over_the_outcomes_that_trials_keep(trials):
    task = trials[0].experiment.resolved.build_task()
    with_outcomes(trials)
    table = tabulate(trials, task)
    assert table["pairs"]["outcomes"]
    assert "43 paired examples" in table["pairs"]["correction"]
    (trials[1].folder / FILE).unlink()
    independent = tabulate(trials, task)
    assert not independent["pairs"]["outcomes"]
    assert "were not kept" in independent["pairs"]["correction"]
    paired_row, row = table["differences"][0], independent["differences"][0]
    assert paired_row["difference"] == row["difference"]
    assert paired_row["low"] != row["low"]


def test_outcomes_of_another_value_are_refused(trials):
    with_outcomes(trials)
    write_outcomes(trials[1].folder, trials[1].experiment.hash, {TRAINED: np.eye(43)[0]})
    with pytest.raises(UserError) as error:
        tabulate(trials, trials[0].experiment.resolved.build_task())
    for part in (str(trials[1].folder / FILE), "0.81", "0.02", "remove the file"):
        assert part in str(error.value)


def test_the_upper_bound_decides_a_pair_of_one_seed(trials):
    task = trials[0].experiment.resolved.build_task()
    for trial in trials[:2]:  # with 43 examples, chance is far
        path = trial.folder / "result.json"
        seal(path, held(path) | {"examples": 4300.0})
    (row,) = tabulate(trials[:2], task)["differences"]
    assert task.ceiling()["all"] < 0.8
    assert (row["better"], row["limit"]) == ("rotary", task.ceiling()["all"])
    assert row["low"] is None
    task.usual_model = "recurrent"  # the bound is not one of the model that was trained
    (row,) = tabulate(trials[:2], task)["differences"]
    assert row["better"] is None


def test_no_interval_is_narrower_than_that_of_seeds_in_two_groups(trials):
    more = []
    for seed, encoding in ((3, "none"), (3, "rotary")):
        experiment = replace(trials[0].experiment if encoding == "none" else trials[1].experiment, seed=seed)
        more.append(written(Trial(f"{encoding}-3", experiment, trials[0].folder.parent / f"{encoding}-3")))
    path = more[1].folder / "result.json"
    seal(path, held(path) | {"exact_match": 0.1})
    none, rotary = tabulate([*trials, *more], trials[0].experiment.resolved.build_task())["encodings"]
    assert (none["low"], none["high"]) == (0, 1)
    assert "two groups" in none["interval"]
    assert "two groups" not in rotary["interval"]


def test_each_encoding_that_has_another_interval_is_named(trials):
    table = tabulate(trials[:3], trials[0].experiment.resolved.build_task())
    both = "95 % over 2 seeds (Student's t) and 43 examples (Wilson)"
    one = "95 % for sampling 43 examples; one seed, so nothing about others"
    text = table_text(table, trials[0].folder.parent)
    for how in (f"interval of none: {both}", f"interval of rotary: {one}"):
        assert f"\n{how}\n" in text
        assert f"\n% {how}\n" in latex(table)
    table = tabulate(trials, trials[0].experiment.resolved.build_task())
    assert f"\ninterval: {both}\n" in table_text(table, trials[0].folder.parent)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("path", [("groups", "+"), ("parts", "digits", "2", "value")])
def test_intervals_of_groups_and_parts_cover_the_mean_of_runs_that_toss_a_coin(path, seeds):
    chance = np.random.default_rng(1)
    studies, encodings, examples = 60, "abcdef", 500

    def row(learned):
        value = chance.binomial(examples, 0.98 if learned else 0.02) / examples
        return {"groups": {"+": value}, "parts": {"digits": {"2": {"value": value}}}}

    covered = []
    for _ in range(studies):
        rows = {name: [row(chance.random() < 0.5) for _ in range(seeds)] for name in encodings}
        for name in encodings:
            one = interval_of(name, rows, examples, METRICS["exact_match"], path)
            covered.append(one.low <= 0.5 <= one.high)
    assert np.mean(covered) >= 0.93


def test_unequal_budgets_are_refused(trials):
    more = {**trials[2].experiment.training, "examples": 200}
    written(replace(trials[2], experiment=replace(trials[2].experiment, training=more)))
    with pytest.raises(UserError) as error:
        tabulate(trials, trials[0].experiment.resolved.build_task())
    assert str(error.value) == (
        f"{trials[2].folder} cannot be compared: it holds another run than this comparison asks for; choose another "
        "--out, or give its settings:\n  training.examples: 100 here, 200 there"
    )


@pytest.mark.parametrize("other", [0, 3])
def test_a_trial_of_another_encoding_or_seed_is_refused(trials, other):
    written(replace(trials[2], experiment=trials[other].experiment))
    with pytest.raises(UserError, match=r"none-2 cannot be compared.*\n  (seed: 2 here, 1|model.encoding: none here)"):
        tabulate(trials, trials[0].experiment.resolved.build_task())


def scored(tmp_path, metric, **values):
    """The table of a task that is judged by another metric. values: for each encoding, one a seed."""
    trials = []
    named = [(seed, name) for seed in range(1, len(values["none"]) + 1) for name in values]
    for seed, encoding in named:
        if seed > len(values[encoding]):
            continue
        experiment = Experiment.of("arithmetic:maximum=30,operators=+", encoding, {}, seed, "float32")
        trial = written(Trial(f"{encoding}-{seed}", experiment, tmp_path / f"{encoding}-{seed}"))
        value = values[encoding][seed - 1]
        result = held(trial.folder / "result.json")
        result |= {"metric": metric, metric: value, "best": {"step": 1, metric: value + 1}}
        seal(trial.folder / "result.json", result)
        trials.append(trial)
    task = trials[0].experiment.resolved.build_task()
    task.metric = METRICS[metric]
    return {**tabulate(trials, task), "ceiling": None}


def test_a_table_of_another_metric(tmp_path):
    table = scored(tmp_path, "bleu", none=[20.1, 20.3], rotary=[30.1, 30.4])
    assert table["metric"] == "bleu"
    assert [row["value"] for row in table["trials"]] == [20.1, 30.1, 20.3, 30.4]
    none = table["encodings"][0]
    assert (none["mean"], none["best_mean"]) == pytest.approx((20.2, 21.2))
    assert none["groups"] == {}
    assert none["high"] == pytest.approx(20.2 + 12.7062 * 0.1, rel=1e-4), "not cut at 1"
    text = table_text(table, tmp_path)
    assert re.search(r"encoding +BLEU +95 % interval", text)
    assert re.search(r"none +20\.20 +18\.93 - 21\.47 +21\.20 +1,000  2\.0000  400 MB", text)
    assert "none - rotary: -10.05 (-10.69 to -9.41): rotary is better" in text
    assert "%" not in text.replace("95 %", "").replace("At most 5 %", "")
    assert "add seeds" not in text
    assert "best: " not in text


def test_a_table_of_one_seed_of_another_metric(tmp_path):
    table = scored(tmp_path, "loss", none=[1.5], rotary=[1.4])
    assert (table["encodings"][0]["low"], table["encodings"][0]["high"]) == (None, None)
    text = table_text(table, tmp_path)
    assert re.search(r"none +1\.5000 +2\.5000 +1,000", text)
    assert "best: the checkpoint with the best evaluation during training, over fewer examples" in text
    assert "none - rotary: +0.1000: one seed each, so not ranked: --seeds 5 would tell" in text
    assert f"to rank more pairs, add seeds: jarilab compare {tmp_path} --seeds 5\n" in text
    assert "interval: not known from one seed" in text


def test_encodings_that_share_no_seed_are_not_paired(trials):
    task = trials[0].experiment.resolved.build_task()
    unfinished = [{"encoding": "none", "seed": 2, "reason": "not trained yet"}]
    table = tabulate([trials[0], trials[3]], task, unfinished)
    assert [row["trials"] for row in table["encodings"]] == [1, 1]
    assert (table["differences"], table["pairs"]["seeds"]) == ([], 0)
    assert table["unfinished"] == unfinished
    assert table["pairs"]["missing"] == {"none": 1, "rotary": 1}
    again = f"to rank more pairs, train the missing seeds of none, rotary: jarilab compare {trials[0].folder.parent}\n"
    assert again in table_text(table, trials[0].folder.parent)


def test_pairs_go_by_the_seeds_that_all_have(trials):
    table = tabulate(trials[:3], trials[0].experiment.resolved.build_task())
    assert [row["trials"] for row in table["encodings"]] == [2, 1]
    (pair,) = table["differences"]
    assert pair["difference"] == pytest.approx(0.12 - 0.82), "of seed 1 alone"
    assert table["pairs"]["seeds"] == 1


def test_the_encoding_that_keeps_pairs_from_being_ranked_is_named(tmp_path):
    table = scored(tmp_path, "loss", none=[1.5, 1.51, 1.49], rotary=[1.4])
    (pair,) = table["differences"]
    assert pair["verdict"] == "one seed in common, so not ranked: rotary lacks 2 seeds; compare again to train them"
    text = table_text(table, tmp_path)
    assert f"to rank more pairs, train the missing seeds of rotary: jarilab compare {tmp_path}\n" in text
    assert "--seeds" not in text
    (tmp_path / "ranked").mkdir()
    ranked = scored(tmp_path / "ranked", "loss", none=[1.5, 1.51, 1.49], rotary=[0.4, 0.41])
    assert ranked["pairs"]["missing"] == {"rotary": 1}
    assert "to rank more pairs" not in table_text(ranked, tmp_path)


def test_memory_and_counts_that_a_result_lacks_are_left_out(trials):
    for trial in trials:
        path = trial.folder / "result.json"
        result = held(path)
        del result["group_examples"]
        seal(path, result | {"peak_memory": None})
    table = tabulate(trials, trials[0].experiment.resolved.build_task())
    assert {row["peak_memory"] for row in table["encodings"]} == {None}
    assert {str(row["group_intervals"]) for row in table["encodings"]} == {"{}"}
    assert "MB" not in table_text(table, trials[0].folder)
    assert ",0.93,," in figures_csv(table)
    assert latex(table)


# For other programs --------------------------------------------------------------------------------------------------


def test_every_figure_is_a_line_of_csv(trials):
    table = tabulate(trials, trials[0].experiment.resolved.build_task())
    rows = list(csv.DictReader(io.StringIO(figures_csv(table))))
    assert [(row["encoding"], row["checkpoint"], row["by"], row["of"]) for row in rows[5:]] == [
        ("rotary", "last", "", ""), ("rotary", "best", "", ""), ("rotary", "last", "group", "+"),
        ("rotary", "last", "group", "-"), ("rotary", "last", "digits of the answer", "1"),
    ]  # fmt: skip
    rotary = table["encodings"][1]
    assert [float(rows[5][name]) for name in ("value", "low", "high")] == [rotary[n] for n in ("mean", "low", "high")]
    assert [float(rows[7][name]) for name in ("low", "high")] == rotary["group_intervals"]["+"]
    assert [row["examples"] for row in rows[5:]] == ["43", "43", "20", "23", "13"]


def test_every_trial_is_a_line_of_csv_with_its_command(trials):
    table = tabulate(trials, trials[0].experiment.resolved.build_task())
    rows = list(csv.DictReader(io.StringIO(trials_csv(table))))
    assert [(row["encoding"], row["seed"]) for row in rows] == [
        ("none", "1"), ("rotary", "1"), ("none", "2"), ("rotary", "2"),
    ]  # fmt: skip
    assert [row["command"] for row in rows] == [row["command"] for row in table["trials"]]


def test_latex_escapes_special_characters(trials):
    table = tabulate(trials, trials[0].experiment.resolved.build_task())
    table["encodings"][1]["encoding"] = "my_encoding.py:Mine{50%}\\input~^&#$"
    table["describe"] = "two\nlines"
    text = latex(table)
    assert (
        r"my\_encoding.py:Mine\{50\%\}\textbackslash{}input\textasciitilde{}\textasciicircum{}\&\#\$ & 83.00\% &"
        in text
    )
    assert "% two lines" in text
    assert r"ceiling, on average & 62.49\%" in text
    assert text.count(r" \\") == 4
    assert "% none - rotary: rotary is better" in text
    assert "% jarilab train arithmetic --out" in text
