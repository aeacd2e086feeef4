"""torch.compile(fullgraph=True) takes the dataclass arguments and the hooks of every encoding, forward and backward."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SPECS = [
    "none",
    "sinusoidal",
    "learned",
    "rotary:pairing=interleaved,fraction=0.5",
    "shaw",
    "shaw:values=false",
    "t5",
    "alibi",
    "sinusoidal+rotary+alibi",
]
EVERY_HOOK = ["sinusoidal+rotary+shaw+alibi"]  # embed, rotate, terms, bias, values: in every run of the tests
RECORDING = "capture"
PROBE = Path(__file__).parents[2] / "helpers" / "compile_probe.py"


def probe(backend, model, specs):
    """What the probe measures, by encoding; under RECORDING what a tape of a compiled model has."""
    command = [sys.executable, str(PROBE), backend, model, *specs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def traced():
    """Traced whole, and run by PyTorch's own kernels: needs no compiler."""
    return probe("eager", "layer", EVERY_HOOK)


@pytest.fixture(scope="module")
def recorded():
    return probe("aot_eager", "layer", [RECORDING])


def compiled_with(model, specs):
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("NOT TESTED: torch.compile needs a C++ compiler, and there is none here; install g++")
    return probe("inductor", model, specs)


@pytest.fixture(scope="module")
def compiled():
    return compiled_with("layer", [*EVERY_HOOK, RECORDING])


@pytest.mark.slow
@pytest.mark.parametrize("spec", EVERY_HOOK)
def test_a_layer_is_one_graph_forward_and_backward(traced, spec):
    assert traced[spec]["output"] < 1e-6
    assert traced[spec]["gradient"] < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("spec", EVERY_HOOK)
def test_a_layer_compiles_forward_and_backward(compiled, spec):
    assert compiled[spec]["output"] < 1e-5
    assert compiled[spec]["gradient"] < 1e-3


@pytest.mark.long
def test_the_whole_model_compiles_with_every_encoding():
    specs = [*SPECS, *EVERY_HOOK]
    compiled, traced = compiled_with("encoder_decoder", specs), probe("aot_eager", "layer", specs)
    assert max(compiled[spec]["output"] for spec in specs) < 1e-5
    assert max(compiled[spec]["gradient"] for spec in specs) < 1e-3
    assert max(traced[spec]["output"] for spec in specs) < 1e-6
    assert max(traced[spec]["gradient"] for spec in specs) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("backend", ["recorded", "compiled"])
def test_recording_a_compiled_model(backend, request):
    capture = request.getfixturevalue(backend)[RECORDING]
    assert capture["hook set before compiling"] == ["encoder.0"]
    assert capture["around a model of jarilab, compiled earlier"] < 1e-6
    assert capture["compiled earlier"].startswith("nothing was recorded")
    assert "call its original (compiled._orig_mod)" in capture["compiled earlier"]
    assert capture["the original of one compiled earlier"] == ["0"]
