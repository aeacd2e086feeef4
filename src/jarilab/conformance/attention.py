"""One attention for the laws: from heads that are not rotated yet to its output and gradients, by any kernel."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from jarilab.attention.call import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.kernels import Kernel, attend
from jarilab.conformance.subject import BATCH, HEAD_WIDTH, LENGTH, VALUE_WIDTH, noise
from jarilab.encodings.base import Encoding
from jarilab.masks import Mask
from jarilab.positions import Positions
from jarilab.shapes import Tensor

ALL = slice(0, LENGTH)
SCALE = 0.3  # not 1 / sqrt(E), which nobody may count on


@dataclass(frozen=True, eq=False)
class Case:
    """Some of the tokens as queries, and a mask."""

    name: str
    queries: slice
    mask: Mask | None

    def q_pos(self, pos: Positions) -> Positions:
        return pos if self.queries == ALL else pos.slice(self.queries.start, self.queries.stop)


def cases() -> list[Case]:
    """Queries and masks of all kinds."""
    some, end, dead = slice(2, 5), torch.tensor([[4], [0]]), torch.tensor([[True], [False], [True]])
    return [
        Case("without a mask", some, None),
        Case("causal", some, Mask(causal=True)),
        Case("causal over all tokens", ALL, Mask(causal=True)),
        Case("padding, of one row nothing else", some, Mask(keys=torch.arange(LENGTH) < end)),
        Case("one query without keys", some, Mask(causal=True, pairs=dead.expand(-1, LENGTH))),
    ]


def call_of(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Positions,
    k_pos: Positions,
    mask: Mask | None,
) -> AttentionCall:
    """An attention between heads that are not rotated yet."""
    geometry = geometry_of(encoding, q_pos, k_pos, mask)
    if "rotate" in encoding.hooks:
        q, k = encoding.rotate(q, geometry.q_rotation), encoding.rotate(k, geometry.k_rotation)
    return AttentionCall(q, k, v, geometry, SCALE)


def differentiate(
    encoding: Encoding, dtype: torch.dtype, pos: Positions, case: Case, kernel: Kernel
) -> dict[str, Tensor]:
    """Output and gradients of an attention by `kernel`, from inputs rounded to `dtype`. The definition is given them in
    float64 again: it is what the kernels are measured with."""
    precise = torch.float64 if kernel == "definition" else dtype
    q, k, v = (x.to(dtype).to(precise).requires_grad_() for x in _qkv(encoding))
    output = attend(
        call_of(encoding, q[:, :, case.queries], k, v, case.q_pos(pos), pos, case.mask), kernel
    )
    inputs = {"q": q, "k": k, "v": v, **dict(encoding.named_parameters())}
    loss = (output * _direction(output).to(dtype).to(precise)).sum()
    gradients = torch.autograd.grad(
        loss, list(inputs.values()), allow_unused=True, materialize_grads=True
    )
    named = {
        f"gradient of {name}": gradient for name, gradient in zip(inputs, gradients, strict=True)
    }
    return {"output": output.detach(), **named}


@torch.no_grad()
def slope(encoding: Encoding, pos: Positions, case: Case, name: str) -> Tensor:
    """How fast the definition's output, in `_direction`, changes when one input is moved: what its gradient should say.

    name: `q`, `k`, `v` or a parameter. The input is moved as `noise(name)` says, a little there and a little back.
    """
    step, heights = 1e-3, []
    for moved in (step, -step):
        there = copy.deepcopy(encoding)
        inputs = dict(zip("qkv", _qkv(encoding), strict=True)) | dict(there.named_parameters())
        inputs[name] += moved * noise(f"towards {name}", *inputs[name].shape)
        q, k, v = (inputs[letter] for letter in "qkv")
        output = attend(
            call_of(there, q[:, :, case.queries], k, v, case.q_pos(pos), pos, case.mask),
            "definition",
        )
        heights.append((output * _direction(output)).sum())
    return (heights[0] - heights[1]) / (2 * step)


def _qkv(encoding: Encoding) -> list[Tensor]:
    widths = {"q": HEAD_WIDTH, "k": HEAD_WIDTH, "v": VALUE_WIDTH}
    return [
        noise(name, BATCH, encoding.site.heads, LENGTH, width) for name, width in widths.items()
    ]


def _direction(output: Tensor) -> Tensor:
    return noise("direction", *output.shape)
