"""Split a head's queries and keys into content and the positions that were added to the input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.heads import split_heads
from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding
from jarilab.inspect.record.activations import (
    Activations,
    ModuleCall,
    input_encodings,
    is_norm,
    is_same_tensor,
)
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.layout import share_memory
from jarilab.nn.norms import BatchNorm
from jarilab.positions.coordinates import Positions


@dataclass(frozen=True, eq=False)
class SplitInput:
    """The input of the projection to queries or keys, and its summand from positions, or None.

    mixed: it contains positions that cannot be split off.
    """

    total: Float[Tensor, "1 L D"]
    position: Float[Tensor, "1 L D"] | None
    mixed: bool

    def project(self, linear: nn.Linear) -> dict[str, Float[Tensor, "1 L N"]]:
        """The projection of each summand, by its name."""
        if self.position is None:
            return {"mixed" if self.mixed else "content": linear(self.total)}
        content = linear(self.total - self.position)
        return {"content": content, "position": self.position @ linear.weight.t()}


def split_sides(tape: Tape, site: str) -> tuple[SplitInput, SplitInput]:
    """Split the inputs of queries and keys. Raises UserError for self-attention whose positions cannot be split off."""
    recorded = tape.calls[site][0]
    geometry, path = recorded.call.geometry, recorded.placed.path.removesuffix(".attend")
    activations, encoding = tape.inside, geometry.encoding
    assert recorded.inputs is not None
    x, source = recorded.inputs
    if not is_same_tensor(x, source) and share_memory(x, source):
        raise UserError(
            f"{path} ran for the first {x.shape[1]} of {source.shape[1]} tokens only, so its scores cannot be split "
            "into parts; call the model without first= or answer_only="
        )
    stacks = [
        call
        for call in activations.calls
        if call.output is not None and input_encodings(call.module) is not None
    ]
    stack = next((call for call in stacks if call.module in recorded.placed.above), None)
    queries = _split(x, stack, geometry.q_pos, encoding, activations)
    if not is_same_tensor(x, source):
        # Keys are read from the output of another stack.
        other = next((call for call in stacks if _returned(call, source)), None)
        return queries, _split(source, other, geometry.k_pos, encoding, activations)
    if queries.mixed:
        raise UserError(
            "a norm of a post-norm stack divides positions together with content, so they cannot be split after it: "
            f"expected its first self-attention, got {path}; choose the first one, or a model with norm=pre"
        )
    return queries, _split(x, stack, geometry.k_pos, encoding, activations)


def _returned(call: ModuleCall, x: Tensor) -> bool:
    return call.output is not None and is_same_tensor(call.output, x)


def _split(
    x: Tensor,
    stack: ModuleCall | None,
    positions: Positions,
    encoding: Encoding,
    activations: Activations,
) -> SplitInput:
    total, position, mixed = encoding.inject(x, positions), None, False
    if stack is not None:
        position = _position_part(x, stack, positions, activations)
        mixed = position is None
    if "inject" in encoding.hooks:
        injected = total - x
        position = injected if position is None else injected + position
    return SplitInput(total, position, mixed)


def _position_part(
    x: Tensor, stack: ModuleCall, positions: Positions, activations: Activations
) -> Float[Tensor, "1 L D"] | None:
    """The summand of `x` from positions that the stack added to its input; None if it cannot be split off."""
    encodings, before = input_encodings(stack.module), stack.inputs[0]
    assert encodings is not None
    embedded = encodings.embed(before, positions)
    part, first_input = embedded - before, embedded
    norm = getattr(stack.module, "embedding_norm", None)
    if is_norm(norm):
        part, first_input = _part_after_norm(norm, embedded, part), norm(embedded)
    if torch.equal(x, first_input):
        return part
    # A stack of pre-norm layers ends with a norm of its own. Its layers only add to the residual path.
    if not is_norm(getattr(stack.module, "norm", None)):
        return None
    for call in activations.calls:
        if is_norm(call.module) and _returned(call, x):
            return _part_after_norm(call.module, call.inputs[0], part)
    return None


def _part_after_norm(norm: nn.Module, x: Tensor, part: Tensor) -> Tensor:
    """The summand `part` of `x` after the norm, with the norm's divisor for all of `x`."""
    # With a fixed divisor the norm is linear: the mean of a sum is the sum of the means.
    if isinstance(norm, BatchNorm):
        return norm.of_part(part)
    if isinstance(norm, nn.RMSNorm):
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        normed = part * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        return normed if norm.weight is None else normed * norm.weight
    assert isinstance(norm, nn.LayerNorm)
    deviation = (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    normed = (part - part.mean(-1, keepdim=True)) / deviation
    return normed if norm.weight is None else normed * norm.weight


ABOUT = [
    "What the query is made of, then what the key is made of. Position: what was added by place, as it is here.",
    "Content: all the rest, biases and what earlier layers have made of positions included.",
    "Norms are taken with the divisors they had.",
]


def scores_by_part(
    attention: Attention, call: AttentionCall, sides: tuple[SplitInput, SplitInput], head: int
) -> tuple[dict[str, Float[Tensor, "Q K"]], list[str]]:
    """The scaled q.k of a head, split by the parts of query and key; and sentences about the parts.

    sides: the split inputs of queries and keys.
    """
    geometry, encoding = call.geometry, call.geometry.encoding

    def rotated_head(x: Tensor, rotation: object) -> Float[Tensor, "L E"]:
        x_BHLE = split_heads(x, attention.site.n_heads, attention.site.d_head)
        return encoding.rotate(x_BHLE, rotation)[0, head]

    products = {}
    queries, keys = sides
    for query_name, query in queries.project(attention.query).items():
        q = call.scale * rotated_head(query, geometry.q_rotation)
        for key_name, key in keys.project(attention.key).items():
            k = rotated_head(key, geometry.k_rotation)
            products[f"{query_name} . {key_name}"] = q @ k.t()
    about = list(ABOUT)
    if queries.mixed or keys.mixed:
        about.append("Mixed: content and position of a side where they cannot be told apart.")
    if "rotate" in encoding.hooks:
        about.append("Both are turned by the rotation.")
    return products, about
