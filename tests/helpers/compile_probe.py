"""Run by test_compile.py in a process of its own: torch.compile cannot see through run-time checks of annotations.

    python compile_probe.py BACKEND {layer,encoder_decoder} encodings...

Prints one JSON object: by encoding, what compiling changes; under "capture", what recording a compiled model gives.
"""

import json
import sys

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.inspect.record.capture import record
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.stacks import Encoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


class Layer(nn.Module):
    """One layer at far positions with a mask of two rules, under which one query has no key at all."""

    def __init__(self, spec: str):
        super().__init__()
        self.encoder = Encoder(16, n_heads=2, n_layers=1, encoding=spec, d_ff=8)

    def forward(self, x_BLD: torch.Tensor, keep_BL: torch.Tensor) -> torch.Tensor:
        return self.encoder(x_BLD, positions=Positions.sequence(5, 300), mask=Mask(causal=True, keys=keep_BL))


def differences(model: nn.Module, inputs: tuple[torch.Tensor, ...], backend: str) -> dict[str, float]:
    """The largest difference that compiling makes to the output and to any gradient."""
    initialise(model, 0)

    def run(function):
        model.zero_grad()
        output = function(*inputs)
        output.square().sum().backward()
        return output.detach(), [p.grad.clone() for p in model.parameters()]

    torch.compiler.reset()
    output, gradients = run(model)
    compiled_output, compiled_gradients = run(torch.compile(model, fullgraph=True, backend=backend))
    pairs = zip(gradients, compiled_gradients, strict=True)
    return {
        "output": (output - compiled_output).abs().max().item(),
        "gradient": max((a - b).abs().max().item() for a, b in pairs),
    }


def layer(spec: str, backend: str) -> dict[str, float]:
    keep = torch.tensor([[True] * 5, [False, True, True, True, True]])
    return differences(Layer(spec), (torch.randn(2, 5, 16), keep), backend)


def encoder_decoder(spec: str, backend: str) -> dict[str, float]:
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, encoding=spec, d_ff=8)
    return differences(model, (torch.randint(9, (2, 6)), torch.randint(9, (2, 4))), backend)


def capture(backend: str) -> dict[str, object]:
    inputs = (torch.randn(2, 5, 16), torch.ones(2, 5, dtype=torch.bool))
    found: dict[str, object] = {}

    model = Layer("rotary")
    with record(model) as tape:
        torch.compile(model, backend=backend)(*inputs)
    found["hook set before compiling"] = tape.sites

    torch.compiler.reset()
    model = Layer("rotary")
    compiled = torch.compile(model, backend=backend)
    compiled(*inputs)
    with record(model) as expected:
        model(*inputs)
    with record(compiled) as tape:
        compiled(*inputs)
    gap = tape.weights("encoder.0") - expected.weights("encoder.0")
    found["around a model of jarilab, compiled earlier"] = gap.abs().max().item()

    torch.compiler.reset()
    model = Encoder(16, n_heads=2, n_layers=1, d_ff=8)
    inputs = inputs[:1]
    compiled = torch.compile(model, backend=backend)
    compiled(*inputs)
    try:
        with record(compiled):
            compiled(*inputs)
    except UserError as error:
        found["compiled earlier"] = str(error)
    with record(compiled) as tape:
        compiled._orig_mod(*inputs)
    found["the original of one compiled earlier"] = tape.sites
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backend, what, *specs = sys.argv[1:]
    probe = {"layer": layer, "encoder_decoder": encoder_decoder}[what]
    told = {spec: capture(backend) if spec == "capture" else probe(spec, backend) for spec in specs}
    print(json.dumps(told))
