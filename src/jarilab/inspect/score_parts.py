"""What a head's scores are the sum of, and how much of each value its weights bring.

A product of sums is a sum of products. Where positions were added to the input, q and k are each the sum of what comes
of the content and what comes of the position, and q.k is the sum of four; where an encoding turns q and k, q.k is the
sum of what the components that turn together give; what an encoding adds to the scores is a summand as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from jarilab.attention.call import AttentionCall
from jarilab.attention.module import Attention, split_heads
from jarilab.attention.recurrent import LuongAttention
from jarilab.encodings.base import Encoding
from jarilab.encodings.compose import LayerEncodings
from jarilab.errors import UserError
from jarilab.inspect.capture import record
from jarilab.inspect.walk import attention_at
from jarilab.positions import Positions
from jarilab.shapes import Float, Tensor

ADDS_UP = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far the sum may be from the scores, relative to the largest number in either."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The scores of a head before the mask, as a sum: `sum(matrices)`, each `(Q, K)`.

    about: what the parts are, for a person. error: the largest absolute difference of the sum from the scores.
    """

    names: list[str]
    matrices: list[Float[Tensor, "Q K"]]
    about: str
    error: float


@torch.no_grad()
def parts(model: nn.Module, inputs: Sequence[Any], site: str, head: int) -> Parts:
    """Take the scores of `head` at `site` apart, while the model runs on `inputs`, a batch of one.

    Positions that were added to the input are told apart from content in a pre-norm stack, where they lie on the
    residual path as they were added; each norm's divisor is held at what it was, which makes the norm linear. Content
    is all the rest: biases, and what earlier layers have made of positions. Without positions in the input, a rotation
    is told apart by the components that it turns together.
    Raises UserError for an unknown site or head, and for self-attention after a norm of a post-norm stack that adds
    positions to its input: they cannot be told apart there. Raises RuntimeError where the parts are not the scores.
    """
    path, attention = attention_at(model, site, head)
    with record(model) as tape, _Listening(model, attention) as seen:
        model(*inputs)
    scores = tape.scores(site)[0, head]
    calls = [recorded.call for recorded in tape.calls[site]]
    sides = _sides(model, path, calls[0], seen) if isinstance(attention, Attention) else ()
    if isinstance(attention, Attention) and any(side.position is not None for side in sides):
        found, about = _by_origin(attention, calls[0], sides, head)
    else:
        found, about = _by_component(calls, head)
        if any(side.mixed for side in sides):
            about.append(
                "What was added to the input by place has been through norms and cannot be told apart here."
            )
    _add(found, about, calls, head)
    summed = torch.stack(list(found.values())).sum(0)
    error = float((summed - scores).abs().max())
    largest = max(float(matrix.abs().max()) for matrix in (scores, *found.values()))
    if not error <= ADDS_UP.get(calls[0].q.dtype, 1e-2) * largest:
        raise RuntimeError(
            f"the parts of head {head} at {site} add up to something {error:g} away from its scores"
        )
    return Parts(list(found), list(found.values()), " ".join(about), error)


def _add(found: dict[str, Tensor], about: list[str], calls: list[AttentionCall], head: int) -> None:
    """What the encoding adds to q.k and to the scores."""
    terms, biases = [], []
    for call in calls:
        geometry = call.geometry
        of_call = geometry.encoding.terms(call.q, call.k, geometry.relation)
        terms += [] if of_call is None else [of_call[0, head] * call.scale]
        biases += (
            []
            if geometry.bias is None
            else [geometry.bias.expand(1, call.q.shape[1], -1, -1)[0, head]]
        )
    if terms:
        found["terms"] = torch.cat(terms)
        about.append("Terms: what the encoding adds by content and place together.")
    if biases:
        found["bias"] = torch.cat(biases).to(calls[0].q.dtype)
        about.append("Bias: what the encoding adds by place alone.")


# By origin: content and position -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Side:
    """What queries or keys are made of, `(1, L, D)`, and what of it comes from positions, None for nothing.

    mixed: positions are in it and cannot be told apart.
    """

    whole: Float[Tensor, "1 L D"]
    position: Float[Tensor, "1 L D"] | None
    mixed: bool


@dataclass
class _Seen:
    """What went by: into one attention; into and out of stacks that add positions; into and out of norms."""

    attention: tuple[Tensor, ...] = ()
    stacks: list[tuple[nn.Module, Tensor, Tensor]] = field(default_factory=list)
    norms: list[tuple[nn.LayerNorm, Tensor, Tensor]] = field(default_factory=list)


class _Listening:
    """Fills a `_Seen` while a model runs."""

    def __init__(self, model: nn.Module, attention: nn.Module):
        self._model, self._attention, self._seen = model, attention, _Seen()

    def __enter__(self) -> _Seen:
        self._handles = [self._attention.register_forward_pre_hook(self._keep_inputs)]
        for module in self._model.modules():
            if isinstance(module, nn.LayerNorm):
                self._handles.append(module.register_forward_hook(self._keep_norm))
            elif _adds(module):
                self._handles.append(module.register_forward_hook(self._keep_stack))
        return self._seen

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _keep_inputs(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._seen.attention = tuple(
            argument for argument in arguments[:2] if isinstance(argument, Tensor)
        )

    def _keep_norm(
        self, module: nn.LayerNorm, arguments: tuple[Tensor, ...], output: Tensor
    ) -> None:
        self._seen.norms.append((module, arguments[0], output))

    def _keep_stack(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            self._seen.stacks.append((module, arguments[0], output))


def _adds(module: nn.Module) -> bool:
    """Whether it is a stack that adds positions to its input."""
    encodings = getattr(module, "encoding", None)
    return isinstance(encodings, LayerEncodings) and "embed" in encodings.of_layer[0].hooks


def _sides(model: nn.Module, path: str, call: AttentionCall, seen: _Seen) -> tuple[_Side, ...]:
    """The queries' side and the keys'. Raises UserError for self-attention whose positions cannot be told apart."""
    geometry = call.geometry
    above = {
        id(model.get_submodule(path[:i])) for i, letter in enumerate(path) if letter == "."
    } | {id(model)}
    x, source = seen.attention[0], seen.attention[-1]
    if x is not source and x.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
        raise UserError(
            f"{path} ran for the first {x.shape[1]} of {source.shape[1]} tokens alone, so that its scores cannot be "
            "taken apart; call the model without first= or answer_only="
        )
    own = next((stack for stack in seen.stacks if id(stack[0]) in above), None)
    q_side = _side(x, own, geometry.q_pos, geometry.encoding, seen)
    if source is x:
        if q_side.mixed:
            raise UserError(
                "positions were added to the input of a post-norm stack, whose norms have since divided them together "
                "with the content, so that they cannot be told apart: expected its first self-attention, got "
                f"{path}; look at the first, or at a model with norm=pre, where they can be told apart in every layer"
            )
        return q_side, _side(x, own, geometry.k_pos, geometry.encoding, seen)
    # Keys are read from what another stack has put out.
    other = next((stack for stack in seen.stacks if stack[2] is source), None)
    return q_side, _side(source, other, geometry.k_pos, geometry.encoding, seen)


def _side(
    x: Tensor,
    stack: tuple[nn.Module, Tensor, Tensor] | None,
    places: Positions,
    encoding: Encoding,
    seen: _Seen,
) -> _Side:
    whole, position, mixed = encoding.inject(x, places), None, False
    if stack is not None:
        position = _added_to_input(x, stack, places, seen)
        mixed = position is None
    if "inject" in encoding.hooks:
        position = whole - x if position is None else whole - x + position
    return _Side(whole, position, mixed)


def _added_to_input(
    x: Tensor, stack: tuple[nn.Module, Tensor, Tensor], places: Positions, seen: _Seen
) -> Tensor | None:
    """What in `x` is there because the stack added positions to its input; None where that cannot be told."""
    module, before, _ = stack
    encodings: Any = module.encoding
    placed = encodings.embed(before, places)
    if torch.equal(x, placed):
        return placed - before
    # A stack of pre-norm layers ends with a norm of its own; all that they do is add to their input.
    norm = next((norm for norm in seen.norms if norm[2] is x), None)
    if norm is None or not isinstance(getattr(module, "norm", None), nn.LayerNorm):
        return None
    return _through(norm[0], norm[1], placed - before)


def _through(norm: nn.LayerNorm, x: Tensor, part: Tensor) -> Tensor:
    """What a summand of `x` becomes when `x` goes through the norm. The mean of a sum is the sum of the means, so that
    only the divisor has to be held at what it is for all of `x`."""
    deviation = (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    normed = (part - part.mean(-1, keepdim=True)) / deviation
    return normed if norm.weight is None else normed * norm.weight


def _by_origin(
    attention: Attention, call: AttentionCall, sides: tuple[_Side, ...], head: int
) -> tuple[dict[str, Tensor], list[str]]:
    encoding, geometry = call.geometry.encoding, call.geometry
    rotations, maps = (geometry.q_rotation, geometry.k_rotation), (attention.query, attention.key)
    of_sides = []
    for side, rotation, linear in zip(sides, rotations, maps, strict=True):
        made = {"mixed" if side.mixed else "content": linear(side.whole)}
        if side.position is not None:
            made = {
                "content": linear(side.whole - side.position),
                "position": side.position @ linear.weight.t(),
            }
        heads = {name: split_heads(x, attention.site.heads) for name, x in made.items()}
        of_sides.append({name: encoding.rotate(x, rotation)[0, head] for name, x in heads.items()})
    about = [
        "What the query is made of, then what the key is made of. Position: what was added by place, as it is here.",
        "Content: all the rest, biases and what earlier layers have made of positions included.",
        "Norms are taken with the divisors they had.",
    ]
    if any(side.mixed for side in sides):
        about.append("Mixed: content and position of a side where they cannot be told apart.")
    if "rotate" in encoding.hooks:
        about.append("Both are turned by the rotation.")
    found = {
        f"{a} . {b}": call.scale * q @ k.t()
        for a, q in of_sides[0].items()
        for b, k in of_sides[1].items()
    }
    return found, about


# By component: what a rotation turns together ------------------------------------------------------------------------


def _by_component(calls: list[AttentionCall], head: int) -> tuple[dict[str, Tensor], list[str]]:
    """q.k, or the score in its place, in as many parts as the rotation has."""
    first = calls[0]
    if first.score is not None:
        score = first.score
        whole = torch.cat([call.scale * score(call.q, call.k)[0, head] for call in calls])
        return {"score": whole}, [
            "Score: how well each key fits each query, by the model's own comparison."
        ]
    groups = {"q . k": list(range(first.q.shape[3]))}
    about = ["q . k: how well each key fits each query, by content."]
    if "rotate" in first.geometry.encoding.hooks:
        groups = turned_together(first.geometry.encoding, first.geometry.q_pos, first.q, head)
        about = [
            "The share of q . k of the components that the rotation turns together, from fast to slow."
        ]
    found = {
        name: torch.cat(
            [call.scale * call.q[0, head][:, own] @ call.k[0, head][:, own].t() for call in calls]
        )
        for name, own in groups.items()
    }
    return found, about


def turned_together(
    encoding: Encoding, places: Positions, q: Float[Tensor, "B H Q E"], head: int
) -> dict[str, list[int]]:
    """The components of a head that the encoding's rotation mixes with one another, by name.

    Found by turning the unit vectors to the place 1, so that every encoding that rotates is understood. A pair's name
    says in how many places it comes round; components that stay as they are come last, together.
    """
    width = q.shape[3]
    one = replace(
        places,
        coordinates=torch.ones_like(places.coordinates.reshape(-1, len(places.axes))[:1]),
        order=torch.zeros_like(places.order[:1]),
        unplaced=None,
        relations=None,
    )
    units = torch.eye(width, dtype=q.dtype, device=q.device).view(width, 1, 1, width)
    turned = encoding.rotate(units.expand(-1, q.shape[1], -1, -1), encoding.rotation(one))[
        :, head, 0
    ]
    reached = (turned != 0) | (turned != 0).t()
    # Until nothing new is reached: two rotations one after the other may pair components differently.
    while not torch.equal(reached, further := reached | (reached.float() @ reached.float() > 0)):
        reached = further
    groups = {tuple(row.nonzero().flatten().tolist()): None for row in reached}
    named, still = {}, []
    for group in groups:
        if len(group) < 2:
            still += group
            continue
        name = f"components {', '.join(str(component) for component in group)}"
        if len(group) == 2 and len(places.axes) == 1:
            first, second = group
            angle = math.atan2(abs(float(turned[first, second])), float(turned[first, first]))
            name = f"pair {len(named)}, a turn in {2 * math.pi / angle:.4g}"
        named[name] = list(group)
    return {**named, "not turned": still} if still else named


# What the weights bring ----------------------------------------------------------------------------------------------


@torch.no_grad()
def valued(model: nn.Module, inputs: Sequence[Any], site: str, head: int) -> Float[Tensor, "Q K"]:
    """The length of what each key brings to each query: `|| weight_ij v_j W_O ||`, W_O being the head's rows of it
    (Kobayashi et al. 2020, "Attention is Not Only a Weight"). A recurrent decoder's W_O is the half of W_concat that
    its context goes through.

    What an encoding adds to the values counts with them. inputs: a batch of one. Raises UserError for an unknown site
    or head.
    """
    _, attention = attention_at(model, site, head)
    with record(model) as tape:
        model(*inputs)
    if isinstance(attention, LuongAttention):
        out_DW = attention.combine.weight[:, attention.site.width :]
    else:
        width = attention.site.value_head_width
        out_DW = attention.out.weight[:, head * width : (head + 1) * width]
    weights_QK = tape.weights(site)[0, head]
    norms = [
        _norms(recorded.call, out_DW.to(weights_QK.dtype), head) for recorded in tape.calls[site]
    ]
    return weights_QK * torch.cat(norms)


def _norms(call: AttentionCall, out_DW: Float[Tensor, "D W"], head: int) -> Float[Tensor, "Q K"]:
    """The length of each value as each query sees it, mapped."""
    geometry, (_, heads, queries, _) = call.geometry, call.q.shape
    v_KW = call.v[0, head].to(out_DW.dtype)
    if "values" not in geometry.encoding.hooks:
        return torch.linalg.vector_norm(v_KW @ out_DW.t(), dim=-1).expand(queries, -1)
    columns = []
    for key, v_W in enumerate(v_KW):
        # All weight on one key: what comes out is what the encoding adds to this key's value.
        alone = torch.zeros(1, heads, queries, len(v_KW), dtype=out_DW.dtype, device=out_DW.device)
        alone[..., key] = 1.0
        added = geometry.encoding.values(alone, geometry.relation)
        assert added is not None
        columns.append(torch.linalg.vector_norm((v_W + added[0, head]) @ out_DW.t(), dim=-1))
    return torch.stack(columns, -1)
