"""What of a head's queries and keys comes from positions that were added to the input, and what from the content."""

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
    LinearNorm,
    ModuleCall,
    input_encodings,
    is_norm,
    is_same_tensor,
)
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import share_memory
from jarilab.positions.coordinates import Positions


@dataclass(frozen=True, eq=False)
class Origin:
    """What queries or keys are made of, `(1, L, D)`, and what of it comes from positions, None for nothing.

    mixed: positions are in it and cannot be told apart.
    """

    whole: Float[Tensor, "1 L D"]
    position: Float[Tensor, "1 L D"] | None
    mixed: bool

    def parts(self, linear: nn.Linear) -> dict[str, Float[Tensor, "1 L N"]]:
        """What a map to queries or keys makes of each."""
        if self.position is None:
            return {"mixed" if self.mixed else "content": linear(self.whole)}
        content = linear(self.whole - self.position)
        return {"content": content, "position": self.position @ linear.weight.t()}


@dataclass(frozen=True, eq=False)
class Sides:
    """What a head's queries are made of, and what its keys are."""

    queries: Origin
    keys: Origin

    @property
    def told_apart(self) -> bool:
        """Whether something of either comes from positions, and what."""
        return self.queries.position is not None or self.keys.position is not None

    @property
    def mixed(self) -> bool:
        return self.queries.mixed or self.keys.mixed


def sides_of(tape: Tape, site: str) -> Sides:
    """The queries' side and the keys'. Raises UserError for self-attention whose positions cannot be told apart."""
    recorded = tape.calls[site][0]
    geometry, path = recorded.call.geometry, recorded.placed.path.removesuffix(".attend")
    inside, encoding = tape.inside, geometry.encoding
    assert recorded.inputs is not None
    x, source = recorded.inputs
    if not is_same_tensor(x, source) and share_memory(x, source):
        raise UserError(
            f"{path} ran for the first {x.shape[1]} of {source.shape[1]} tokens alone, so that its scores cannot be "
            "taken apart; call the model without first= or answer_only="
        )
    stacks = [passage for passage in inside.calls if _adds_places(passage)]
    own = next((stack for stack in stacks if stack.module in recorded.placed.above), None)
    of_queries = _origin(x, own, geometry.q_pos, encoding, inside)
    if not is_same_tensor(x, source):
        # Keys are read from what another stack has put out.
        other = next((stack for stack in stacks if _gave(stack, source)), None)
        return Sides(of_queries, _origin(source, other, geometry.k_pos, encoding, inside))
    if of_queries.mixed:
        raise UserError(
            "positions were added to the input of a post-norm stack, whose norms have since divided them together "
            "with the content, so that they cannot be told apart: expected its first self-attention, got "
            f"{path}; look at the first, or at a model with norm=pre, where they can be told apart in every layer"
        )
    return Sides(of_queries, _origin(x, own, geometry.k_pos, encoding, inside))


def _adds_places(passage: ModuleCall) -> bool:
    return passage.output is not None and input_encodings(passage.module) is not None


def _gave(passage: ModuleCall, x: Tensor) -> bool:
    return passage.output is not None and is_same_tensor(passage.output, x)


def _origin(
    x: Tensor, stack: ModuleCall | None, places: Positions, encoding: Encoding, inside: Activations
) -> Origin:
    whole, position, mixed = encoding.inject(x, places), None, False
    if stack is not None:
        position = _added_to_input(x, stack, places, inside)
        mixed = position is None
    if "inject" in encoding.hooks:
        injected = whole - x
        position = injected if position is None else injected + position
    return Origin(whole, position, mixed)


def _added_to_input(
    x: Tensor, stack: ModuleCall, places: Positions, inside: Activations
) -> Float[Tensor, "1 L D"] | None:
    """What in `x` is there because the stack added positions to its input; None where that cannot be told."""
    encodings, before = input_encodings(stack.module), stack.inputs[0]
    assert encodings is not None
    placed = encodings.embed(before, places)
    part, entered = placed - before, placed
    first = getattr(stack.module, "embedding_norm", None)
    if is_norm(first):
        part, entered = _through(first, placed, part), first(placed)
    if torch.equal(x, entered):
        return part
    # A stack of pre-norm layers ends with a norm of its own; all that they do is add to their input.
    if not is_norm(getattr(stack.module, "norm", None)):
        return None
    for passage in inside.calls:
        if is_norm(passage.module) and _gave(passage, x):
            return _through(passage.module, passage.inputs[0], part)
    return None


def _through(norm: nn.Module, x: Tensor, part: Tensor) -> Tensor:
    """What a summand of `x` becomes when `x` goes through the norm. The mean of a sum is the sum of the means, so that
    only the divisor has to be held at what it is for all of `x`."""
    if isinstance(norm, LinearNorm):
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


def by_origin(
    attention: Attention, call: AttentionCall, sides: Sides, head: int
) -> tuple[dict[str, Float[Tensor, "Q K"]], list[str]]:
    """The scaled q.k of a head as the sum of what each part of the query gives with each part of the key."""
    geometry, encoding = call.geometry, call.geometry.encoding

    def of_head(x: Tensor, rotation: object) -> Float[Tensor, "L E"]:
        x_BHLE = split_heads(x, attention.site.n_heads, attention.site.d_head)
        return encoding.rotate(x_BHLE, rotation)[0, head]

    found = {}
    for query, of_query in sides.queries.parts(attention.query).items():
        q = call.scale * of_head(of_query, geometry.q_rotation)
        for key, of_key in sides.keys.parts(attention.key).items():
            k = of_head(of_key, geometry.k_rotation)
            found[f"{query} . {key}"] = q @ k.t()
    about = list(ABOUT)
    if sides.mixed:
        about.append("Mixed: content and position of a side where they cannot be told apart.")
    if "rotate" in encoding.hooks:
        about.append("Both are turned by the rotation.")
    return found, about
