"""A run survives what happens to runs: signals, power cuts, full disks, flipped bits, foreign folders."""

import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import jarilab
from helpers.runs import (
    TINY,
    PowerCutError,
    at,
    cut,
    held,
    newest_of,
    outcome,
    save_checkpoint,
    seal,
    tiny,
    train,
)
from jarilab import api
from jarilab.core.errors import UserError
from jarilab.core.storage.files import read_json, write_json
from jarilab.runs import checkpoint
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import Run, read_metrics
from jarilab.runs.signals import Interrupted
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.training import loop
from jarilab.training.checkpointing import Checkpointer
from jarilab.training.evaluation import Evaluator

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run that nothing happened to. Copied, never changed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


@pytest.fixture
def finished(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def unfinished(finished):
    """The same run before its result: two checkpoints, the best on the way perhaps a third."""
    (finished / "result.json").unlink()
    return finished


# Interrupted and resumed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 3, 11, *(pytest.param(step, marks=pytest.mark.long) for step in (2, 4, 9))])
def test_a_run_cut_off_goes_on_to_the_same_bits(whole, tmp_path, step):
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", report=at(step, cut))
    train(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.long
def test_a_run_cut_off_again_and_again_goes_on_to_the_same_bits(whole, tmp_path):
    for step in (1, 4, 5, 5, 8, 12):
        with pytest.raises(PowerCutError):
            train(tmp_path / "run", report=at(step, cut))
    train(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.parametrize(("number", "optimizer"), [(signal.SIGINT, "adamw"), (signal.SIGTERM, "muon")])
def test_a_signal_stops_after_the_step_and_loses_nothing(tmp_path, number, optimizer, monkeypatch):
    # A row for every fourth step, so that the mean loss of a row has to survive as well.
    monkeypatch.setattr(loop, "CURVE_POINTS", 3)
    experiment = tiny(training__optimizer=optimizer, training__evaluations=1)
    train(tmp_path / "whole", experiment)
    steps = []

    def report(row):
        steps.append(row["step"])
        if len(steps) == 2:
            os.kill(os.getpid(), number)

    for last in (3, 6, 9):
        steps.clear()
        with pytest.raises(Interrupted) as error:
            train(tmp_path / "run", experiment, report=report)
        assert error.value.number == number
        # The signal came when the second step was over, so the third is finished and saved.
        assert (len(steps), steps[-1]) == (3, last)
        assert newest_of(tmp_path / "run").name == f"step-{last:09d}"
    train(tmp_path / "run", experiment)
    ours, theirs = outcome(tmp_path / "run"), outcome(tmp_path / "whole")
    assert ours[0]["step-000000012"] == theirs[0]["step-000000012"]
    assert ours[1:] == theirs[1:]


def test_the_first_signal_handlers_come_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    train(tmp_path / "run")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.long
def test_the_command_killed_by_sigkill_goes_on_to_the_same_bits(tmp_path):
    settings = {**TINY, "training.examples": 16 * 60, "training.evaluations": 6}
    experiment = Experiment.of("arithmetic:maximum=30", "shaw", settings, 1, "float32")
    command = [
        sys.executable,
        "-m",
        "jarilab",
        "train",
        "arithmetic:maximum=30",
        "--encoding",
        "shaw",
        "--threads",
        "1",
    ]
    command += ["--precision", "float32", "--out", str(tmp_path / "run")]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    metrics, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while (not metrics.exists() or metrics.read_text().count("\n") < 25) and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not (tmp_path / "run" / "result.json").exists(), "killed on the way"
    train(tmp_path / "run", experiment)
    train(tmp_path / "whole", experiment)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_the_curve_is_on_the_disk_before_a_checkpoint_is(tmp_path, monkeypatch):
    """A power cut takes what is not: rows before the checkpoint that training goes on from."""
    synchronised, fsync = [], os.fsync

    def noted(descriptor):
        synchronised.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    train(tmp_path / "run")
    curve = tmp_path / "run" / "metrics.jsonl"
    places = [number for number, path in enumerate(synchronised) if path == curve]
    first_of_checkpoints = [n for n, path in enumerate(synchronised) if path.name == "model.safetensors"]
    assert len(first_of_checkpoints) == 4
    for before, own in itertools.pairwise([-1, *first_of_checkpoints]):
        assert any(before < place < own for place in places)


def test_the_weights_of_a_snapshot_are_on_the_disk_before_its_name(tmp_path, monkeypatch):
    synchronised = []
    monkeypatch.setattr("jarilab.runs.snapshots.fsync", lambda path: synchronised.append(path.name))
    train(tmp_path / "run", snapshots=1)
    assert len(synchronised) == 1
    assert "step-000000012" in synchronised[0]


def test_what_was_loaded_does_not_go_by_the_file_any_more(smallest, tmp_path):
    """safetensors maps files, so that a file that is cut short later would end the process."""
    path = shutil.copytree(smallest, tmp_path / smallest.name)
    optimizer = torch.optim.AdamW(nn.Linear(1, 2).parameters())
    checkpoint.load_training(path, {"adamw": optimizer})
    before = [value.clone() for values in optimizer.state.values() for value in values.values()]
    with (path / "optimizer.safetensors").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(8)
        file.write(bytes(size - 8))
    after = [value for values in optimizer.state.values() for value in values.values()]
    assert len(after) == 6
    assert all(map(torch.equal, before, after))


def test_a_finished_run_gives_its_result_at_once(finished, monkeypatch):
    before = outcome(finished)
    monkeypatch.setattr(Checkpointer, "load", None)
    result = train(finished)
    assert result == held(finished / "result.json")
    assert outcome(finished) == before


def test_a_torn_last_line_of_the_curve_is_cut(whole, tmp_path):
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", report=at(7, cut))
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 8, "loss": 2.9\xff')
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == list(range(1, 8))
    train(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.parametrize("lost", ["the last two", "all of it"])
def test_rows_that_are_lost_at_the_end_of_a_curve_are_told_of(tmp_path, capsys, lost):
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", report=at(7, cut))  # its last checkpoint is of step 6
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if lost == "all of it":
        path.unlink()
    else:
        path.write_text("".join(lines[:4]))
    capsys.readouterr()
    train(tmp_path / "run")
    said = capsys.readouterr().err
    if lost == "all of it":
        assert "metrics.jsonl is gone, with the 6 rows up to step 6" in said
    else:
        assert "metrics.jsonl is damaged: 2 of the 6 rows up to step 6 are missing at its end" in said
        assert (tmp_path / "run" / "damaged" / "metrics.jsonl.1").read_text() == "".join(lines[:4])
    rest = [] if lost == "all of it" else [1, 2, 3, 4]
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [*rest, *range(7, 13)]


def test_leftovers_of_a_write_that_was_cut_off_are_removed(unfinished):
    leftover = unfinished / "checkpoints" / ".step-000000012.4711.partial"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    api.load(unfinished)
    assert leftover.exists(), "whoever only reads must not take it away from a process that may be writing"
    train(unfinished)
    assert not leftover.exists()
    assert not list(unfinished.rglob("*.partial"))


def test_the_best_checkpoint_is_kept_beside_the_newest_two(tmp_path, monkeypatch):
    shares = iter([0.1, 0.9, 0.2, 0.3, 0.3, 0.9])
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_: {"exact_match": next(shares), "examples": 20.0})
    result = train(tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-000000006", "step-000000009", "step-000000012"]
    assert result["exact_match"] == 0.3
    assert result["best"] == {"step": 6, "exact_match": 0.9, "examples": 20.0}


def test_checkpoints_beyond_the_step_that_is_written_push_none_out(tmp_path):
    """Training goes on from step 4 where 8 and 9 are damaged: 3 and 4 must stay beside them."""
    model = torch.nn.Linear(2, 1)
    optimizers = {"adamw": torch.optim.AdamW(model.parameters())}
    for step in (2, 3, 8, 9, 4):
        save_checkpoint(tmp_path, step, model, optimizers, keep={2, 3, 8, 9} if step > 4 else set())
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == [f"step-{step:09d}" for step in (3, 4, 8, 9)]


def test_a_best_checkpoint_that_is_damaged_does_not_cost_the_result(tmp_path, monkeypatch, capsys):
    shares = iter([0.1, 0.9, 0.2, 0.3, 0.3])
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_: {"exact_match": next(shares), "examples": 20.0})
    best = tmp_path / "run" / "checkpoints" / "step-000000006" / "model.safetensors"
    result = train(tmp_path / "run", report=at(12, lambda: best.write_bytes(b"")))
    assert (result["exact_match"], result["best"]) == (0.3, {"step": 6, "exact_match": 0.9})
    assert (
        "model.safetensors does not match its checksum; the best metric is the one measured" in capsys.readouterr().err
    )


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smallest(tmp_path_factory):
    """A checkpoint of four numbers."""
    folder = tmp_path_factory.mktemp("smallest")
    model = nn.Linear(1, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    return save_checkpoint(folder, 3, model, {"adamw": optimizer}, {"best": None, "losses": [0.5]})


@pytest.mark.slow
@pytest.mark.parametrize("name", [FILES[0], pytest.param(FILES[1], marks=pytest.mark.long), *FILES[2:]])
def test_every_flipped_bit_is_noticed(smallest, tmp_path, name):
    path = shutil.copytree(smallest, tmp_path / smallest.name)
    content = (path / name).read_bytes()
    # Of the 5,000 bytes of random state every seventh will do.
    places = [n for n in range(len(content)) if n < 1000 or n % 7 == 0]
    with (path / name).open("r+b") as file:
        for place, bit in itertools.product(places, range(8)):
            os.pwrite(file.fileno(), bytes([content[place] ^ 1 << bit]), place)
            with pytest.raises(checkpoint.DamagedError) as error:
                checkpoint.verify(path)
            os.pwrite(file.fileno(), content[place : place + 1], place)
            assert str(path) in str(error.value)
            # A flipped manifest accuses the file whose hash it holds.
            assert name in str(error.value) or name == "manifest.json"
    checkpoint.verify(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-2]),
        lambda file: file.write_bytes(file.read_bytes()[: len(file.read_bytes()) // 2]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(bytes(file.stat().st_size)),
        lambda file: file.write_bytes(file.read_bytes() + b"}"),
        lambda file: file.unlink(),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["last bytes", "half", "empty", "zeros", "appended", "missing", "folder"],
)
def test_a_spoilt_file_is_named(smallest, tmp_path, name, spoil):
    path = shutil.copytree(smallest, tmp_path / smallest.name)
    spoil(path / name)
    with pytest.raises(checkpoint.DamagedError, match=f"checkpoint {path} is damaged.*{name}"):
        checkpoint.verify(path)


@pytest.mark.parametrize("name", FILES[:3])
def test_a_symbolic_link_is_refused(smallest, tmp_path, name):
    path = shutil.copytree(smallest, tmp_path / smallest.name)
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(checkpoint.DamagedError, match=f"{name} is missing or not a plain file"):
        checkpoint.verify(path)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "extra.bin", "model.safetensors/../state.json"])
def test_a_manifest_with_other_names_is_refused_before_it_is_followed(smallest, tmp_path, name, monkeypatch):
    path = shutil.copytree(smallest, tmp_path / smallest.name)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, name: "0" * 64}))
    opened = []
    monkeypatch.setattr(checkpoint, "sha256", lambda file: opened.append(file))
    with pytest.raises(checkpoint.DamagedError, match=r"manifest\.json does not list model\.safetensors, optimizer"):
        checkpoint.verify(path)
    assert opened == []


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "{}", "[" * 100_000, "NaN", "{"])
def test_a_manifest_that_is_none_is_refused(smallest, tmp_path, text):
    path = shutil.copytree(smallest, tmp_path / smallest.name)
    (path / "manifest.json").write_text(text)
    with pytest.raises(checkpoint.DamagedError, match=r"damaged.*manifest\.json"):
        checkpoint.verify(path)


def test_a_file_of_another_checkpoint_is_noticed(unfinished):
    older, newer = sorted((unfinished / "checkpoints").glob("step-*"))[-2:]
    shutil.copy(older / "model.safetensors", newer / "model.safetensors")
    with pytest.raises(checkpoint.DamagedError, match=r"model\.safetensors does not match its checksum"):
        checkpoint.verify(newer)


def test_json_of_a_gigabyte_is_not_read(tmp_path):
    with (tmp_path / "run.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match=r"run\.json is larger than 16 MB, which no file of jari is"):
        read_json(tmp_path / "run.json")


def damage(path, name="model.safetensors"):
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)


def test_training_falls_back_to_the_checkpoint_before_and_says_so(whole, unfinished, capsys):
    damage(newest_of(unfinished))
    train(unfinished)
    said = capsys.readouterr().err
    assert f"jarilab: checkpoint {newest_of(unfinished)} is damaged: model.safetensors does not match" in said
    assert outcome(unfinished) == outcome(whole)


@pytest.mark.long
def test_two_damaged_checkpoints_do_not_push_out_the_whole_one(tmp_path, capsys):
    experiment = tiny(training__evaluations=12)
    train(tmp_path / "whole", experiment)
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", experiment, report=at(4, cut))
    folder = tmp_path / "run" / "checkpoints"
    for step in (9, 10):
        shutil.copytree(folder / "step-000000004", folder / f"step-{step:09d}")
        damage(folder / f"step-{step:09d}")
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", experiment, report=at(6, cut))
    assert checkpoint.newest(folder)[0] == folder / "step-000000006"
    train(tmp_path / "run", experiment)
    assert outcome(tmp_path / "run")[1:] == outcome(tmp_path / "whole")[1:]


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_training_with_no_whole_checkpoint_is_refused_and_overwrites_nothing(unfinished):
    for path in (unfinished / "checkpoints").iterdir():
        damage(path)
    before = contents(unfinished)
    with pytest.raises(UserError) as error:
        train(unfinished)
    message = str(error.value)
    assert message.startswith(f"no undamaged checkpoint is left: checkpoint {newest_of(unfinished)} is damaged: model")
    assert message.endswith(f"; put back a copy, or remove {unfinished / 'checkpoints'} to start anew")
    assert contents(unfinished) == before


@pytest.mark.parametrize("name", FILES[:3])
def test_a_damaged_newest_checkpoint_is_refused_for_use(finished, name):
    damage(newest_of(finished), name)
    before = sorted((finished / "checkpoints").glob("step-*"))[-2]
    message = (
        f"checkpoint {newest_of(finished)} is damaged: {name} does not match its checksum; "
        f"{before} before it is undamaged: `jarilab verify {finished} --repair` moves the damaged one aside, "
        "so that it is used"
    )
    for use in (api.evaluate, lambda run: list(api.predict(run, ["1+1"])), lambda run: api.walk(run, "1+1")):
        with pytest.raises(UserError) as error:
            use(finished)
        assert str(error.value) == message
    assert jarilab.verify(finished, repair=True).answers_from == 9
    assert api.load(finished).step == 9


# What is in the files ------------------------------------------------------------------------------------------------


def resealed(path):
    """A manifest that fits the files: what somebody who means harm would write."""
    manifest = {name: checkpoint.sha256(path / name) for name in FILES[:3]}
    (path / "manifest.json").write_text(json.dumps(manifest))


class Canary:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("dump", [lambda value, path: path.write_bytes(pickle.dumps(value)), torch.save])
@pytest.mark.parametrize("name", FILES[:2])
def test_a_pickle_is_never_executed(unfinished, tmp_path, dump, name):
    trace = tmp_path / "executed"
    file = newest_of(unfinished) / name
    dump(Canary(trace), file)
    kept = file.read_bytes()
    resealed(newest_of(unfinished))
    with pytest.raises(UserError, match=f"{name} is damaged or no safetensors file"):
        train(unfinished)
    if name == "model.safetensors":
        with pytest.raises(UserError, match=f"{name} is damaged or no safetensors file"):
            api.load(unfinished)
    assert not trace.exists()
    assert file.read_bytes() == kept
    if dump is not torch.save:
        pickle.loads(kept)
        assert trace.exists(), "the canary sings, so its silence above means something"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_refused(finished, value):
    path = newest_of(finished)
    tensors = load_file(path / "model.safetensors")
    tensors["decoder.norm.weight"][3] = value
    save_file(tensors, path / "model.safetensors")
    resealed(path)
    with pytest.raises(UserError, match=r"decoder\.norm\.weight holds values that are not finite"):
        api.load(finished)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tensors: tensors.pop("decoder.norm.bias"), "decoder.norm.bias is missing"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "extra is unknown to the model"),
        (
            lambda tensors: tensors.update({"decoder.norm.bias": torch.ones(17)}),
            "decoder.norm.bias is (17,) torch.float32, the model has (16,) torch.float32",
        ),
        (
            lambda tensors: tensors.update({"decoder.norm.bias": torch.ones(16, dtype=torch.float16)}),
            "decoder.norm.bias is (16,) torch.float16, the model has (16,) torch.float32",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(finished, spoil, message):
    path = newest_of(finished)
    tensors = load_file(path / "model.safetensors")
    spoil(tensors)
    save_file(tensors, path / "model.safetensors")
    resealed(path)
    with pytest.raises(UserError) as error:
        api.load(finished)
    assert str(error.value) == f"{path / 'model.safetensors'}: {message}"


def test_a_checkpoint_of_another_format_is_refused(unfinished):
    path = newest_of(unfinished)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "format": 99}))
    resealed(path)
    with pytest.raises(UserError, match=r"expected format 'jari checkpoint 1' .* got 99"):
        train(unfinished)


# Numbers that are none -----------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_before_the_update(tmp_path, monkeypatch):
    def spoilt(self, scores, batch, smoothing):
        self.steps = getattr(self, "steps", 0) + 1
        return LOSS(self, scores, batch, smoothing) * (float("nan") if self.steps == 8 else 1)

    monkeypatch.setattr(Arithmetic, "loss", spoilt)
    with pytest.raises(UserError) as error:
        train(tmp_path / "run")
    kept = tmp_path / "run" / "checkpoints" / "step-000000006"
    assert str(error.value).startswith("step 8: the loss is nan and the norm of its gradient nan, so training stopped")
    assert f"{kept} is the last checkpoint. A lower training.lr" in str(error.value)
    assert checkpoint.newest(tmp_path / "run" / "checkpoints")[0] == kept
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == list(range(1, 8))
    assert all(bool(tensor.isfinite().all()) for tensor in load_file(kept / "model.safetensors").values())


LOSS = Arithmetic.loss


def test_a_rate_that_is_too_high_is_stopped_without_a_checkpoint(tmp_path):
    with pytest.raises(UserError, match=r"step \d+: the loss is .* there is no checkpoint yet\. A lower"):
        train(tmp_path / "run", tiny(training__lr=1e35, training__evaluations=1))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_tied_weights_are_written_once_for_each_name(tmp_path):
    def tied():
        model = nn.ModuleDict({"tokens": nn.Embedding(5, 3), "scores": nn.Linear(3, 5, bias=False)})
        model["scores"].weight = model["tokens"].weight
        return model

    model, again = tied(), tied()
    path = save_checkpoint(tmp_path, 3, model, {}, {"run": "here"})
    checkpoint.load_model(path, again, "here")
    assert again["scores"].weight is again["tokens"].weight
    assert torch.equal(again["tokens"].weight, model["tokens"].weight)


def test_weights_that_are_no_numbers_are_not_written(tmp_path):
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight[0] = float("inf")
    with pytest.raises(UserError, match="step 5: weight holds values that are not finite, so no checkpoint of"):
        save_checkpoint(tmp_path, 5, model, {})
    assert list(tmp_path.iterdir()) == []


# Disks ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """One megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("A FULL DISK IS NOT TESTED HERE: mounting a small one needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk, leave=0):
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(max(0, file.tell() - leave))


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(whole, small_disk, capsys):
    run = small_disk / "run"
    with pytest.raises(UserError) as error:
        train(run, report=at(4, lambda: fill(small_disk)))
    message = str(error.value)
    assert "\n" not in message
    assert "No space left on device" in message
    assert str(run) in message
    assert "untouched" in message
    assert checkpoint.newest(run / "checkpoints")[0] == run / "checkpoints" / "step-000000003"
    assert not list(run.rglob("*.partial"))
    (small_disk / "filler").unlink()
    train(run)
    assert outcome(run) == outcome(whole)


@pytest.mark.parametrize("leave", [0, 16 << 10, 64 << 10, 128 << 10])
def test_a_checkpoint_that_does_not_fit_leaves_the_earlier_one(small_disk, leave):
    model = nn.Linear(100, 100)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(100)).sum().backward()
    optimizer.step()
    first = save_checkpoint(small_disk / "run", 1, model, {"adamw": optimizer})
    fill(small_disk, leave)
    with pytest.raises(UserError, match=r"the checkpoint of step 2 could not be written to .*No space left") as error:
        save_checkpoint(small_disk / "run", 2, model, {"adamw": optimizer})
    assert "earlier checkpoints are untouched. Free disk space and repeat the command" in str(error.value)
    assert [path.name for path in (small_disk / "run").iterdir()] == [first.name]
    checkpoint.verify(first)


def test_a_run_cannot_begin_on_a_full_disk(small_disk):
    fill(small_disk)
    with pytest.raises(UserError, match=r"run\.json cannot be written: No space left on device"):
        train(small_disk / "run")
    (small_disk / "filler").unlink()
    train(small_disk / "run")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written: .*Not a directory"):
        train(tmp_path / "file" / "run")


def test_json_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "table.json"
    write_json(path, {"old": 1})
    seen = []

    def full(descriptor):
        seen.append(json.loads(path.read_text()))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"table\.json cannot be written: .*No space left on device"):
        write_json(path, {"new": 2})
    monkeypatch.undo()
    assert seen == [{"old": 1}], "readers see the old file while the new one is written"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"new": float("nan")})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["table.json"]
    write_json(path, {"새": 2})
    assert path.read_text(encoding="utf-8") == '{\n  "새": 2\n}\n'


# Folders -------------------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused(tmp_path):
    with (
        Run.open(tmp_path / "run", tiny(), "data", {}),
        pytest.raises(UserError, match=r"another process is training in .*run; wait for it, or choose another --out"),
    ):
        Run.open(tmp_path / "run", tiny(), "data", {})
    with Run.open(tmp_path / "run", tiny(), "data", {}):
        pass


def test_a_folder_of_another_experiment_is_refused_with_the_difference(finished):
    before = contents(finished)
    with pytest.raises(UserError) as error:
        train(finished, tiny("rotary", training__batch_size=8))
    assert str(error.value) == (
        f"{finished} holds another run; choose another --out, or give its settings:\n"
        "  model.encoding: rotary here, shaw there\n  training.batch_size: 8 here, 16 there"
    )
    assert contents(finished) == before
    train(finished)  # the lock was given back


def test_a_run_on_other_data_is_refused(finished, monkeypatch):
    monkeypatch.setattr(Arithmetic, "fingerprint", lambda self: "other data")
    with pytest.raises(UserError, match=r"data: 'other data' here, 'i\+j and i-j.*' there"):
        train(finished)


@pytest.mark.parametrize("name", ["thesis.tex", "checkpoints", ".hidden"])
def test_a_folder_with_foreign_files_is_refused(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(UserError, match="exists and is not a run; choose another --out"):
        train(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a run; choose another --out"):
        train(tmp_path / "run")


def test_a_start_that_was_cut_off_is_no_foreign_folder(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    (run / ".run.json.4711.partial").write_text('{"form')
    experiment = tiny(training__examples=16)
    assert train(run, experiment)["steps"] == 1
    loaded = api.load(run)
    assert (loaded.experiment, loaded.step) == (experiment, 1)


@pytest.mark.parametrize("format", [0, 1, 2, "jari run 2", None])
def test_a_run_of_another_format_is_refused(unfinished, format):
    (unfinished / "run.json").write_text(json.dumps(held(unfinished / "run.json") | {"format": format}))
    before = contents(unfinished)
    for use in (train, api.load):
        with pytest.raises(UserError, match=rf"expected format 'jari run 1' of .* got {format!r}.* train again"):
            use(unfinished)
    assert contents(unfinished) == before


@pytest.mark.parametrize(("section", "names"), [("training", ("lr", "rate")), ("model_options", ("d_model", "width"))])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_run_with_the_options_of_another_version_is_refused(unfinished, section, names, renamed):
    name, other = names
    record = held(unfinished / "run.json")
    options = record["experiment"][section]
    value = options.pop(name)
    if renamed:
        options[other] = value
    record["hash"] = Experiment(**record["experiment"]).hash
    seal(unfinished / "run.json", record)
    expected = f"has no option '{other}'" if renamed else f"expected the option '{name}' of jarilab"
    for use in (train, api.load):
        with pytest.raises(UserError, match=expected):
            use(unfinished)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "jari run 1", "experiment": 3}', "[" * 100_000, "\0" * 50]
)
def test_a_spoilt_run_json_is_refused(unfinished, text):
    (unfinished / "run.json").write_text(text)
    before = contents(unfinished)
    for use in (train, api.load):
        with pytest.raises(UserError, match=r"run\.json"):
            use(unfinished)
    assert contents(unfinished) == before


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("hash", 3, "a text"),
        ("experiment", [], "named values"),
        ("data", None, "a text"),
        ("kept", [], "named values"),
        ("kept", {"vocabulary.json": 3}, "a text"),
        ("environment", "x", "named values"),
    ],
)
def test_a_field_of_run_json_that_was_edited_is_named(unfinished, name, value, expected):
    path = unfinished / "run.json"
    record = held(path)
    for edited in (record | {name: value}, {key: own for key, own in record.items() if key != name}):
        seal(path, edited)
        problem = f"(vocabulary.json: )?expected {expected}, got" if name in edited else "is missing;"
        for use in (train, api.load):
            with pytest.raises(
                UserError, match=rf"run\.json: {name}:? {problem}.* put the file back as it was written"
            ):
                use(unfinished)


def test_another_machine_is_said_aloud(unfinished, capsys):
    record = held(unfinished / "run.json")
    record["environment"] |= {"threads": 64, "torch": "1.0", "jari": "0.0.1"}
    seal(unfinished / "run.json", record)
    train(unfinished)
    said = capsys.readouterr().err
    told = f"jari was 0.0.1, is {jarilab.__version__}; torch was 1.0, is {torch.__version__}; threads was 64, is 1"
    assert f"jarilab: from here on not bit-exact, because {told}\n" in said
    train(unfinished)
    assert "not bit-exact" not in capsys.readouterr().err, "of a finished run nothing is computed"


def test_a_run_without_a_checkpoint_cannot_be_used(tmp_path):
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", report=at(1, cut))
    with pytest.raises(UserError, match="has no checkpoint yet; train it first"):
        api.load(tmp_path / "run")


def test_a_checkpoint_of_another_run_is_named(finished, tmp_path):
    train(tmp_path / "other", tiny("none"))
    shutil.rmtree(finished / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", finished / "checkpoints")
    expected = f"expected a checkpoint of the run {tiny().hash}, got one of {tiny('none').hash}"
    with pytest.raises(UserError, match=expected):
        api.load(finished)
    (finished / "result.json").unlink()
    with pytest.raises(UserError, match=expected):
        train(finished)


@pytest.mark.parametrize("line", ["5", "[]", "null", "{}", '{"step": "x"}', "[" * 100_000, "garbage"])
def test_a_curve_that_is_none_is_cut(whole, unfinished, line):
    (unfinished / "metrics.jsonl").write_text(line + "\n")
    train(unfinished)
    assert outcome(unfinished)[2] == outcome(whole)[2] | {"curve_rows": 0}


@pytest.mark.parametrize("text", ["5", "[]", "null", "{}", "garbage"])
def test_a_result_that_is_none_is_named_and_kept(finished, text):
    (finished / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"result\.json"):
        train(finished)
    assert (finished / "result.json").read_text() == text


def test_a_run_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        train(tmp_path / "run", snapshots=1)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".safetensors", ".json"}
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o640"}


def test_a_walk_leaves_an_open_run_in_float32(finished):
    opened = jarilab.load(finished)
    api.walk(opened, "1+1")
    assert {parameter.dtype for parameter in opened.model.parameters()} == {torch.float32}
