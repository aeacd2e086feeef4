"""On a real GPU what runs everywhere else: `pytest -m gpu`. The device of pretence, `apart/test_devices.py`, stands in
for it where there is none."""

import json
import subprocess
import sys

import pytest
import torch

import jarilab
from helpers.runs import PowerCutError, at, cut
from jarilab import api
from jarilab.encodings.base import registry
from jarilab.models.decoder import CausalStack
from jarilab.models.decoding import replay
from jarilab.models.decoding.greedy_search import greedy
from jarilab.models.layers import LayerOptions
from jarilab.positions.coordinates import Positions
from jarilab.runs.folder import read_metrics

pytestmark = pytest.mark.gpu

SETTINGS = {
    "training.examples": 480,
    "training.batch_size": 16,
    "training.evaluations": 2,
    "training.evaluation_examples": 32,
    "training.optimizer": "adamw",
    "model.d_model": 32,
    "model.n_heads": 2,
    "model.n_encoder_layers": 1,
    "model.n_decoder_layers": 1,
}
NUMBERS = "arithmetic:maximum=9"


def losses(folder):
    return [row["loss"] for row in read_metrics(folder)]


@pytest.mark.parametrize("spec", [name for name in registry.names() if 1 in registry.spec(name).target.axes])
def test_an_encoding_gives_the_same_outputs_and_gradients_on_a_gpu(spec):
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        stack = CausalStack(LayerOptions(16, 2), 2, encoding=spec, window=None).to(device)
        x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(2)).to(device)
        y = stack(x, positions=Positions.sequence(9, device=device))
        y.square().mean().backward()
        found.append([y, *(p.grad for p in stack.parameters() if p.grad is not None)])
    for here, there in zip(*found, strict=True):
        assert torch.allclose(here, there.cpu(), atol=1e-4, rtol=1e-3)


def test_a_gpu_learns_and_answers_as_the_processor(tmp_path):
    for device in ("cpu", "cuda"):
        api.train(NUMBERS, tmp_path / device, settings=SETTINGS, device=device, precision="float32")
    assert torch.allclose(*(torch.tensor(losses(tmp_path / device)) for device in ("cpu", "cuda")), rtol=1e-2)
    answers = [next(iter(api.predict(tmp_path / "cpu", ["8+1"], device=device))) for device in ("cpu", "cuda")]
    assert answers[0].record()["answer"] == answers[1].record()["answer"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_going_on_is_exact_on_one_kind_of_gpu(tmp_path, precision):
    options = {"settings": {**SETTINGS, "model.dropout": 0.1}, "device": "cuda", "precision": precision}
    api.train(NUMBERS, tmp_path / "whole", **options)
    with pytest.raises(PowerCutError):
        api.train(NUMBERS, tmp_path / "parts", report=at(20, cut), **options)
    api.train(NUMBERS, tmp_path / "parts", **options)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


def test_a_step_waits_for_nothing():
    model = jarilab.LanguageModel(65, d_model=64, n_layers=2, encoding="t5").cuda()
    ids = torch.randint(65, (4, 256), device="cuda")
    model(ids).float().logsumexp(-1).mean().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(ids).float().logsumexp(-1).mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("spec", ["rotary", "learned:positions=64", "t5", "alibi"])
def test_replayed_steps_write_what_single_steps_write(spec, monkeypatch):
    torch.manual_seed(1)
    model = jarilab.LanguageModel(65, d_model=64, n_layers=2, encoding=spec).cuda().eval()
    keep = torch.tensor([[False, True, True], [True, True, True]], device="cuda")
    prompt = jarilab.Tokens(torch.randint(65, (2, 3), device="cuda"), Positions.from_mask(keep), keep)
    options = {"first": 0, "end": 65, "padding": 0, "longest": 40, "places": jarilab.positions_after(prompt)}
    captured, capture = [], replay._graph
    monkeypatch.setattr(replay, "_graph", lambda *steps: captured.append(steps) or capture(*steps))
    found = greedy(model, prompt, **options)
    assert len(captured) == 1
    monkeypatch.setattr(replay, "_on_gpu", lambda ids: False)
    expected = greedy(model, prompt, **options)
    assert len(captured) == 1
    assert found.ids.equal(expected.ids)
    assert torch.allclose(found.log_probabilities, expected.log_probabilities, atol=1e-4)


def test_two_processes_share_the_machines_gpus(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here: two processes need one each")
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "jarilab", "train", NUMBERS]
    command += ["--device", "cuda", "--precision", "float32", "--out"]
    subprocess.run([sys.executable, *command, str(tmp_path / "two"), *settings], check=True)
    api.train(NUMBERS, tmp_path / "one", settings=SETTINGS, device="cuda", precision="float32")
    assert torch.allclose(torch.tensor(losses(tmp_path / "one")), torch.tensor(losses(tmp_path / "two")), rtol=1e-3)
    assert json.loads((tmp_path / "two" / "run.json").read_text())["environment"]["ranks"] == 2
