"""How a training is computed changes nothing of what it computes, or says by how much."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import newest_of, outcome, tiny, train
from jarilab import api
from jarilab.core.errors import UserError
from jarilab.runs.folder import read_metrics
from jarilab.runs.signals import Interrupted
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.training.checkpointing import Checkpointer
from jarilab.training.evaluation import Evaluator
from jarilab.training.execution import Execution
from jarilab.training.state import TrainingState


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run as it usually is."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


def test_layers_that_are_computed_again_change_no_bit(tmp_path, whole):
    train(tmp_path / "run", execution=Execution(recompute=True))
    assert outcome(tmp_path / "run") == outcome(whole)


def test_layers_that_are_computed_again_update_running_statistics_once(tmp_path):
    experiment = tiny(model__norm_kind="batch")
    train(tmp_path / "whole", experiment)
    train(tmp_path / "run", experiment, execution=Execution(recompute=True))
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_to_know_what_has_no_gradient_leaves_running_statistics_alone():
    state = TrainingState(tiny(), tiny().resolved.build_task(), Execution())
    (layer, *_) = state.model.encoder.layers
    layer.register_buffer("forwards", torch.zeros(()))
    layer.register_forward_hook(lambda layer, *_: layer.forwards.add_(1) and None)
    assert not state._has_unused_parameters()
    assert layer.forwards == 0
    assert all(parameter.grad is None for parameter in state.model.parameters())


def test_layers_are_kept_where_they_are_not_computed_again(tmp_path, monkeypatch):
    """What is computed again is: each layer's forward runs twice a step."""
    counts = []
    for again in (False, True):
        state = TrainingState(tiny(), tiny().resolved.build_task(), Execution(recompute=again))
        (layer, *_) = state.model.encoder.layers
        passed = []
        layer.attention.register_forward_hook(lambda *_, passed=passed: passed.append(1))
        batch = state.task.training_batch(torch.arange(4), torch.Generator())
        state.task.loss(state.model(*batch.inputs), batch).backward()
        counts.append(len(passed))
    assert counts == [1, 2]


@pytest.mark.parametrize("accumulate", [2, 3])
def test_a_step_in_passes_is_a_step(tmp_path, accumulate):
    settings = {"model__dropout": 0.0, "training__optimizer": "adamw", "training__lr": 0.01}
    one, several = tiny(**settings), Execution(accumulate=accumulate)
    train(tmp_path / "one", one)
    train(tmp_path / "several", one, execution=several)
    curves = [[row["loss"] for row in read_metrics(tmp_path / name)] for name in ("one", "several")]
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-4)


def test_a_batch_of_fewer_examples_than_passes_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"a batch of 16 examples cannot be cut into 17 passes; use training\.batch_size=17"
    ):
        train(tmp_path / "run", execution=Execution(accumulate=17))
    assert not (tmp_path / "run").exists()


def test_checkpoints_by_the_clock_change_no_bit(tmp_path, whole, monkeypatch):
    saved, save = [], Checkpointer.save
    monkeypatch.setattr(Checkpointer, "save", lambda self, run: (saved.append(1), save(self, run)))
    train(tmp_path / "run", execution=Execution(checkpoint_minutes=1e-9))
    assert len(saved) == 12
    mine, theirs = outcome(tmp_path / "run"), outcome(whole)
    assert mine[1:] == theirs[1:]
    weights = [load_file(newest_of(run) / "model.safetensors") for run in (tmp_path / "run", whole)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(("number", "nth"), [(signal.SIGTERM, 2), (signal.SIGHUP, 5), (signal.SIGUSR1, 2)])
def test_a_signal_in_an_evaluation_is_answered_at_once(tmp_path, whole, monkeypatch, number, nth):
    """The second one on the way, and the last one, which is on all data."""
    asked, evaluate = [], Evaluator.evaluate

    def interrupted(self, examples=None):
        asked.append(examples)
        if len(asked) == nth:
            os.kill(os.getpid(), number)
            raise AssertionError("it goes on")
        return evaluate(self, examples)

    monkeypatch.setattr(Evaluator, "evaluate", interrupted)
    with pytest.raises(Interrupted) as stopped:
        train(tmp_path / "run")
    assert stopped.value.number == number
    assert not (tmp_path / "run" / "result.json").exists()
    assert len(asked) == nth
    train(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.long
def test_a_compiled_training_has_the_curve_of_a_plain_one(tmp_path):
    """In processes of their own: what checks types in tests cannot be compiled."""
    words = "train arithmetic:maximum=30 --precision float32 --threads 1 --d-model 16 --n-heads 2 --dropout 0"
    words += " --batch-size 16 --examples 192 --evaluations 2 --optimizer adamw --lr 0.001"
    for name, option in (("plain", []), ("compiled", ["--compile"])):
        command = [sys.executable, "-m", "jarilab", *words.split(), "--out", str(tmp_path / name), *option]
        subprocess.run(command, check=True, capture_output=True)
    curves = [[row["loss"] for row in read_metrics(tmp_path / name)] for name in ("plain", "compiled")]
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: not enough memory: you tried"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_a_step_that_memory_does_not_hold_says_what_to_do(tmp_path, monkeypatch, error):
    def loss(*_):
        raise error

    monkeypatch.setattr(Arithmetic, "loss", loss)
    with pytest.raises(
        UserError, match="does not fit into the memory of cpu: use --accumulate 6, which computes it in"
    ):
        train(tmp_path / "run", execution=Execution(accumulate=3))


def test_another_error_in_a_step_stays_what_it_is(tmp_path, monkeypatch):
    def loss(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Arithmetic, "loss", loss)
    with pytest.raises(RuntimeError, match="a bug"):
        train(tmp_path / "run")


def test_a_device_that_is_not_there_ends_before_anything_is_written(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=r"cuda:1 was requested, and PyTorch .* finds .*; use --device cpu or auto"):
        api.train("arithmetic", tmp_path / "run", device="cuda:1")
    assert not (tmp_path / "run").exists()
