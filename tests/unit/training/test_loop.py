"""What the loop may do besides: average the weights, stop early, smooth labels, and keep files to answer with."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import PowerCutError, at, cut, held, newest_of, outcome, seal, timeless, tiny, train
from jarilab import api
from jarilab.core.errors import UserError
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_metrics
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.metrics import METRICS
from jarilab.training import loop
from jarilab.training.evaluation import Evaluator
from jarilab.training.state import TrainingState

# Averages ------------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_the_moving_average(tmp_path, monkeypatch):
    trained = []
    every = tiny(training__evaluations=12)
    train(tmp_path / "plain", every, report=lambda _: trained.append(
        load_file(newest_of(tmp_path / "plain") / "model.safetensors")
    ))  # fmt: skip
    by_hand = trained[0]
    for weights in trained[1:]:
        by_hand = {name: 0.75 * mean + 0.25 * weights[name] for name, mean in by_hand.items()}

    measured, evaluate = [], Evaluator.evaluate

    def measure(self, *examples):
        measured.append({**self.state.evaluated.state_dict()})
        return evaluate(self, *examples)

    monkeypatch.setattr(Evaluator, "evaluate", measure)
    train(tmp_path / "run", tiny(training__evaluations=1, training__average=0.75))
    kept = load_file(newest_of(tmp_path / "run") / "model.safetensors")
    torch.testing.assert_close(kept, by_hand)
    name = "decoder.norm.weight"
    assert not torch.allclose(kept[name], trained[-1][name], atol=1e-4), "the last weights are others"
    rest = load_file(newest_of(tmp_path / "run") / "optimizer.safetensors")
    assert all(torch.equal(rest[f"raw/{name}"], value) for name, value in trained[-1].items()), "as if not averaged"
    assert len(measured) == 2
    assert all(torch.equal(model[name], value) for model in measured for name, value in kept.items())
    loaded = api.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in kept.items())


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("averaged") / "run"
    train(folder, tiny(training__average=0.9))
    return folder


@pytest.mark.parametrize("step", [4, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 11))])
def test_an_average_cut_off_goes_on_to_the_same_bits(averaged, tmp_path, step):
    experiment = tiny(training__average=0.9)
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", experiment, report=at(step, cut))
    train(tmp_path / "run", experiment)
    assert outcome(tmp_path / "run") == outcome(averaged)


def test_without_an_average_no_second_weights_are_kept(tmp_path):
    train(tmp_path / "run", tiny(training__examples=16, training__evaluations=1))
    assert not [n for n in load_file(newest_of(tmp_path / "run") / "optimizer.safetensors") if n.startswith("raw/")]


# Looks ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch):
    """Decide what each look sees."""

    def see(*values, metric="exact_match"):
        seen = iter(values)
        monkeypatch.setattr(Arithmetic, "metric", METRICS[metric])
        monkeypatch.setattr(Evaluator, "evaluate", lambda *_: {metric: next(seen), "examples": 20.0})

    return see


PATIENT = {"training__evaluations": 12, "training__patience": 2}


@pytest.mark.parametrize(
    ("metric", "values"),
    [("exact_match", [0.1, 0.3, 0.2, 0.3]), ("bleu", [9.0, 30.0, 29.0, 30.0]), ("loss", [3.0, 1.0, 1.5, 1.0])],
)
def test_patience_ends_after_so_many_looks_without_a_better_one(tmp_path, looks, capsys, metric, values):
    looks(*values, 0.25, 0.25, metric=metric)
    result = train(tmp_path / "run", tiny(**PATIENT))
    assert (result["steps"], result["metric"], result[metric]) == (4, metric, 0.25)
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]
    title = METRICS[metric].title
    assert f"jarilab: no better {title} in 2 evaluations: stopped early, after step 4\n" in capsys.readouterr().err


def test_a_better_look_renews_the_patience(tmp_path, looks):
    looks(*(0.1, 0.0, 0.2, 0.1, 0.3, 0.1, 0.4, 0.1, 0.5, 0.1, 0.6, 0.7), 0.7)
    assert train(tmp_path / "run", tiny(**PATIENT))["steps"] == 12


def test_without_patience_training_goes_to_the_end(tmp_path, looks):
    looks(*12 * [0.5], 0.5)
    assert train(tmp_path / "run", tiny(training__evaluations=12))["steps"] == 12


def test_a_run_stopped_early_trains_no_further_when_its_result_was_not_written(tmp_path, looks, monkeypatch):
    looks(0.1, 0.3, 0.2, 0.2, 0.25, 0.3)
    whole = train(tmp_path / "run", tiny(**PATIENT))
    (tmp_path / "run" / "result.json").unlink()
    monkeypatch.setattr(TrainingState, "update", None)
    looks(0.25, 0.3)
    assert timeless(train(tmp_path / "run", tiny(**PATIENT))) == timeless(whole)


def test_patience_outlives_a_power_cut(tmp_path, looks):
    looks(0.1, 0.3, 0.2)
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", tiny(**PATIENT), report=at(3, cut))
    looks(0.2, 0.25, 0.3)
    assert train(tmp_path / "run", tiny(**PATIENT))["steps"] == 4


def test_the_loss_of_training_stays_beside_a_metric_that_is_a_loss(tmp_path, looks):
    heard = []
    looks(90.0, 91.0, 92.0, 93.0, 94.0, 94.0, metric="loss")
    train(tmp_path / "run", tiny(), report=heard.append)
    rows = read_metrics(tmp_path / "run")
    assert all(row["loss"] < 5 for row in (*rows, *heard))
    assert {row["step"]: row["value"] for row in rows if "value" in row} == {3: 90, 6: 91, 9: 92, 12: 93}
    assert next(row["measured"] for row in heard if "measured" in row) == "held-out loss 90.0000"


def test_kernels_are_noted_once(tmp_path, monkeypatch):
    noted = []
    monkeypatch.setattr(loop.Run, "note_kernels", lambda _, kernels: noted.append(kernels))
    train(tmp_path / "run", tiny())
    assert len(noted) == 1, "to record every step costs more than the step"


# Losses --------------------------------------------------------------------------------------------------------------


def test_the_experiment_says_how_much_is_smoothed(tmp_path, monkeypatch):
    seen, loss = [], Arithmetic.loss
    monkeypatch.setattr(Arithmetic, "loss", lambda *a: seen.append(a[3]) or loss(*a))
    train(tmp_path / "run", tiny(training__examples=16, training__label_smoothing=0.3))
    assert seen == [0.3]


# Files a run keeps ---------------------------------------------------------------------------------------------------

WORDS = '{"tokens": ["자리", "-"]}\n'


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    """A run that keeps a vocabulary."""
    folder = tmp_path_factory.mktemp("keeping") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arithmetic, "artifacts", lambda _: {"vocabulary.json": WORDS.encode()})
        train(folder, tiny(training__examples=16, training__evaluations=1))
    return folder


def test_what_answering_needs_lies_in_the_run(keeping):
    assert (keeping / "vocabulary.json").read_text(encoding="utf-8") == WORDS
    record = json.loads((keeping / "run.json").read_text())
    assert record["kept"] == {"vocabulary.json": hashlib.sha256(WORDS.encode()).hexdigest()}
    assert api.load(keeping).step == 1


@pytest.mark.parametrize("use", [api.load, api.evaluate, lambda run: list(api.predict(run, ["1+1"]))])
def test_a_vocabulary_that_is_not_the_runs_is_refused(keeping, tmp_path, use):
    run = shutil.copytree(keeping, tmp_path / "run")
    (run / "vocabulary.json").write_text(WORDS.replace("-", "+"), encoding="utf-8")
    with pytest.raises(UserError) as error:
        use(run)
    assert str(error.value) == f"{run / 'vocabulary.json'} is not the one this run was trained with; put it back"


def test_training_does_not_go_on_beside_a_vocabulary_that_is_not_the_runs(keeping, tmp_path, monkeypatch):
    run = shutil.copytree(keeping, tmp_path / "run")
    (run / "result.json").unlink()
    (run / "vocabulary.json").write_text(WORDS.replace("-", "+"), encoding="utf-8")
    monkeypatch.setattr(Arithmetic, "artifacts", lambda _: {"vocabulary.json": WORDS.encode()})
    with pytest.raises(UserError, match=r"vocabulary\.json is not the one this run was trained with; put it back"):
        train(run, tiny(training__examples=16, training__evaluations=1))


def test_a_vocabulary_that_is_missing_is_named(keeping, tmp_path):
    run = shutil.copytree(keeping, tmp_path / "run")
    (run / "vocabulary.json").unlink()
    with pytest.raises(
        UserError, match=r"run/vocabulary\.json is missing or not a plain file; the run cannot answer without it"
    ):
        api.load(run)


def test_a_record_cannot_name_a_file_elsewhere(keeping, tmp_path):
    run = shutil.copytree(keeping, tmp_path / "run")
    (tmp_path / "secret").write_text("mine")
    record = held(run / "run.json")
    record["kept"] = {"../secret": hashlib.sha256(b"mine").hexdigest()}
    seal(run / "run.json", record)
    with pytest.raises(UserError, match="run/secret is missing or not a plain file"):
        api.load(run)


@pytest.mark.parametrize(("text", "ours"), [(WORDS, True), ("mine", False)])
def test_a_start_cut_off_behind_a_vocabulary_is_no_foreign_folder(tmp_path, monkeypatch, text, ours):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    (run / "vocabulary.json").write_text(text, encoding="utf-8")
    (run / ".vocabulary.json.4711.partial").write_text('{"to')
    monkeypatch.setattr(Arithmetic, "artifacts", lambda _: {"vocabulary.json": WORDS.encode()})
    experiment = tiny(training__examples=16, training__evaluations=1)
    if ours:
        assert train(run, experiment)["steps"] == 1
    else:
        with pytest.raises(UserError, match="exists and is not a run; choose another --out"):
            train(run, experiment)
    assert (run / "vocabulary.json").read_text(encoding="utf-8") == text


# What training says, and what it checks before it writes --------------------------------------------------------------


def test_what_goes_on_and_what_is_finished_say_so(tmp_path, capsys):
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", tiny(), report=at(5, cut))
    assert "going on" not in capsys.readouterr().err
    result = train(tmp_path / "run", tiny())
    assert capsys.readouterr().err == "jarilab: going on from step 3 of 12\n"
    assert train(tmp_path / "run", tiny()) == result
    run = tmp_path / "run"
    told = f"jarilab: {run} is finished already: this is its result; choose another --out to train anew\n"
    assert capsys.readouterr().err == told


def test_an_encoding_that_cannot_read_the_data_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "text.txt").write_text("one two three four five " * 40)
    settings = {
        "task.train": str(tmp_path / "text.txt"),
        "task.context_length": 8,
        "model.d_model": 16,
        "model.n_heads": 2,
    }
    settings |= {"model.n_layers": 1, "training.examples": 32, "training.batch_size": 16, "training.evaluations": 1}
    run = tmp_path / "run"
    with pytest.raises(UserError, match=r"^with the encoding rotary2d: two coordinates expected, .*for 1 axis$"):
        api.train("text", run, encoding="rotary2d", settings=settings, threads=1)
    assert not run.exists()
    assert api.train("text", run, encoding="rotary", settings=settings, threads=1)["steps"] == 2


def test_the_check_before_training_reads_two_examples_without_dropout(tmp_path, monkeypatch):
    heard, forward = [], EncoderDecoder.forward

    def hearing(model, source, target, *rest):
        heard.append((len(source.ids), model.training, torch.is_grad_enabled(), (tmp_path / "run").exists()))
        return forward(model, source, target, *rest)

    monkeypatch.setattr(EncoderDecoder, "forward", hearing)
    train(tmp_path / "run", tiny(training__examples=16, training__evaluations=1))
    assert heard[0] == (2, False, False, False)
    assert heard[1] == (16, True, True, True)


@pytest.mark.skipif(
    torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="PyTorch has an LSTM in bfloat16 on this processor"
)
def test_a_layer_that_the_processor_has_not_in_bfloat16_is_refused_before_anything_is_written(tmp_path):
    settings = {"model.d_model": 16, "model.cell": "lstm", "task.lines": 40, "task.held_out": 10}
    experiment = Experiment.of("reverse", None, settings, 1, "bfloat16", "recurrent")
    with pytest.raises(UserError, match=r"this processor cannot compute Recurrent in .*--precision float32$"):
        loop.train(experiment, tmp_path / "run", threads=1)
    assert not (tmp_path / "run").exists()
