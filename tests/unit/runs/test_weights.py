"""What a run declares is held against what its files say before anything of that size is allocated."""

import json
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import jarilab
from helpers.command import command
from helpers.runs import PowerCutError, at, cut, held, newest_of, save_checkpoint, seal, tiny, train
from jarilab.core.errors import UserError
from jarilab.core.storage.files import sha256
from jarilab.runs import weights
from jarilab.runs.experiment import Experiment


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut off after four of twelve steps. Copied, never changed."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    with pytest.raises(PowerCutError):
        train(folder, report=at(4, cut))
    return folder


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    return shutil.copytree(begun, tmp_path / "run")


def resealed(path: Path) -> None:
    """A manifest that fits the files."""
    names = ("model.safetensors", "optimizer.safetensors", "state.json")
    (path / "manifest.json").write_text(json.dumps({name: sha256(path / name) for name in names}))


def test_a_run_that_declares_a_vast_model_is_refused_without_its_memory(run: Path) -> None:
    record = held(run / "run.json")
    record["experiment"]["model_options"] |= {"d_model": 8192, "n_heads": 64, "n_encoder_layers": 6}
    record["hash"] = Experiment(**record["experiment"]).hash
    seal(run / "run.json", record)
    state = newest_of(run) / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"run": record["hash"]}))
    resealed(newest_of(run))
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**29, before[1]))
    try:
        with pytest.raises(UserError, match=r"model\.safetensors: .* is (missing|\(.*the model has)"):
            jarilab.load(run)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def state_of(run: Path, **changes: object) -> None:
    """Change fields of the newest checkpoint's state."""
    path = newest_of(run)
    state = json.loads((path / "state.json").read_text()) | changes
    (path / "state.json").write_text(json.dumps(state))
    resealed(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 4),
        ("step", "3"),
        ("step", None),
        ("examples", -1),
        ("examples", 10**30),
        ("seconds", "x"),
        ("losses", [None]),
        ("losses", {}),
        ("best", 3),
        ("best", {}),
        ("best", {"step": 3}),
        ("best", {"step": 4, "exact_match": 0.5}),
        ("best", {"step": 2.5, "exact_match": 0.5}),
        ("best", {"step": 3, "exact_match": "x"}),
        ("best", {"step": 3, "loss": 0.5}),
        ("evaluations_without_better", []),
    ],
)
def test_every_field_of_a_state_is_checked(run: Path, name: str, value: object) -> None:
    state_of(run, **{name: value})
    with pytest.raises(UserError, match=rf"state\.json.*{name}"):
        train(run)


def test_a_state_beyond_the_end_is_refused(run: Path) -> None:
    newest_of(run).rename(run / "checkpoints" / "step-000000099")
    state_of(run, step=99)
    with pytest.raises(UserError, match="got one of step 99"):
        train(run)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop("random"), "random is missing"),
        (lambda tensors: tensors.update(random=torch.zeros(7, dtype=torch.uint8)), "random is "),
        (
            lambda tensors: tensors.update(random=torch.zeros(5056, dtype=torch.uint8)),
            "expected the state of a random",
        ),
        (lambda tensors: tensors.update({"muon/0/momentum_buffer": torch.zeros(2, 2)}), "muon/0/momentum_buffer is "),
        (lambda tensors: tensors.update({"muon/x/momentum_buffer": torch.zeros(2)}), "muon/x/momentum_buffer is "),
        (lambda tensors: tensors.update({"adamw/0/step": torch.zeros(3)}), "adamw/0/step is "),
        (lambda tensors: tensors.pop("adamw/0/exp_avg"), "adamw/0/exp_avg is missing"),
        (lambda tensors: tensors.update({"adamw/999/step": torch.zeros(())}), "adamw/999/step is "),
        (lambda tensors: tensors.update({"raw/x": torch.zeros(())}), "raw/x is "),
    ],
)
def test_every_tensor_of_a_training_is_checked(run: Path, change, named: str) -> None:
    path = newest_of(run) / "optimizer.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    resealed(newest_of(run))
    with pytest.raises(UserError, match=named):
        train(run)


def test_a_header_is_read_of_a_plain_file_only(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(2, 3)}, path, {"run": "x"})
    assert weights.header(path) == weights.Header({"a": ((2, 3), torch.float32)}, {"run": "x"})
    (tmp_path / "link.safetensors").symlink_to(path)
    with pytest.raises(UserError, match="missing or not a plain file"):
        weights.header(tmp_path / "link.safetensors")


def test_a_finished_run_without_checkpoints_is_told_a_way_that_works(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    words = [
        "train",
        "arithmetic:maximum=30",
        "--d-model",
        16,
        "--n-heads",
        2,
        "--examples",
        16,
        "--batch-size",
        16,
        "--threads",
        1,
    ]
    sys.argv, before = ["/usr/bin/jarilab", *map(str, words), "--out", str(run)], sys.argv
    try:
        assert command(*sys.argv[1:]).returncode == 0
    finally:
        sys.argv = before
    shutil.rmtree(run / "checkpoints")
    said = command("predict", run, "1+1")
    assert said.returncode == 2
    told = re.search(r"or remove (.*/result\.json) and train it again: jarilab (.*)\n", said.stderr)
    assert told is not None
    Path(told[1]).unlink()
    assert command(*shlex.split(told[2])).returncode == 0
    assert command("predict", run, "1+1").returncode == 0


def test_a_save_into_a_folder_that_was_removed_brings_no_part_of_it_back(tmp_path: Path) -> None:
    model = nn.Linear(1, 2)
    with pytest.raises(UserError, match="the checkpoint of step 3 could not be written"):
        save_checkpoint(tmp_path / "run" / "checkpoints", 3, model, {})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_is_removed_while_it_is_trained_into_stays_away(tmp_path: Path, replaced: bool) -> None:
    def remove() -> None:
        shutil.rmtree(tmp_path / "run")
        if replaced:
            (tmp_path / "run").mkdir()

    with pytest.raises(UserError, match=r"run was removed or replaced during training"):
        train(tmp_path / "run", report=at(4, remove))
    assert (tmp_path / "run").exists() is replaced
    assert not list((tmp_path / "run").glob("*"))
    train(tmp_path / "run", tiny(training__examples=16))


@pytest.mark.slow
def test_a_run_is_checked_without_the_compiler(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from jarilab.runs.weights import check_built
save_file(torch.nn.Embedding(3, 2).state_dict(), "w.safetensors")
check_built(Path("w.safetensors"), lambda: torch.nn.Embedding(3, 2))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
