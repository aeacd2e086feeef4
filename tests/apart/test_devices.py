"""Everything runs on an accelerator that refuses what a GPU refuses: see `helpers/fake_accelerator.py`.

`unit/training/test_devices.py` runs this file in a process of its own: PyTorch must know a device before its first
gradient, and knows it for good.
"""

import pytest
import torch

import jarilab
from helpers import fake_accelerator
from helpers.fake_accelerator import LabTensor
from helpers.runs import PowerCutError, at, cut, outcome
from jarilab import api
from jarilab.core.devices import constant, device_of, parse_device, to_device
from jarilab.core.errors import UserError
from jarilab.encodings.base import registry as encodings
from jarilab.models.decoder import CausalStack
from jarilab.models.layers import LayerOptions
from jarilab.positions.coordinates import Positions
from jarilab.runs.folder import read_metrics, read_run
from jarilab.training import loop

SETTINGS = {
    "training.examples": 48,
    "training.batch_size": 16,
    "training.evaluations": 1,
    "training.evaluation_examples": 8,
    "training.optimizer": "adamw",
    "training.lr": 0.001,
    "model.d_model": 16,
    "model.dropout": 0.0,
}
SMALL = {"model.n_heads": 2, "model.n_encoder_layers": 1, "model.n_decoder_layers": 1}
NUMBERS = "arithmetic:maximum=9"
FAMILIES = {
    "encoder_decoder": (NUMBERS, SMALL, "8+1"),
    "decoder": (NUMBERS, {"model": "decoder", "model.n_heads": 2, "model.n_layers": 1}, "8+1"),
    "abacus": (NUMBERS, {**SMALL, "training.positions": "abacus"}, "8+1"),
    "vit": ("digits", {"model.n_heads": 2, "model.n_layers": 1}, "#0"),
}
QUICK = {"encoder_decoder", "vit"}
"""Trained in every run of the tests."""


@pytest.fixture(scope="module", autouse=True)
def lab():
    return fake_accelerator.install()


def trained(folder, device, task, settings, **options):
    """A short training with AdamW, which does not make much of the last bits as Muon does."""
    settings = {**SETTINGS, **settings}
    model = settings.pop("model", None)
    options = {"precision": "float32", "threads": 1, **options}
    return api.train(task, folder, model=model, settings=settings, device=device, **options)


def curves(folder):
    return [(row["loss"], row["gradient_norm"]) for row in read_metrics(folder)]


@pytest.mark.parametrize(
    "family", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]
)
def test_a_family_learns_and_answers_on_an_accelerator_as_on_the_processor(tmp_path, family):
    task, settings, line = FAMILIES[family]
    results = [trained(tmp_path / device, device, task, settings) for device in ("cpu", "lab")]
    here, there = (curves(tmp_path / device) for device in ("cpu", "lab"))
    assert torch.allclose(torch.tensor(here), torch.tensor(there), rtol=1e-3, atol=1e-4)
    metric = results[0]["metric"]
    assert results[0][metric] == pytest.approx(results[1][metric], abs=0.05)
    assert read_run(tmp_path / "lab")["environment"]["device"] == "lab"

    run = tmp_path / "cpu"
    answers = [[answer.record() for answer in api.predict(run, [line], device=device)] for device in ("cpu", "lab")]
    assert answers[0][0]["answer"] == answers[1][0]["answer"]
    measured = [api.evaluate(run, device=device)[metric] for device in ("cpu", "lab")]
    assert measured[0] == pytest.approx(measured[1], abs=1e-6)


def attends(name, device):
    """The output of a stack under an encoding, and its gradients."""
    torch.manual_seed(1)
    axes = min(encodings.spec(name).target.axes)
    if axes == 1:
        stack = CausalStack(LayerOptions(24, 2), 1, encoding=name, window=None)
    else:
        stack = jarilab.Encoder(24, 2, 1, encoding=name)
    order_L = torch.arange(9)
    coordinates_LA = torch.stack([order_L // 3**axis % 3 for axis in range(axes)], 1)
    names = tuple("abc"[:axes])
    places = Positions.sequence(9) if axes == 1 else Positions(coordinates_LA, order_L, names)
    x_BLD, keep_BL = torch.randn(2, 9, 24), torch.ones(2, 9, dtype=torch.bool)
    keep_BL[1, 6:] = False
    stack.to(device)
    x_BLD, places, keep_BL = to_device((x_BLD, places, keep_BL), torch.device(device))
    output = stack(x_BLD, positions=places, keep=keep_BL)
    output.square().sum().backward()
    assert device_of(stack).type == device
    gradients = [p.grad.cpu() for p in stack.parameters() if p.grad is not None]
    return [output.detach().cpu(), *gradients]


@pytest.mark.parametrize("name", encodings.names())
def test_every_encoding_computes_there_what_it_computes_here(name):
    for expected, found in zip(attends(name, "cpu"), attends(name, "lab"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_equal_constants_have_dtypes_of_their_own():
    device = torch.device("lab")
    assert constant((1, 2), device).dtype is torch.int64
    assert constant((1.0, 2.0), device).dtype is torch.float32


def test_a_step_waits_for_nothing(tmp_path, monkeypatch):
    """The host asks at the first step and where the curve has a point, and never between."""
    monkeypatch.setattr(loop, "CURVE_POINTS", 2)
    waited = []
    settings = {**SMALL, "training.examples": 16 * 8, "training.evaluation_examples": 1}
    with fake_accelerator.counting() as waits:

        def report(row):
            waited.append(len(waits))
            waits.clear()

        trained(tmp_path / "run", "lab", NUMBERS, settings, report=report)
    assert [count > 0 for count in waited] == [True, False, False, True, False, False, False, True]


def test_a_run_that_was_cut_off_there_goes_on_to_the_same_bits(tmp_path):
    settings = {**SMALL, "model.dropout": 0.1, "training.evaluations": 3}
    trained(tmp_path / "whole", "lab", NUMBERS, settings)
    with pytest.raises(PowerCutError):
        trained(tmp_path / "run", "lab", NUMBERS, settings, report=at(2, cut))
    trained(tmp_path / "run", "lab", NUMBERS, settings)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_going_on_elsewhere_says_that_it_is_not_exact(tmp_path, capsys):
    settings = {**SMALL, "model.dropout": 0.1, "training.evaluations": 3}
    with pytest.raises(PowerCutError):
        trained(tmp_path / "run", "cpu", NUMBERS, settings, report=at(2, cut))
    trained(tmp_path / "run", "lab", NUMBERS, settings)
    said = capsys.readouterr().err
    assert "from here on not bit-exact, because device was cpu, is lab" in said
    assert "was not saved for this device and rank" in said


def test_a_tape_of_a_model_that_is_there(lab):
    model = jarilab.Encoder(24, 2, 1, encoding="rotary").to(lab)
    with jarilab.record(model) as tape:
        model(torch.randn(1, 5, 24).to(lab))
    (site,) = tape.sites
    assert isinstance(tape.weights(site), LabTensor)
    assert tape.trust(site).rebuild_error < 1e-5


def test_what_is_held_twice_stays_one_thing(lab):
    shared = torch.arange(3)
    first, (second, flag) = to_device((shared, [shared, True]), lab)
    assert first is second
    assert flag is True
    assert to_device(first, lab) is first


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cuda", "cuda was requested, and PyTorch .* finds lab and no other; use --device cpu"),
        ("lab:3", "lab:3 was asked for, and there is lab:0; name one of these"),
        ("gpu", "expected a device such as auto, cpu, cuda"),
        ("cpu:1", "there is one processor"),
    ],
)
def test_a_device_that_is_not_there_is_told(name, told):
    with pytest.raises(UserError, match=told):
        parse_device(name)


def test_bfloat16_is_refused_where_the_device_has_none(tmp_path):
    with pytest.raises(UserError, match=r"expected a device with bfloat16, got .*; use float32"):
        trained(tmp_path / "run", "lab", NUMBERS, SMALL, precision="bfloat16")
    assert not (tmp_path / "run").exists()
