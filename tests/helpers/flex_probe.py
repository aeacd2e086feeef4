"""Run by test_flex.py in a process of its own: PyTorch compiles FlexAttention, and cannot see through run-time checks
of annotations. Prints how far each case is from the definition, by name: output and gradients, relative to their size.

    python flex_probe.py DEVICE encodings...

PyTorch refuses gradients on a CPU, although its uncompiled form has them there: that refusal is taken away here, so
that what it computes is held against the definition without a GPU.
"""

import json
import sys

import torch
from torch.nn.attention import flex_attention

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.attention.kernels import attend
from jarilab.core.devices import to_device
from jarilab.encodings import compose
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 21, 16
DEVICE = torch.device(sys.argv[1])
DTYPE = torch.float64 if DEVICE.type == "cpu" else torch.float32


def masks():
    ids = torch.tensor([[0] * 9 + [1] * 12, [0] * 15 + [1] * 6])
    keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [13]])
    empty = keep & torch.tensor([[True], [False]])
    return {
        "nothing": None,
        "causal": Mask(causal=True),
        "window": Mask(causal=True, window=4),
        "padding": Mask(keys=keep),
        "a row without keys": Mask(causal=True, keys=empty),
        "documents": Mask(causal=True, documents=(ids, ids)),
        "pairs": Mask(pairs=torch.rand(BATCH, LENGTH, LENGTH) > 0.4),
        "pairs of all": Mask(pairs=torch.rand(LENGTH, LENGTH) > 0.4),
    }


def places():
    padded = torch.arange(LENGTH) >= torch.tensor([[0], [5]])
    far = Positions.sequence(LENGTH, 300)
    return {
        "from 0": (Positions.sequence(LENGTH), Positions.sequence(LENGTH)),
        "far": (far, far),
        "left-padded": (Positions.from_mask(padded), Positions.from_mask(padded)),
        "queries before all keys": (Positions.sequence(5), Positions.sequence(LENGTH, 3)),
        "the last of more keys": (Positions.sequence(5, LENGTH - 5), Positions.sequence(LENGTH)),
    }


def differentiated(call, kernel, inputs, direction):
    output = attend(call(), kernel)
    gradients = torch.autograd.grad((output * direction).sum(), inputs, allow_unused=True, materialize_grads=True)
    return [output, *gradients]


def difference(spec, q_pos, k_pos, mask):
    torch.manual_seed(0)
    site = site_of(HEADS * WIDTH, HEADS, causal=bool(mask and mask.causal))
    encoding = compose.build(spec, site).to(DEVICE, DTYPE)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    sizes = (q_pos.length, k_pos.length, k_pos.length)
    q, k, v = (torch.randn(BATCH, HEADS, size, WIDTH, dtype=DTYPE, device=DEVICE, requires_grad=True) for size in sizes)
    inputs = [q, k, v, *encoding.parameters()]
    direction = torch.randn_like(q)

    def call(blockwise):
        geometry = geometry_of(encoding, q_pos, k_pos, mask, blockwise=blockwise)
        assert not blockwise or geometry.blockwise is not None
        assert not blockwise or (geometry.bias is None and geometry.allowed is None)
        return AttentionCall(q, k, v, geometry, 0.3)

    expected = differentiated(lambda: call(blockwise=False), "definition", inputs, direction)
    found = differentiated(lambda: call(blockwise=True), "flex", inputs, direction)
    again = differentiated(lambda: call(blockwise=True), "definition", inputs, direction)
    pairs = zip([*found, *again], [*expected, *expected], strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1)).item() for a, b in pairs)


def tried(specs):
    told = {}

    def case(spec, where, name):
        q_pos, k_pos = to_device(places()[where], DEVICE)
        mask = to_device(masks()[name], DEVICE)
        told[f"{spec}, {where}, {name}"] = difference(spec, q_pos, k_pos, mask)

    for spec in specs:
        case(spec, "far", "a row without keys")
        case(spec, "left-padded", "window")
        case(spec, "the last of more keys", "causal")
        case(spec, "queries before all keys", "causal")
    for name in ("nothing", "padding", "documents", "pairs", "pairs of all"):
        case(specs[0], "from 0", name)
    return told


if __name__ == "__main__":
    torch.set_num_threads(1)
    flex_attention._validate_device = lambda *_: None
    print(json.dumps(tried(sys.argv[2:])))
