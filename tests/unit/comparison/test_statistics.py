"""Intervals against published tables, and what a comparison says of them."""

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jarilab.cli.results import metrics_text, table_text
from jarilab.comparison import study
from jarilab.comparison.statistics import mean_interval, paired_difference, student_quantile, wilson
from jarilab.comparison.study import Trial, jobs_for, tabulate
from jarilab.errors import UserError
from jarilab.runs.experiment import Experiment
from jarilab.tasks.metrics import METRICS

# Student (1908), as every table has it: two-sided 95 % and 99 %.
PUBLISHED = {1: (12.706, 63.657), 2: (4.303, 9.925), 4: (2.776, 4.604), 9: (2.262, 3.250), 29: (2.045, 2.756)}


@pytest.mark.parametrize("freedom", PUBLISHED)
def test_student_quantiles_are_those_of_the_tables(freedom):
    half, ninety_nine = PUBLISHED[freedom]
    assert student_quantile(freedom) == pytest.approx(half, abs=5e-4)
    assert student_quantile(freedom, 0.99) == pytest.approx(ninety_nine, abs=5e-4)


def test_student_quantiles_in_closed_form():
    assert student_quantile(1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-12)
    assert student_quantile(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-12)


# Wilson (1927); the examples of Newcombe (1998), table I, method 3.
@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_what_newcombe_printed(hits, count, low, high):
    assert wilson(hits / count, count) == pytest.approx((low, high), abs=5e-5)


@given(count=st.integers(1, 10**5), hits=st.integers(0, 10**5))
def test_wilson_is_that_of_scipy(count, hits):
    hits = min(hits, count)
    ends = stats.binomtest(hits, count).proportion_ci(method="wilson")
    assert wilson(hits / count, count) == pytest.approx((ends.low, ends.high), rel=1e-12, abs=1e-12)


@given(count=st.integers(1, 10**7), share=st.floats(0, 1))
def test_wilson_holds_the_share_and_stays_within_0_and_1(count, share):
    low, high = wilson(share, count)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1


@given(count=st.integers(1, 10**5), hits=st.integers(0, 10**5))
def test_wilson_is_where_the_score_test_turns(count, hits):
    # The ends solve |p - share| = z sqrt(p (1 - p) / n), which is how the interval is defined.
    share = min(hits, count) / count
    for end in wilson(share, count):
        if 0 < end < 1:
            assert abs(end - share) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / count), rel=1e-5, abs=1e-7)


def test_the_interval_of_three_seeds_by_hand():
    interval = mean_interval([0.50, 0.54, 0.58], held_out=1000)
    half = 4.302653 * 0.04 / math.sqrt(3)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.54, 0.54 - half, 0.54 + half), rel=1e-6)
    assert interval.how == "95 % over 3 seeds (Student's t)"


def test_an_interval_of_shares_ends_at_0_and_1():
    assert mean_interval([0.9, 1.0], 10).high == 1.0
    assert mean_interval([0.0, 0.1], 10).low == 0.0


def test_the_interval_of_one_seed_is_that_of_its_examples():
    interval = mean_interval([0.25], held_out=40_000)
    assert (interval.low, interval.high) == wilson(0.25, 40_000)
    assert interval.how == "95 % for sampling 40,000 examples; one seed, so nothing about others"


def test_equal_seeds_have_an_interval_of_no_width():
    interval = mean_interval([0.7, 0.7, 0.7], 10)
    assert (interval.low, interval.high) == pytest.approx((0.7, 0.7))


def test_a_difference_is_paired():
    # The seeds differ by far more than the encodings: unpaired, nothing could be said.
    half = 4.302653 * 0.01 / math.sqrt(3)
    ends = paired_difference([0.2, 0.5, 0.8], [0.1, 0.41, 0.69])
    assert ends == pytest.approx((0.1 - half, 0.1 + half), rel=1e-6)
    assert paired_difference([0.2], [0.1]) is None
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([0.2, 0.3], [0.1])


def rows(**measured):
    return [
        {"encoding": name, "seed": seed, "value": value}
        for name, values in measured.items()
        for seed, value in enumerate(values, 1)
    ]


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([0.9, 0.92, 0.91], [0.1, 0.12, 0.1], "a is better"),
        ([0.1, 0.12, 0.1], [0.9, 0.92, 0.91], "b is better"),
        ([0.5, 0.9, 0.1], [0.4, 0.2, 0.8], "below the seed noise; not ranked"),
        ([0.5, 0.5], [0.5, 0.5], "below the seed noise; not ranked"),
        ([0.99], [0.01], "one seed each, so not ranked: --seeds 3 would tell chance from encoding"),
    ],
)
def test_verdicts(a, b, verdict):
    found = study._difference("a", "b", rows(a=a, b=b), METRICS["exact_match"])
    assert found["verdict"] == verdict
    assert (found["first"], found["second"]) == ("a", "b")
    assert found["difference"] == pytest.approx(sum(a) / len(a) - sum(b) / len(b))
    if len(a) == 1:
        assert (found["low"], found["high"]) == (None, None)
    else:
        assert found["low"] <= found["difference"] <= found["high"]


@pytest.mark.parametrize(
    ("metric", "a", "b", "verdict"),
    [
        ("bleu", [30.1, 30.6, 30.3], [20.0, 20.6, 20.1], "a is better"),
        ("bleu", [20.0, 20.6, 20.1], [30.1, 30.6, 30.3], "b is better"),
        ("loss", [1.50, 1.52, 1.51], [1.40, 1.43, 1.42], "b is better"),
        ("loss", [1.40, 1.43, 1.42], [1.50, 1.52, 1.51], "a is better"),
        ("loss", [1.4, 1.9, 1.6], [1.5, 1.3, 1.8], "below the seed noise; not ranked"),
    ],
)
def test_verdicts_go_by_what_is_better(metric, a, b, verdict):
    assert study._difference("a", "b", rows(a=a, b=b), METRICS[metric])["verdict"] == verdict


def test_what_is_no_share_has_an_interval_without_ends_at_0_and_1():
    interval = mean_interval([0.1, 31.3], 1000, share=False)
    half = 12.7062 * 15.6
    assert (interval.low, interval.high) == pytest.approx((15.7 - half, 15.7 + half), rel=1e-4)
    assert interval.how == "95 % over 2 seeds (Student's t)"


def test_one_seed_says_nothing_of_what_is_no_share():
    interval = mean_interval([31.3], 1000, share=False)
    assert (interval.mean, interval.low, interval.high) == (31.3, None, None)
    assert interval.how == "none: one seed, so nothing about others"


@given(trials=st.integers(1, 200), cores=st.integers(1, 128))
def test_jobs_leave_no_core_idle_and_none_crowded(trials, cores):
    jobs = jobs_for(trials, cores)
    assert 1 <= jobs <= trials
    assert jobs >= min(trials, cores)
    assert jobs < 2 * cores
    rounds = -(-trials // jobs)
    last = trials - (rounds - 1) * jobs
    assert jobs - last < rounds, "no round could be smaller by more than one"


BY_HAND = [(1, 2, 1), (2, 2, 2), (3, 2, 3), (4, 2, 2), (5, 2, 3), (9, 4, 5)]


@pytest.mark.parametrize(("trials", "cores", "jobs"), BY_HAND)
def test_jobs_by_hand(trials, cores, jobs):
    assert jobs_for(trials, cores) == jobs


# The table -----------------------------------------------------------------------------------------------------------


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
        "examples": 43.0,
        "best": {"step": 1, "exact_match": exact + 0.01},
        "parameters": 1000,
        "trained_examples": 512,
        "steps": 4,
        "seconds": 8.0,
        "cpu_seconds": 6.0,
    }
    trial.folder.mkdir(exist_ok=True)
    record = {"format": 1, "hash": trial.experiment.hash, "experiment": trial.experiment.as_dict()}
    record |= {"data": "", "kept": {}, "environment": {}}
    (trial.folder / "run.json").write_text(json.dumps(record))
    (trial.folder / "result.json").write_text(json.dumps(result))
    return trial


def test_the_table_has_the_means_of_the_seeds(trials):
    task = trials[0].experiment.task_instance()
    table = tabulate(trials, task)
    assert [(row["encoding"], row["seed"]) for row in table["trials"]] == [
        ("none", 1), ("rotary", 1), ("none", 2), ("rotary", 2),
    ]  # fmt: skip
    assert [row["encoding"] for row in table["encodings"]] == ["none", "rotary"]
    rotary = table["encodings"][1]
    assert (rotary["mean"], rotary["best_mean"], rotary["trials"]) == pytest.approx((0.83, 0.84, 2))
    assert rotary["groups"] == pytest.approx({"+": 0.93, "-": 0.73})
    assert (rotary["seconds_per_step"], rotary["cpu_seconds"], rotary["parameters"]) == (2.0, 6.0, 1000)
    assert rotary["interval"] == "95 % over 2 seeds (Student's t)"
    (difference,) = table["differences"]
    assert difference["difference"] == pytest.approx(-0.7)
    assert difference["verdict"] == "rotary is better"
    assert table["ceiling"] == task.ceiling()
    assert table["metric"] == "exact_match"
    assert [row["value"] for row in table["trials"]] == pytest.approx([0.12, 0.82, 0.14, 0.84])
    assert [row["best_value"] for row in table["trials"]] == pytest.approx([0.13, 0.83, 0.15, 0.85])
    assert table["task"] == "arithmetic"
    assert table["describe"] == task.describe()


def test_unequal_budgets_are_refused(trials):
    more = {**trials[2].experiment.training, "examples": 200}
    written(replace(trials[2], experiment=replace(trials[2].experiment, training=more)))
    with pytest.raises(UserError) as error:
        tabulate(trials, trials[0].experiment.task_instance())
    assert str(error.value) == (
        f"{trials[2].folder} cannot be compared: it holds another run than this comparison asks for; choose another "
        "--out, or give its settings:\n  training.examples: 100 here, 200 there"
    )


@pytest.mark.parametrize("other", [0, 3])
def test_a_trial_of_another_encoding_or_seed_is_refused(trials, other):
    written(replace(trials[2], experiment=trials[other].experiment))
    with pytest.raises(UserError, match=r"none-2 cannot be compared.*\n  (seed: 2 here, 1|model.encoding: none here)"):
        tabulate(trials, trials[0].experiment.task_instance())


@pytest.mark.parametrize("seeds", [0, -1])
def test_a_comparison_without_seeds_is_refused(tmp_path, seeds):
    with pytest.raises(UserError, match=f"a comparison needs at least one seed, got {seeds}"):
        study.run("arithmetic", tmp_path, ["none"], seeds, {}, "float32", None, 1)


def test_an_encoding_named_twice_is_refused(tmp_path):
    with pytest.raises(UserError, match="two trials would be called rotary-1, of rotary and rotary; name"):
        study.run("arithmetic", tmp_path / "out", ["rotary", "rotary:base=10000"], 1, {}, "float32", None, 1)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_built_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(UserError, match="learned:positions=2 knows 2 positions"):
        study.run("arithmetic:maximum=30", tmp_path / "out", ["none", "learned:positions=2"], 1, {}, "float32", None, 1)
    assert not (tmp_path / "out").exists()


def test_trials_go_seed_by_seed(tmp_path):
    pairs = [(seed, encoding) for seed in (1, 2) for encoding in ("none", "rotary:base=500")]
    trials = study._trials(tmp_path, [Experiment.of("arithmetic", spec, {}, seed, "float32") for seed, spec in pairs])
    assert [trial.name for trial in trials] == ["none-1", "rotary_base=500-1", "none-2", "rotary_base=500-2"]


def scored(tmp_path, metric, **values):
    """The table of a task that is judged by another metric. values: for each encoding, one a seed."""
    trials = []
    for seed, encoding in ((seed, name) for seed in range(1, len(values["none"]) + 1) for name in values):
        experiment = Experiment.of("arithmetic:maximum=30,operators=+", encoding, {}, seed, "float32")
        trial = written(Trial(f"{encoding}-{seed}", experiment, tmp_path / f"{encoding}-{seed}"))
        value = values[encoding][seed - 1]
        result = json.loads((trial.folder / "result.json").read_text())
        result |= {"metric": metric, metric: value, "best": {"step": 1, metric: value + 1}}
        (trial.folder / "result.json").write_text(json.dumps(result))
        trials.append(trial)
    task = trials[0].experiment.task_instance()
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
    assert re.search(r"none +20\.20 +18\.93 - 21\.47 +1,000", text)
    assert "none - rotary: -10.05 (-10.69 to -9.41): rotary is better" in text
    assert "%" not in text.replace("95 %", "")


def test_a_table_of_one_seed_of_another_metric(tmp_path):
    table = scored(tmp_path, "loss", none=[1.5], rotary=[1.4])
    assert (table["encodings"][0]["low"], table["encodings"][0]["high"]) == (None, None)
    text = table_text(table, tmp_path)
    assert re.search(r"none +1\.5000 +1,000", text)
    assert "none - rotary: +0.1000: one seed each, so not ranked: --seeds 3 would tell" in text
    assert "interval: none: one seed, so nothing about others" in text


def test_what_was_measured_is_read_by_its_metric():
    measured = {
        "encoding": "rotary",
        "metric": "bleu",
        "examples": 500.0,
        "bleu": 31.25,
        "chrf": 55.0,
        "perplexity": 4.2,
    }
    measured |= {"exact_match": 0.125, "signature": "nrefs:1", "best": {"step": 3, "bleu": 32.0}, "steps": 9}
    lines = [" ".join(line.split()) for line in metrics_text(measured, "run").split("\n")]
    assert lines == [
        "run: rotary, 500 held-out examples",
        "exact match 12.50%",
        "BLEU 31.25",
        "chrF 55.00",
        "perplexity 4.200",
        "sacreBLEU nrefs:1",
        "best on the way 32.00 at step 3",
    ]


def test_long_names_of_what_was_measured_do_not_break_the_column():
    measured = {"encoding": "none", "metric": "exact_match", "examples": 5, "exact_match": 0.5, "loss": 1.0, "steps": 9}
    text = metrics_text({**measured, "exact_match_reconstructed": 0.25, "loss_of_ink": 2.0}, "run")
    _, *rows = text.split("\n")
    assert "  exact match reconstructed   25.00%" in rows
    assert "  loss of ink                 2.0000" in rows
    assert len({len(row) for row in rows}) == 1


# Trials under way ----------------------------------------------------------------------------------------------------


class Told(list):
    """In place of the progress on the terminal."""

    __enter__ = __exit__ = lambda self, *_: self

    def update(self, name, row):
        self.append((name, row))


class Ended:
    """A trial's process that has ended."""

    def __init__(self, returncode):
        self.returncode = returncode

    def poll(self):
        return self.returncode


def test_rows_that_come_together_are_told_as_one(tmp_path, monkeypatch):
    (trial,) = study._trials(tmp_path, [Experiment.of("arithmetic", "none", {}, 1, "float32")])
    trial.folder.mkdir()
    process, told, batches = Ended(None), Told(), [[2, 3, 4], [], [5, 6]]

    def write(steps):
        with (trial.folder / "metrics.jsonl").open("a") as file:
            file.writelines(
                json.dumps({"step": s, "loss": s / 2} | ({"measured": "3 %"} if s == 3 else {})) + "\n" for s in steps
            )

    def tick(_):
        write(batches.pop(0))
        process.returncode = None if batches else 0

    write([1])  # of a run that was cut off
    monkeypatch.setattr(study, "_start", lambda *_: process)
    monkeypatch.setattr(study, "TrainingProgress", lambda names: told)
    monkeypatch.setattr(study.time, "sleep", tick)
    study._train_all([trial], 1)
    assert told == [("none-1", {"step": 4, "loss": 2.0, "measured": "3 %"}), ("none-1", {"step": 6, "loss": 3.0})]


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (
            2,
            "jarilab: 3 lines were left out\njarilab: run holds another run:\n  seed: 1 here\n",
            "run holds another run:\n    seed: 1 here",
        ),
        (1, "jarilab: noted\nTraceback:\n  File\nValueError: x\n", "ValueError: x"),
    ],
)
def test_a_trial_that_fails_is_told_without_the_programs_name(tmp_path, monkeypatch, code, log, reason):
    (trial,) = study._trials(tmp_path, [Experiment.of("arithmetic", "none", {}, 1, "float32")])
    (tmp_path / "none-1.log").write_text(log)
    monkeypatch.setattr(study, "_start", lambda *_: Ended(code))
    monkeypatch.setattr(study, "TrainingProgress", Told)
    monkeypatch.setattr(study.time, "sleep", lambda _: None)
    with pytest.raises(UserError) as error:
        study._train_all([trial], 1)
    assert str(error.value) == f"1 of 1 trials failed; the others are kept:\n  none-1: {reason}"
