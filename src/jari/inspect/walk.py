"""One head of one attention, or one step of a recurrent decoder, matrix by matrix, in the model's own numbers.

The steps are computed anew from the input of the attention and its parameters, and the last of them is compared with
what the model itself put out: a walk that does not arrive there is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from jari.attention import call as definition
from jari.attention.call import AttentionCall
from jari.attention.geometry import place
from jari.attention.module import Attention, split_heads
from jari.attention.recurrent import LuongAttention
from jari.encodings.compose import LayerEncodings
from jari.errors import UserError, unknown
from jari.inspect.capture import record, site_name
from jari.inspect.recurrent import steps_from_context, steps_to_vocabulary, steps_to_weights
from jari.inspect.steps import Step
from jari.shapes import Float, Tensor

ARRIVES = {torch.float64: 1e-10, torch.float32: 1e-4}


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of one head, and how far the last is from the model's own output.

    encoding: the spec at this site. call: what was recorded, of all heads; of a recurrent decoder, the one step's.
    """

    encoding: str
    site: str
    head: int
    steps: list[Step]
    error: float
    call: AttentionCall

    def as_dict(self) -> dict[str, Any]:
        names = ("encoding", "site", "head", "error")
        return {**{name: getattr(self, name) for name in names}, "steps": [step.as_dict() for step in self.steps]}


@torch.no_grad()
def walk(
    model: nn.Module,
    inputs: Sequence[Any],
    *,
    site: str,
    head: int,
    queries: Sequence[str],
    keys: Sequence[str],
    step: int | None = None,
    vocabulary: Sequence[str] | None = None,
) -> Walk:
    """Follow `head` of the attention at `site` (`encoder.0`, `decoder.1.cross`) while the model runs on `inputs`.

    inputs: what the model is called with, a batch of one. queries, keys: the names of the tokens at this site.
    step: of a recurrent decoder, which query to follow, the first by default; the walk then ends at the scores of the
    next token. vocabulary: the names of those tokens, their numbers by default.
    Raises UserError for an unknown site, a head or a step that is not there, a step where all go at once.
    """
    kinds = (Attention, LuongAttention)
    paths = {site_name(f"{path}.attend"): path for path, m in model.named_modules() if isinstance(m, kinds)}
    if site not in paths:
        raise unknown("site", site, paths)
    attention = model.get_submodule(paths[site])
    assert isinstance(attention, kinds)
    heads = attention.site.heads
    if not 0 <= head < heads:
        raise UserError(f"{site} has the heads 0 to {heads - 1}, got {head}")
    if isinstance(attention, LuongAttention):
        return _walk_step(model, inputs, attention, site, step or 0, queries, keys, vocabulary)
    if step is not None:
        raise UserError(f"{site} does all of its queries at once and has no steps; leave step={step} out")

    stack_path = paths[site].partition(".layers.")[0]
    stack = model.get_submodule(stack_path)
    seen = _Seen(stack, attention)
    with record(model) as tape, seen:
        model(*inputs)
    call = tape.recorded(site).call
    steps = []
    if seen.stack_input is not None:
        steps.append(Step("embedding", "E[token] * sqrt(D)", seen.stack_input, queries))
        encodings = getattr(stack, "encoding", None)
        if isinstance(encodings, LayerEncodings) and "embed" in encodings.of_layer[0].hooks:
            placed = encodings.embed(seen.stack_input.unsqueeze(0), call.geometry.q_pos)[0]
            steps.append(Step("embedding + position", f"embedding + {encodings.spec}", placed, queries))
    steps += _steps_of_head(attention, call, seen, head, queries, keys)
    # W_O mixes all heads, so the walk has arrived when what all of them give it is the model's own output.
    error = _arrive(site, steps[-1].matrix, seen.output)
    own = getattr(stack, "cross_encoding" if site.endswith(".cross") else "encoding", call.geometry.encoding)
    spec = own.spec if isinstance(own, LayerEncodings) else type(own).__name__
    return Walk(spec, site, head, steps, error, call)


def _arrive(site: str, matrix: Tensor, output: Tensor) -> float:
    """How far the last matrix is from the model's own output. Raises RuntimeError where it is another."""
    error = float((matrix - output).abs().max())
    if error > ARRIVES[output.dtype] * max(1.0, float(output.abs().max())):
        raise RuntimeError(f"the walk through {site} ends {error:g} away from the model's own output")
    return error


class _Seen:
    """What goes into a stack, and into and out of one attention in it, during a forward."""

    def __init__(self, stack: nn.Module, attention: Attention):
        self.stack_input: Tensor | None = None
        self.x = self.source = self.output = torch.empty(0)
        self._modules = stack, attention

    def __enter__(self) -> None:
        stack, attention = self._modules
        self._handles = [attention.register_forward_hook(self._attention)]
        if stack is not attention:
            self._handles.append(stack.register_forward_pre_hook(self._stack))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _stack(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if isinstance(arguments[0], Tensor):
            self.stack_input = arguments[0][0]

    def _attention(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        self.x, self.output = arguments[0][0], output[0]
        self.source = arguments[1][0] if len(arguments) > 1 else self.x


def _steps_of_head(
    attention: Attention, call: AttentionCall, seen: _Seen, head: int, queries: Sequence[str], keys: Sequence[str]
) -> list[Step]:
    place, encoding = call.geometry, call.geometry.encoding
    own = seen.source is seen.x
    made_of = "input" if own else "source"
    steps = [Step("input", "what reaches this attention", seen.x, queries)]
    if not own:
        steps.append(Step("source", "what its keys and values are made of", seen.source, keys))

    x, source = seen.x.unsqueeze(0), seen.source.unsqueeze(0)
    sides = (encoding.inject(x, place.q_pos), encoding.inject(source, place.k_pos), source)
    maps = (attention.query, attention.key, attention.value)
    q, k, v = (
        split_heads(linear(side), attention.site.heads)[0, head] for linear, side in zip(maps, sides, strict=True)
    )
    steps.append(Step("Q", "input W_Q + b_Q", q, queries))
    steps.append(Step("K", f"{made_of} W_K + b_K", k, keys))
    steps.append(Step("V", f"{made_of} W_V + b_V", v, keys))
    if "rotate" in encoding.hooks:
        q, k = call.q[0, head], call.k[0, head]
        steps.append(Step("Q rotated", "each pair turned by its position's angle", q, queries))
        steps.append(Step("K rotated", "each pair turned by its position's angle", k, keys))

    scores = q @ k.transpose(0, 1)
    steps.append(Step("Q K^T", "how well each key fits each query", scores, queries, keys))
    terms = encoding.terms(call.q, call.k, place.relation)
    if terms is not None:
        scores = scores + terms[0, head]
        steps.append(Step("+ terms", "what the encoding adds, by content and place", scores, queries, keys))
    scores = scores * call.scale
    steps.append(Step("scores", f"divided by sqrt({q.shape[1]}) = {q.shape[1] ** 0.5:.4g}", scores, queries, keys))
    if place.bias is not None:
        scores = scores + place.bias.expand(1, attention.site.heads, -1, -1)[0, head]
        steps.append(Step("+ bias", "what the encoding adds, by place alone", scores, queries, keys))
    if place.allowed is not None and not bool(place.allowed.all()):
        scores = scores.masked_fill(~place.allowed[0, 0], float("-inf"))
        steps.append(Step("masked", "minus infinity where a query may not look", scores, queries, keys))

    steps.append(Step("weights", "softmax of each row", definition.weights(call)[0, head], queries, keys))
    outputs = definition.output(call)[0]
    steps.append(Step("weights V", "the weighted sum of the values", outputs[head], queries))
    output = attention.out(outputs.transpose(0, 1).flatten(-2).to(seen.x.dtype))
    steps.append(Step("output", "all heads side by side, W_O + b_O", output, queries))
    return steps


# One step of a recurrent decoder -------------------------------------------------------------------------------------


def _walk_step(
    model: nn.Module,
    inputs: Sequence[Any],
    attention: LuongAttention,
    site: str,
    step: int,
    queries: Sequence[str],
    keys: Sequence[str],
    vocabulary: Sequence[str] | None,
) -> Walk:
    seen: list[tuple[Tensor, Tensor]] = []
    handle = attention.register_forward_hook(lambda _, arguments, y: seen.append((arguments[0][0], y[0])))
    try:
        with record(model) as tape:
            output = model(*inputs)[0]
    finally:
        handle.remove()
    # One call for each step, or one for all of them.
    places = [(recorded.call, query) for recorded in tape.calls[site] for query in range(recorded.call.q.shape[2])]
    if not 0 <= step < len(places):
        raise UserError(f"{site} has the steps 0 to {len(places) - 1}, got {step}")
    call = _one_query(*places[step])
    h, attentive = (torch.cat(side)[step : step + 1] for side in zip(*seen, strict=True))

    query = [queries[step]]
    steps = [Step("h_t", f"the decoder's state after {queries[step]!r}, step {step}", h, query)]
    steps += steps_to_weights(attention, call, h, query, keys)
    steps += steps_from_context(attention, call, h, query)
    error = _arrive(site, steps[-1].matrix, attentive)
    readout = getattr(model, "readout", None)
    if isinstance(readout, Tensor):
        steps += steps_to_vocabulary(steps[-1].matrix, readout, query, vocabulary)
        error = max(error, _arrive(site, steps[-2].matrix, output[step : step + 1]))
    return Walk(attention.encoding.spec, site, 0, steps, error, call)


def _one_query(call: AttentionCall, query: int) -> AttentionCall:
    """The same attention for one of its queries alone."""
    whole = call.geometry
    one = place(whole.encoding, whole.q_pos.slice(query, query + 1), whole.k_pos)
    # A source's padding is the same for each query.
    one = replace(one, allowed=whole.allowed, alive=whole.alive)
    return replace(call, q=call.q[:, :, query : query + 1], geometry=one)


# The softmax lens ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Divisor:
    """What the softmax of a head's own scores becomes when q.k is divided by `divisor`; means over the queries.

    entropy: over its largest value, log of the number of keys. largest: the largest weight. trace: 1 - sum p^2.
    jacobian: root mean square over queries of the Frobenius norm of d weights / d scores, what is left of a gradient
    on its way through the softmax. gradient: the same of d weights / d q, which is the Jacobian times K / divisor (K
    with what an encoding's terms add to it): a smaller divisor lets less through the softmax and makes more of what
    gets through.
    """

    name: str
    divisor: float
    entropy: float
    largest: float
    trace: float
    jacobian: float
    gradient: float

    as_dict = asdict


@torch.no_grad()
def softmax_lens(call: AttentionCall, head: int) -> list[Divisor]:
    """The same q.k of one head divided by 1, sqrt(d_k) and d_k. What the encoding adds by place stays as it is.

    Raises UserError where every query may look at one key only.
    """
    width = call.q.shape[-1]
    place = call.geometry

    def fit(q_BHQE: Tensor) -> Tensor:
        products = torch.einsum("bhqe,bhke->bhqk", q_BHQE, call.k) if call.score is None else call.score(q_BHQE, call.k)
        terms = place.encoding.terms(q_BHQE, call.k, place.relation)
        return (products if terms is None else products + terms)[0, head]

    products = fit(call.q)
    allowed = torch.ones_like(products, dtype=torch.bool)
    if place.allowed is not None:
        allowed = place.allowed[0, 0].expand_as(allowed)
    # A row with one allowed key is saturated whatever the divisor is.
    rows = [i for i in range(len(allowed)) if int(allowed[i].sum()) > 1]
    if not rows:
        raise UserError("every query at this site may look at one key only, so there is nothing to divide")
    by_query = torch.autograd.functional.jacobian(fit, call.q)
    assert isinstance(by_query, Tensor)
    keys = torch.stack([by_query[i, :, 0, head, i] for i in rows])
    lens = []
    for name, divisor in (("1", 1.0), (f"sqrt({width})", width**0.5), (str(width), float(width))):
        scores = products / divisor
        if place.bias is not None:
            scores = scores + place.bias.expand(1, call.q.shape[1], -1, -1)[0, head]
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)[rows]
        jacobians = torch.stack([softmax_jacobian(p) for p in weights])
        entropies = torch.stack(
            [_share_of_entropy(p, int(allowed[i].sum())) for p, i in zip(weights, rows, strict=True)]
        )
        lens.append(
            Divisor(
                name,
                divisor,
                float(entropies.mean()),
                float(weights.amax(-1).mean()),
                float((1 - weights.square().sum(-1)).mean()),
                _root_mean_square_norm(jacobians),
                _root_mean_square_norm(jacobians @ keys / divisor),
            )
        )
    return lens


def softmax_jacobian(p: Float[Tensor, " K"]) -> Float[Tensor, "K K"]:
    """d p_i / d s_j = p_i (1[i = j] - p_j), that is diag(p) - p p^T; its trace is 1 - sum p^2."""
    return torch.diag(p) - torch.outer(p, p)


def _share_of_entropy(p: Tensor, allowed: int) -> Tensor:
    return -torch.special.xlogy(p, p).sum() / torch.tensor(float(allowed)).log()


def _root_mean_square_norm(matrices: Tensor) -> float:
    return float(matrices.square().sum((-2, -1)).mean().sqrt())
