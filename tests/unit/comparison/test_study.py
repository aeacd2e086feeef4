"""What a comparison does around its trials."""

import fcntl
import json

import pytest

import jarilab
from helpers.runs import TINY
from jarilab.comparison import run_study
from jarilab.comparison.study import Study
from jarilab.core.errors import UserError


def test_an_encoding_that_cannot_read_the_data_is_refused_before_any_trial(tmp_path):
    with pytest.raises(UserError, match=r"two coordinates expected, got .*; choose an encoding for 1 axis"):
        jarilab.compare("arithmetic:maximum=30", tmp_path / "study", encodings=["none", "rotary2d"], settings=TINY)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("seeds", [0, -1])
def test_a_comparison_without_seeds_is_refused(tmp_path, seeds):
    with pytest.raises(UserError, match=f"a comparison needs at least one seed, got {seeds}"):
        jarilab.compare("arithmetic", tmp_path, encodings=["none"], seeds=seeds)


def test_an_encoding_named_twice_is_refused(tmp_path):
    with pytest.raises(UserError, match="two trials would be called rotary-1, of rotary and rotary; name"):
        jarilab.compare("arithmetic", tmp_path / "out", encodings=["rotary", "rotary:base=10000"])
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_built_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(UserError, match="learned:positions=2 knows 2 positions"):
        jarilab.compare("arithmetic:maximum=30", tmp_path / "out", encodings=["none", "learned:positions=2"])
    assert not (tmp_path / "out").exists()


def test_trials_go_seed_by_seed(tmp_path):
    trials = Study.of("arithmetic", ["none", "rotary:base=500"], 2, {}, "float32").trials(tmp_path)
    assert [trial.name for trial in trials] == ["none-1", "rotary_base=500-1", "none-2", "rotary_base=500-2"]


# A study that is there ------------------------------------------------------------------------------------------------

TASK = "arithmetic:maximum=30"
SHORT = {**TINY, "training.examples": 32, "training.evaluations": 1}


def begun(folder, encodings=("none", "t5"), seeds=2, **settings):
    """A study of which nothing is trained."""
    folder.mkdir()
    study = Study.of(TASK, encodings, seeds, {**SHORT, **settings}, "float32")
    study.write(folder)
    return study


@pytest.fixture
def trained(monkeypatch):
    """The trials that would be trained, each of which fails."""
    names = []

    def train_all(trials, engine):
        names.extend(trial.name for trial in trials)
        return dict.fromkeys(names, "ValueError: x")

    monkeypatch.setattr(run_study, "train_all", train_all)
    return names


def test_a_study_is_read_as_it_was_written(tmp_path):
    study = begun(tmp_path / "study")
    assert Study.read(tmp_path / "study") == study


def test_a_study_goes_on_with_more_encodings_and_seeds(tmp_path, trained):
    begun(tmp_path / "study")
    with pytest.raises(UserError, match="6 of 6 trials failed; the others are kept, and the same command tries again:"):
        jarilab.compare(tmp_path / "study", encodings=["+alibi", "+none"], seeds=2)
    assert trained == ["none-1", "t5-1", "alibi-1", "none-2", "t5-2", "alibi-2"]
    grown = Study.read(tmp_path / "study")
    assert (grown.encodings, grown.seeds) == (("none", "t5", "alibi"), 2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"encodings": ["alibi"]}, r"the study has none, t5; write an encoding to add .* --encodings \+alibi"),
        ({"seeds": 1}, "the study has 2 seeds, got 1; give more"),
        ({"encodings": ["+alibbi"]}, "unknown encoding 'alibbi'; did you mean 'alibi'"),
        ({"settings": {"model.d_model": 8}}, "is a study, whose settings are fixed; pass"),
        ({"snapshots": 3}, "is a study, whose settings are fixed; pass only encodings, seeds and eval_lengths"),
        (
            {"precision": "bfloat16"},
            "is a study, whose settings are fixed; pass only encodings, seeds and eval_lengths",
        ),
        ({"train": False}, "no trial of .* is finished yet; `jarilab compare .*` trains them"),
        ({"train": False, "seeds": 3}, "expected no seeds with train=False, or --report, which adds nothing; omit"),
        (
            {"train": False, "encodings": ["+alibi"], "eval_lengths": [3], "sbatch": True},
            "expected no encodings, eval_lengths, sbatch with train=False",
        ),
    ],
)
def test_invalid_requests_of_a_study_are_refused(tmp_path, trained, asked, message):
    begun(tmp_path / "study")
    before = (tmp_path / "study" / "study.json").read_text()
    with pytest.raises(UserError, match=message):
        jarilab.compare(tmp_path / "study", **asked)
    assert (tmp_path / "study" / "study.json").read_text() == before
    assert trained == []


def test_the_difference_to_another_study_in_the_folder_is_listed(tmp_path, trained):
    begun(tmp_path / "study")
    with pytest.raises(UserError) as error:
        jarilab.compare(
            TASK, tmp_path / "study", encodings=["rotary"], settings={**SHORT, "model.d_model": 32}, precision="float32"
        )
    assert str(error.value) == (
        f"{tmp_path / 'study'} holds another study than this comparison asks for; choose another --out, or give its "
        "settings:\n  model.d_model: 32 here, 16 there"
    )
    assert trained == []


def test_the_same_study_with_other_encodings_is_no_other_study(tmp_path, trained):
    begun(tmp_path / "study")
    with pytest.raises(UserError, match="1 of 1 trials failed"):
        jarilab.compare(TASK, tmp_path / "study", encodings=["rotary"], settings=SHORT, precision="float32")
    assert trained == ["rotary-1"]


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"is a folder and holds no study: it has no study\.json; name a task"):
        jarilab.compare(tmp_path, encodings=["none"], out=tmp_path / "out")


def test_a_table_without_training_needs_the_folder_of_a_study(tmp_path, trained):
    with pytest.raises(UserError, match="train=False expects the folder of a study as task, got arithmetic"):
        jarilab.compare(TASK, tmp_path / "out", encodings=["none"], settings=SHORT, train=False)
    assert trained == []


def test_a_task_needs_encodings_and_a_folder(tmp_path):
    with pytest.raises(UserError, match="expects encodings and a folder for arithmetic; pass encodings and out"):
        jarilab.compare("arithmetic", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(format=1), "expected format 'jari study 1'.* got 1"),
        (lambda record: record.update(seeds="two"), "seeds: expected"),
        (lambda record: record.update(seeds=0), "a comparison needs at least one seed"),
        (lambda record: record.update(encodings=[]), "names no encodings"),
        (lambda record: record["experiment"].pop("seed"), "seed"),
    ],
)
def test_a_damaged_study_is_refused(tmp_path, change, message):
    begun(tmp_path / "study")
    path = tmp_path / "study" / "study.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=message):
        jarilab.compare(tmp_path / "study")


def test_code_that_a_study_names_needs_trust(tmp_path):
    begun(tmp_path / "study")
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    path = tmp_path / "study" / "study.json"
    record = json.loads(path.read_text())
    record["encodings"][1] = f"{evil}:Mine"
    path.write_text(json.dumps(record))
    for asked in ({}, {"train": False}, {"encodings": ["+alibi"]}):
        with pytest.raises(UserError, match=r"names the Python file .*evil.py.*--trust-code"):
            jarilab.compare(tmp_path / "study", **asked)
    assert not (tmp_path / "executed").exists()


def test_two_comparisons_in_one_folder_are_refused(tmp_path, trained):
    begun(tmp_path / "study")
    with (tmp_path / "study" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"another process compares in .*; wait for it, or choose another --out"):
            jarilab.compare(tmp_path / "study")
    assert trained == []
