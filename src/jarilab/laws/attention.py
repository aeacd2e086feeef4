"""One attention for the laws, from unrotated heads to its output and gradients, with any kernel."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.kernels import Kernel, attend
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding
from jarilab.laws.fixtures import (
    BATCH,
    HEAD_WIDTH,
    LENGTH,
    VALUE_WIDTH,
    noise,
    trainable_parameters,
)
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

ALL = slice(0, LENGTH)
SCALE = 0.3  # not 1 / sqrt(E), so that an encoding that assumes it fails


@dataclass(frozen=True, eq=False)
class Case:
    """Queries and keys, each some of the tokens, and a mask."""

    name: str
    queries: slice
    mask: Mask | None
    keys: slice = field(default_factory=lambda: ALL)

    def q_pos(self, pos: Positions) -> Positions:
        return _part(pos, self.queries)

    def k_pos(self, pos: Positions) -> Positions:
        return _part(pos, self.keys)

    def call(
        self, encoding: Encoding, pos: Positions, *, q: Tensor, k: Tensor, v: Tensor
    ) -> AttentionCall:
        """The attention of these queries to these keys."""
        q, k, v = q[:, :, self.queries], k[:, :, self.keys], v[:, :, self.keys]
        return call_of(encoding, q, k, v, self.q_pos(pos), self.k_pos(pos), self.mask)


def _part(pos: Positions, tokens: slice) -> Positions:
    return pos if tokens == ALL else pos.slice(tokens.start, tokens.stop)


TWO_SEQUENCES = Case(
    "causal, from a sequence to one that begins later", slice(0, 3), Mask(causal=True), slice(2, 6)
)
"""The first two of its three queries come before every key."""


def cases() -> list[Case]:
    """Queries and masks of all kinds."""
    some = slice(2, 5)
    padding_BK = torch.arange(LENGTH) < torch.tensor([[4], [0]])
    without_Q1 = torch.tensor([[True], [False], [True]])
    pairs_QK = without_Q1.expand(-1, LENGTH)
    return [
        Case("without a mask", some, None),
        Case("causal", some, Mask(causal=True)),
        Case("causal over all tokens", ALL, Mask(causal=True)),
        Case("padding, of one row nothing else", some, Mask(keys=padding_BK)),
        Case("one query without keys", some, Mask(causal=True, pairs=pairs_QK)),
    ]


def call_of(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Positions,
    k_pos: Positions,
    mask: Mask | None,
    x: Tensor | None = None,
) -> AttentionCall:
    """An attention between unrotated heads. x: what the keys are made of; random by default."""
    geometry = geometry_of(encoding, q_pos, k_pos, mask)
    if "rotate" in encoding.hooks:
        q = encoding.rotate(q, geometry.q_rotation)
        k = encoding.rotate(k, geometry.k_rotation)
    x = noise("x", *k.shape[:3:2], encoding.site.d_model) if x is None else x
    states = encoding.key_states(x.to(k.dtype))
    scale = SCALE * encoding.scale_factor
    return AttentionCall(q, k, v, geometry, scale, states=states)


def differentiate(
    encoding: Encoding,
    dtype: torch.dtype,
    pos: Positions,
    case: Case,
    kernel: Kernel,
    autocast: bool = False,
) -> dict[str, Tensor]:
    """Output and gradients of an attention with `kernel`, from inputs rounded to `dtype`.

    The definition gets the same inputs in float64, since the kernels are compared with it. autocast: as in training in
    bfloat16, where linear maps return heads in bfloat16.
    """
    precise = torch.float64 if kernel == "definition" else dtype
    qkv = {name: x.to(dtype).to(precise).requires_grad_() for name, x in _qkv(encoding).items()}
    of_heads = {name: x.to(torch.bfloat16) if autocast else x for name, x in qkv.items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = attend(case.call(encoding, pos, **of_heads), kernel)
    inputs = {**qkv, **trainable_parameters(encoding)}
    direction = _direction(output).to(dtype).to(precise)
    loss = (output * direction).sum()
    tensors = list(inputs.values())
    gradients = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
    named = zip(inputs, gradients, strict=True)
    return {"output": output.detach()} | {f"gradient of {name}": value for name, value in named}


def shapes(encoding: Encoding) -> dict[str, torch.Size]:
    """The shape of each input that has a gradient, by name."""
    inputs = {**_qkv(encoding), **trainable_parameters(encoding)}
    return {name: tensor.shape for name, tensor in inputs.items()}


@torch.no_grad()
def slope(encoding: Encoding, pos: Positions, case: Case, name: str, step: float) -> Tensor:
    """Finite difference of the definition's output, in `_direction`, when one input moves.

    name: one of `shapes`. The input moves along `noise(name)` by `step`, forwards and backwards.
    """
    projections = []
    for offset in (step, -step):
        moved_encoding, qkv = copy.deepcopy(encoding), _qkv(encoding)
        inputs = qkv | trainable_parameters(moved_encoding)
        inputs[name] += offset * noise(f"towards {name}", *inputs[name].shape)
        output = attend(case.call(moved_encoding, pos, **qkv), "definition")
        projections.append((output * _direction(output)).sum())
    return (projections[0] - projections[1]) / (2 * step)


def _qkv(encoding: Encoding) -> dict[str, Tensor]:
    """Queries, keys and values of all heads, by name."""
    heads, widths = encoding.site.n_heads, {"q": HEAD_WIDTH, "k": HEAD_WIDTH, "v": VALUE_WIDTH}
    return {name: noise(name, BATCH, heads, LENGTH, width) for name, width in widths.items()}


def _direction(output: Tensor) -> Tensor:
    return noise("direction", *output.shape)
