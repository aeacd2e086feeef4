"""Several processes train one model: real ones, started by torchrun, that speak through gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import newest_of, outcome
from jarilab import api
from jarilab.errors import UserError
from jarilab.runs.folder import read_metrics, read_run

SCRIPT = Path(__file__).parents[2] / "helpers" / "rank_script.py"
SETTINGS = {
    "model.width": 16,
    "model.heads": 2,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.dropout": 0.0,
    "training.optimizer": "adamw",
    "training.learning_rate": 0.01,
    "training.batch": 10,
    "training.examples": 60,
    "training.evaluations": 3,
    "training.evaluation_examples": 8,
}
TASK = "arithmetic:maximum=9"
LEARNED = {**SETTINGS, "model.encoding": "t5", "model.dropout": 0.1}


def case(name, settings=SETTINGS, **rest):
    return {"name": name, "task": TASK, "settings": settings, **rest}


def launch(folder, cases, ranks=2, timeout=60):
    """Let `ranks` processes do the cases one after the other; gives what each rank was told of each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "JARILAB_RANK_TIMEOUT": str(timeout)}
    done = subprocess.run(
        [*command, str(SCRIPT), str(folder)], env=environment, capture_output=True, text=True, timeout=240
    )
    told = [folder / f"told-{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) if path.exists() else {} for path in told], done


def alone(folder, settings=SETTINGS):
    api.train(TASK, folder, settings=settings, threads=1, precision="float32", device="cpu")
    return folder


def close(one, other, tolerance):
    """Whether two runs had the same losses and ended with the same weights."""
    losses = [[row["loss"] for row in read_metrics(run)] for run in (one, other)]
    weights = [load_file(newest_of(run) / "model.safetensors") for run in (one, other)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=0, atol=tolerance)
    for name, tensor in weights[0].items():
        if name.endswith("key.bias"):  # softmax does not see it, and AdamW makes much of the rounding that it gets
            continue
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=10 * tolerance)


STOPPED = {"step": 3, "what": "signal"}
CASES = [
    case("copies"),
    case("parts", options={"shard": True}),
    case("passes", options={"accumulate": 3}),
    case("whole", LEARNED),
    case("stopped", LEARNED, event=STOPPED),
    case("stopped", LEARNED),
    case("parted", options={"shard": True}, event=STOPPED),
    case("fewer", event=STOPPED),
    case("unlike", of_rank={"1": {"seed": 2}}),
    case("small", {**SETTINGS, "training.batch": 1}),
]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    told, done = launch(folder, CASES)
    assert all(set(one) == {case["name"] for case in CASES} for one in told), done.stderr[-3000:]
    return folder, told, done


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copies", "parts", "passes"])
def test_two_processes_compute_what_one_does(launched, tmp_path, name):
    folder, told, _ = launched
    assert [one[name] for one in told] == ["done", "done"]
    close(alone(tmp_path / "run"), folder / name, 1e-5)
    assert read_run(folder / name)["environment"]["ranks"] == 2


@pytest.mark.slow
def test_two_processes_that_were_stopped_go_on_to_the_same_bits(launched):
    folder, told, _ = launched
    assert [one["stopped"] for one in told] == ["done", "done"]
    assert outcome(folder / "stopped") == outcome(folder / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fewer", "parted"])
def test_one_process_goes_on_with_what_two_began(launched, tmp_path, capsys, name):
    folder, told, _ = launched
    assert [one[name] for one in told] == ["signal 15", "signal 15"]
    alone(folder / name)
    assert "from here on not bit-exact, because ranks was 2, is 1" in capsys.readouterr().err
    close(alone(tmp_path / "run"), folder / name, 1e-5)


@pytest.mark.slow
def test_ranks_that_do_not_agree_are_told_so(launched):
    folder, told, _ = launched
    for one in told:
        assert one["unlike"].startswith("the ranks do not agree on options: rank 0 has ")
        assert one["small"].startswith("a batch of 1 examples cannot be cut into 2 processes; use training.batch=2")
    assert not (folder / "unlike").exists()


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_others_and_is_named(tmp_path):
    event = {"step": 3, "rank": 1, "what": "hang"}
    told, _ = launch(tmp_path, [case("hanging", event=event)], timeout=4)
    assert "rank 0 waits in vain for the others: rank 1 was last heard of" in told[0]["hanging"]
    assert "the same command goes on from it" in told[0]["hanging"]


def test_one_process_cannot_be_cut_into_parts(tmp_path):
    with pytest.raises(UserError, match="cuts a model into parts for several processes, and there is one"):
        api.train(TASK, tmp_path / "run", settings=SETTINGS, shard=True)
    assert not (tmp_path / "run").exists()
