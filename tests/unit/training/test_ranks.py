"""Several processes train one model: real ones, started by torchrun, that speak through gloo."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from helpers.runs import newest_of, outcome
from jarilab import api
from jarilab.core.errors import UserError
from jarilab.runs.folder import read_metrics, read_run
from jarilab.runs.verifying import verify
from jarilab.runs.weights import header

SCRIPT = Path(__file__).parents[2] / "helpers" / "rank_script.py"
SETTINGS = {
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.n_encoder_layers": 1,
    "model.n_decoder_layers": 1,
    "model.dropout": 0.0,
    "training.optimizer": "adamw",
    "training.lr": 0.01,
    "training.batch_size": 10,
    "training.examples": 60,
    "training.evaluations": 3,
    "training.evaluation_examples": 8,
}
TASK = "arithmetic:maximum=9"
LEARNED = {**SETTINGS, "model.encoding": "t5", "model.dropout": 0.1}


SMALL = {
    "model.d_model": 16,
    "model.n_heads": 2,
    "training.examples": 22,
    "training.batch_size": 11,
    "training.evaluations": 1,
    "training.evaluation_examples": 4,
    "training.optimizer": "adamw",
}
CAPTIONS = {**SMALL, "task.size": 16, "task.code_steps": 2, "model.n_layers": 1}
DETECTION = {**SMALL, "model.n_encoder_layers": 1, "model.n_decoder_layers": 2, "model.d_ff": 32, "model.queries": 4}


def case(name, settings=SETTINGS, task=TASK, **rest):
    return {"name": name, "task": task, "settings": settings, **rest}


def launch(folder, cases, *command, ranks=2):
    """Let `ranks` processes do the cases one after the other; gives what each rank was told of each. command: what
    starts them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "JARILAB_RANK_TIMEOUT": "60"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    told = [folder / f"told-{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) if path.exists() else {} for path in told], done


def launch_by_torchrun(folder, cases):
    """Two ranks, which are started again once."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", "0"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return launch(folder, cases, *torchrun, SCRIPT, folder)


def alone(folder, settings=SETTINGS, task=TASK):
    api.train(task, folder, settings=settings, threads=1, precision="float32", device="cpu")
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
SHARD = {"shard": True}
AVERAGED = {**SETTINGS, "training.average": 0.5}
KILLED = {"step": 3, "rank": 1, "what": "death"}
HANGS = {"step": 3, "rank": 1, "what": "hang"}
CASES = [
    case("copies"),
    case("parts", options=SHARD),
    case("passes", options={"accumulate": 3}),
    case("averaged", AVERAGED, options=SHARD),
    case("whole", LEARNED),
    case("stopped", LEARNED, event=STOPPED),
    case("stopped", LEARNED),
    case("stopped parts", options=SHARD, event=STOPPED),
    case("stopped parts", options=SHARD),
    case("cut", event=STOPPED),
    case("cut parts", AVERAGED, options=SHARD, event=STOPPED),
    case("captions", CAPTIONS, "captions"),
    case("detection", DETECTION, "detection"),
    case("unlike", of_rank={"1": {"seed": 2}}),
    case("small", {**SETTINGS, "training.batch_size": 1}),
    # torchrun starts both again.
    case("killed", event=KILLED),
    case("hanging", event=HANGS),
]


def write_captions(folder):
    """Images with captions of one word to three."""
    folder.mkdir(parents=True)
    for number in range(60):
        Image.new("RGB", (16, 16), (4 * number, 90, 200)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("a blue square"[: (1, 6, 13)[number % 3]])
    return folder


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    CAPTIONS["task.train"] = str(write_captions(folder / "data"))
    told, done = launch_by_torchrun(folder, CASES)
    names = {case["name"] for case in CASES} | {"killed again", "hanging again"}
    assert [set(one) for one in told] == [names - {"hanging"}, names - {"hanging", "killed"}], done.stderr[-3000:]
    return folder, told, done


@pytest.fixture(scope="module")
def gone_on(launched, tmp_path_factory):
    """What two processes began and four end, cut into parts by none of both, one of them or both."""
    folder = tmp_path_factory.mktemp("four")
    cases = []
    for name, settings in (("cut", SETTINGS), ("cut parts", AVERAGED)):
        for shard in (False, True):
            cases.append(case(f"{name}, {shard}", settings, options={"shard": shard}))
            shutil.copytree(launched[0] / name, folder / cases[-1]["name"])
    told, done = launch(folder, cases, SCRIPT, folder, "4", ranks=4)
    assert told == [{case["name"]: "done" for case in cases}] * 4, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    return alone(tmp_path_factory.mktemp("averaged") / "run", AVERAGED)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return alone(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.slow
def test_two_processes_with_parts_of_a_model_compute_what_one_does(plain, tmp_path):
    """The one example of every run of the tests; all others are long."""
    cases = [case("parts", options=SHARD), case("unlike", of_rank={"1": {"seed": 2}})]
    told, done = launch_by_torchrun(tmp_path, cases)
    assert [one["parts"] for one in told] == ["done", "done"], done.stderr[-3000:]
    assert all("the ranks do not agree on options" in one["unlike"] for one in told)
    assert not (tmp_path / "unlike").exists()
    close(plain, tmp_path / "parts", 1e-5)
    assert verify(tmp_path / "parts").whole


@pytest.mark.long
@pytest.mark.parametrize("name", ["copies", "parts", "passes"])
def test_two_processes_compute_what_one_does(launched, plain, name):
    folder, told, _ = launched
    assert [one[name] for one in told] == ["done", "done"]
    close(plain, folder / name, 1e-5)
    assert read_run(folder / name)["environment"]["ranks"] == 2


@pytest.mark.long
def test_an_average_is_cut_into_parts_too(launched, averaged):
    close(averaged, launched[0] / "averaged", 1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("task", "settings"), [("captions", CAPTIONS), ("detection", DETECTION)])
def test_each_mean_of_a_loss_is_weighed_by_its_own_count(launched, tmp_path, task, settings):
    folder, told, _ = launched
    assert [one[task] for one in told] == ["done", "done"]
    close(alone(tmp_path / "run", settings, task), folder / task, 1e-5)


@pytest.mark.long
def test_what_parts_wrote_is_as_any_checkpoint(launched):
    folder, _, _ = launched
    assert verify(folder / "parts").whole
    assert not list(folder.glob("*/checkpoints/.*"))
    for name in ("model.safetensors", "optimizer.safetensors"):
        whole, parts = (header(newest_of(folder / run) / name) for run in ("copies", "parts"))
        assert whole == parts


@pytest.mark.long
@pytest.mark.parametrize(("stopped", "whole"), [("stopped", "whole"), ("stopped parts", "parts")])
def test_two_processes_that_were_stopped_go_on_to_the_same_bits(launched, stopped, whole):
    folder, told, _ = launched
    assert [one[stopped] for one in told] == ["done", "done"]
    assert outcome(folder / stopped) == outcome(folder / whole)


@pytest.mark.long
@pytest.mark.parametrize(("name", "settings"), [("cut", SETTINGS), ("cut parts", AVERAGED)])
def test_one_process_goes_on_with_what_two_began(launched, gone_on, request, capsys, name, settings):
    """After the copies for four were made."""
    folder, told, _ = launched
    assert [one[name] for one in told] == ["signal 15", "signal 15"]
    alone(folder / name, settings)
    assert "from here on not bit-exact, because ranks was 2, is 1" in capsys.readouterr().err
    close(request.getfixturevalue("plain" if name == "cut" else "averaged"), folder / name, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(("name", "whole"), [("cut", "plain"), ("cut parts", "averaged")])
def test_four_processes_go_on_with_what_two_began(gone_on, request, name, whole, shard):
    close(request.getfixturevalue(whole), gone_on / f"{name}, {shard}", 1e-5)


@pytest.mark.long
def test_ranks_that_do_not_agree_are_told_so(launched):
    folder, told, _ = launched
    for one in told:
        assert one["unlike"].startswith("the ranks do not agree on options: rank 0 has ")
        assert one["small"].startswith(
            "a batch of 1 examples cannot be cut into 2 processes; use training.batch_size=2"
        )
    assert not (folder / "unlike").exists()


@pytest.mark.long
def test_a_rank_that_is_killed_is_named_and_torchrun_goes_on(launched):
    folder, told, _ = launched
    assert "rank 0 waits in vain for the others: rank 1 sent its last heartbeat" in told[0]["killed"]
    assert [one["killed again"] for one in told] == ["done", "done"]
    assert outcome(folder / "killed") == outcome(folder / "copies")


@pytest.mark.long
def test_a_rank_that_hangs_ends_the_others_and_is_named(launched):
    _, told, _ = launched
    assert "rank 0 waits in vain for the others: rank 1 sent its last heartbeat" in told[0]["hanging again"]
    assert "the same command goes on from it" in told[0]["hanging again"]


def test_one_process_cannot_be_cut_into_parts(tmp_path):
    with pytest.raises(UserError, match="--shard expects several processes, got one"):
        api.train(TASK, tmp_path / "run", settings=SETTINGS, shard=True)
    assert not (tmp_path / "run").exists()
