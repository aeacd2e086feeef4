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

from jarilab.attention import call as definition
from jarilab.attention.call import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.attention.module import Attention, split_heads
from jarilab.attention.recurrent import LuongAttention
from jarilab.encodings.compose import LayerEncodings
from jarilab.errors import UserError, unknown
from jarilab.inspect.capture import of_queries, record, site_name
from jarilab.inspect.model_io import precise
from jarilab.inspect.recurrent import steps_from_context, steps_to_vocabulary, steps_to_weights
from jarilab.inspect.steps import Step
from jarilab.patches import Images
from jarilab.shapes import Float, Tensor

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
        return {
            **{name: getattr(self, name) for name in names},
            "steps": [step.as_dict() for step in self.steps],
        }


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
    path, attention = attention_at(model, site, head)
    if isinstance(attention, LuongAttention):
        return _walk_step(model, inputs, attention, site, step or 0, queries, keys, vocabulary)
    if step is not None:
        raise UserError(
            f"{site} does all of its queries at once and has no steps; leave step={step} out"
        )

    stack = model.get_submodule(path.partition(".layers.")[0])
    if attention.query.weight.dtype is torch.float64:
        inputs = precise(tuple(inputs))
    seen = _Seen(stack, attention)
    with record(model) as tape, seen:
        model(*inputs)
    call = tape.recorded(site).call
    steps = _steps_of_stack(stack, call, seen, queries, _made_of(inputs, site))
    steps += _steps_of_head(attention, call, seen, head, queries, keys)
    # W_O mixes all heads, so the walk has arrived when what all of them give it is the model's own output.
    error = _arrive(site, steps[-1].matrix, seen.output)
    own = getattr(
        stack, "cross_encoding" if site.endswith(".cross") else "encoding", call.geometry.encoding
    )
    spec = own.spec if isinstance(own, LayerEncodings) else type(own).__name__
    return Walk(spec, site, head, steps, error, call)


def attention_at(model: nn.Module, site: str, head: int) -> tuple[str, Attention | LuongAttention]:
    """The attention that a tape calls `site`, and its path in the model. Raises UserError where it or the head is not
    there."""
    kinds = (Attention, LuongAttention)
    found = {
        site_name(f"{path}.attend"): (path, m)
        for path, m in model.named_modules()
        if isinstance(m, kinds)
    }
    if site not in found:
        raise unknown("site", site, found)
    path, attention = found[site]
    if not 0 <= head < attention.site.heads:
        raise UserError(f"{site} has the heads 0 to {attention.site.heads - 1}, got {head}")
    return path, attention


def _arrive(site: str, matrix: Tensor, output: Tensor) -> float:
    """How far the last matrix is from the model's own output. Raises RuntimeError where it is another."""
    error = float((matrix - output).abs().max())
    if error > ARRIVES[output.dtype] * max(1.0, float(output.abs().max())):
        raise RuntimeError(
            f"the walk through {site} ends {error:g} away from the model's own output"
        )
    return error


class _Seen:
    """What goes into a stack and its first layer, and into and out of one attention in it, during a forward."""

    def __init__(self, stack: nn.Module, attention: Attention):
        self.stack_input: Tensor | None = None
        self.layer_input: Tensor | None = None
        self.x = self.source = self.output = torch.empty(0)
        self._modules = stack, attention

    def __enter__(self) -> None:
        stack, attention = self._modules
        self._handles = [attention.register_forward_hook(self._attention)]
        if stack is not attention:
            # A layer that is a dictionary of its parts is not called itself.
            first = next(
                m
                for m in stack.get_submodule("layers.0").modules()
                if not isinstance(m, nn.ModuleDict)
            )
            self._handles.append(stack.register_forward_pre_hook(self._stack))
            self._handles.append(first.register_forward_pre_hook(self._layer))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _stack(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if isinstance(arguments[0], Tensor):
            self.stack_input = arguments[0][0]

    def _layer(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.layer_input = arguments[0][0]

    def _attention(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        self.x, self.output = arguments[0][0], output[0]
        self.source = arguments[1][0] if len(arguments) > 1 else self.x


def _made_of(inputs: Sequence[Any], site: str) -> str:
    """What the input of a stack is, in a formula."""
    if isinstance(inputs[-1], Images):
        return (
            "what the model makes of each patch"
            if site.startswith("encoder")
            else "a learned vector of each query"
        )
    return "E[token] * sqrt(D)"


def _steps_of_stack(
    stack: nn.Module, call: AttentionCall, seen: _Seen, queries: Sequence[str], made_of: str
) -> list[Step]:
    """What goes into the stack, and what places are added there. Some stacks have queries of their own, and are given
    what these look at: then it is what their first layer is given."""
    if seen.layer_input is None:
        return []
    whole, before = seen.layer_input, seen.stack_input
    encodings = getattr(stack, "encoding", None)
    if isinstance(encodings, LayerEncodings) and "embed" in encodings.of_layer[0].hooks:
        if before is not None and before.shape == whole.shape:
            placed = encodings.embed(before.unsqueeze(0), call.geometry.q_pos)[0]
            if torch.equal(placed, whole):
                return [
                    Step("embedding", made_of, before, "queries", queries),
                    Step(
                        "embedding + position",
                        f"embedding + {encodings.spec}",
                        placed,
                        "queries",
                        queries,
                    ),
                ]
        return [
            Step("embedding + position", f"{made_of} + {encodings.spec}", whole, "queries", queries)
        ]
    return [Step("embedding", made_of, whole, "queries", queries)]


def _steps_of_head(
    attention: Attention,
    call: AttentionCall,
    seen: _Seen,
    head: int,
    queries: Sequence[str],
    keys: Sequence[str],
) -> list[Step]:
    geometry, encoding = call.geometry, call.geometry.encoding
    own = seen.source is seen.x
    made_of = "input" if own else "source"
    steps = [Step("input", "what reaches this attention", seen.x, "queries", queries)]
    if not own:
        steps.append(
            Step("source", "what its keys and values are made of", seen.source, "keys", keys)
        )

    x, source = seen.x.unsqueeze(0), seen.source.unsqueeze(0)
    sides = (encoding.inject(x, geometry.q_pos), encoding.inject(source, geometry.k_pos), source)
    maps = (attention.query, attention.key, attention.value)
    q, k, v = (
        split_heads(linear(side), attention.site.heads)[0, head]
        for linear, side in zip(maps, sides, strict=True)
    )
    steps.append(Step("Q", "input W_Q + b_Q", q, "queries", queries))
    steps.append(Step("K", f"{made_of} W_K + b_K", k, "keys", keys))
    steps.append(Step("V", f"{made_of} W_V + b_V", v, "keys", keys))
    if "rotate" in encoding.hooks:
        q, k = call.q[0, head], call.k[0, head]
        steps.append(
            Step("Q rotated", "each pair turned by its position's angle", q, "queries", queries)
        )
        steps.append(Step("K rotated", "each pair turned by its position's angle", k, "keys", keys))

    scores = q @ k.transpose(0, 1)
    steps.append(
        Step("Q K^T", "how well each key fits each query", scores, "queries", queries, keys)
    )
    terms = encoding.terms(call.q, call.k, geometry.relation)
    if terms is not None:
        scores = scores + terms[0, head]
        steps.append(
            Step(
                "+ terms",
                "what the encoding adds, by content and place",
                scores,
                "queries",
                queries,
                keys,
            )
        )
    scores = scores * call.scale
    steps.append(
        Step(
            "scores",
            f"divided by sqrt({q.shape[1]}) = {q.shape[1] ** 0.5:.4g}",
            scores,
            "queries",
            queries,
            keys,
        )
    )
    if geometry.bias is not None:
        scores = scores + geometry.bias.expand(1, attention.site.heads, -1, -1)[0, head]
        steps.append(
            Step(
                "+ bias", "what the encoding adds, by place alone", scores, "queries", queries, keys
            )
        )
    if geometry.allowed is not None and not bool(geometry.allowed.all()):
        scores = scores.masked_fill(~geometry.allowed[0, 0], float("-inf"))
        steps.append(
            Step(
                "masked",
                "minus infinity where a query may not look",
                scores,
                "queries",
                queries,
                keys,
            )
        )

    steps.append(
        Step(
            "weights",
            "softmax of each row",
            definition.weights(call)[0, head],
            "queries",
            queries,
            keys,
        )
    )
    outputs = definition.output(call)[0]
    steps.append(
        Step("weights V", "the weighted sum of the values", outputs[head], "queries", queries)
    )
    output = attention.out(outputs.transpose(0, 1).flatten(-2).to(seen.x.dtype))
    steps.append(Step("output", "all heads side by side, W_O + b_O", output, "queries", queries))
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
    handle = attention.register_forward_hook(
        lambda _, arguments, y: seen.append((arguments[0][0], y[0]))
    )
    try:
        with record(model) as tape:
            output = model(*inputs)[0]
    finally:
        handle.remove()
    # One call for each step, or one for all of them.
    places = [
        (recorded.call, query)
        for recorded in tape.calls[site]
        for query in range(recorded.call.q.shape[2])
    ]
    if not 0 <= step < len(places):
        raise UserError(f"{site} has the steps 0 to {len(places) - 1}, got {step}")
    of_step, query_of_step = places[step]
    call = of_queries(of_step, slice(query_of_step, query_of_step + 1))
    h, attentive = (torch.cat(side)[step : step + 1] for side in zip(*seen, strict=True))

    query = [queries[step]]
    steps = [
        Step(
            "h_t", f"the decoder's state after {queries[step]!r}, step {step}", h, "queries", query
        )
    ]
    steps += steps_to_weights(attention, call, h, query, keys)
    steps += steps_from_context(attention, call, h, query)
    error = _arrive(site, steps[-1].matrix, attentive)
    readout = getattr(model, "readout", None)
    if isinstance(readout, Tensor):
        steps += steps_to_vocabulary(steps[-1].matrix, readout, query, vocabulary)
        error = max(error, _arrive(site, steps[-2].matrix, output[step : step + 1]))
    return Walk(attention.encoding.spec, site, 0, steps, error, call)


# The softmax lens ----------------------------------------------------------------------------------------------------

LARGEST = 2**22
"""So many components of derivatives are looked at; where there would be more, some of the queries are."""
SPREAD = 64


@dataclass(frozen=True)
class Divisor:
    """What the softmax of a head's own scores becomes when q.k is divided by `divisor`; means over the queries.

    entropy: over its largest value, log of the number of keys. largest: the largest weight. trace: 1 - sum p^2.
    jacobian: root mean square over queries of the Frobenius norm of d weights / d scores, what is left of a gradient
    on its way through the softmax. gradient: the same of d weights / d q, which is the Jacobian times K / divisor (K
    with what an encoding's terms add to it): a smaller divisor lets less through the softmax and makes more of what
    gets through. queries: how many queries the means are over, of `choosing` that may look at two keys or more: all,
    or where that were too many, some at even distances.
    """

    name: str
    divisor: float
    entropy: float
    largest: float
    trace: float
    jacobian: float
    gradient: float
    queries: int
    choosing: int

    as_dict = asdict


def divisors_of(width: int) -> list[float]:
    """33 divisors for queries of that width d, each larger by the same ratio: from d^-1/2 to d^3/2, with 1, sqrt(d) and
    d among them, exactly."""
    base = max(width, 2)
    return [base ** ((i - 8) / 16) for i in range(33)]


@torch.no_grad()
def softmax_lens(
    call: AttentionCall, head: int, divisors: Sequence[float] | None = None
) -> list[Divisor]:
    """The same q.k of one head divided by each of `divisors`, by default 1, sqrt(d) and d for queries of width d. What
    the encoding adds by place stays as it is.

    Raises UserError for a divisor that is not above 0, or where every query may look at one key only.
    """
    width, keys = call.q.shape[-1], call.k.shape[2]
    names = {1.0: "1", width**0.5: f"sqrt({width})", float(width): str(width)}
    divisors = (1.0, width**0.5, float(width)) if divisors is None else divisors
    for divisor in divisors:
        if not 0 < divisor < float("inf"):
            raise UserError(
                f"scores can be divided by a number above 0, got {divisor:g}; leave it out"
            )
    allowed = torch.ones(call.q.shape[2], keys, dtype=torch.bool, device=call.q.device)
    if call.geometry.allowed is not None:
        allowed = call.geometry.allowed[0, 0].expand_as(allowed)
    # A row with one allowed key is saturated whatever the divisor is.
    choosing = (allowed.sum(-1) > 1).nonzero().flatten()
    if not len(choosing):
        raise UserError(
            "every query at this site may look at one key only, so there is nothing to divide"
        )
    rows = choosing
    if len(rows) * keys * width > LARGEST and len(rows) > SPREAD:
        rows = rows[torch.linspace(0, len(rows) - 1, SPREAD, device=rows.device).round().long()]
    some, allowed = _of_rows(call, rows), allowed[rows]
    products, by_query = _products(some, head), _products_by_query(some, head)
    bias = some.geometry.bias
    lens = []
    for divisor in divisors:
        scores = products / divisor
        if bias is not None:
            scores = scores + bias.expand(1, call.q.shape[1], -1, -1)[0, head]
        p_RK = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        figures = _figures(p_RK, allowed.sum(-1), by_query, divisor)
        lens.append(
            Divisor(
                names.get(divisor, f"{divisor:.4g}"), divisor, *figures, len(rows), len(choosing)
            )
        )
    return lens


def _figures(
    p_RK: Tensor, allowed_R: Tensor, by_query_RKE: Tensor, divisor: float
) -> tuple[float, float, float, float, float]:
    """Entropy, largest weight, trace, and the norms of the derivatives by the scores and by the query."""
    entropy = -torch.special.xlogy(p_RK, p_RK).sum(-1) / allowed_R.to(p_RK.dtype).log()
    squares, best = p_RK.square(), p_RK.argmax(-1, keepdim=True)
    # Row i of diag(p) - p p^T is p_i (e_i - p). Of a weight near 1, what is left for the others is added up: 1 - p_i
    # would be the rounding of p_i.
    rest = (1 - p_RK).scatter(-1, best, p_RK.scatter(-1, best, 0.0).sum(-1, keepdim=True))
    others = squares.sum(-1, keepdim=True) - squares
    others = others.scatter(-1, best, squares.scatter(-1, best, 0.0).sum(-1, keepdim=True))
    jacobian = (squares * (rest.square() + others)).sum(-1)
    # The Jacobian times the rows of `by_query`: each weighs its distance from their mean.
    mean_R1E = p_RK.unsqueeze(1) @ by_query_RKE
    apart = torch.linalg.vector_norm(by_query_RKE - mean_R1E, dim=-1)
    gradient = (p_RK * apart / divisor).square().sum(-1)
    return (
        float(entropy.mean()),
        float(p_RK.amax(-1).mean()),
        float((1 - squares.sum(-1)).mean()),
        float(jacobian.mean().sqrt()),
        float(gradient.mean().sqrt()),
    )


def _of_rows(call: AttentionCall, rows: Tensor) -> AttentionCall:
    """The same attention for the queries in these rows alone; nothing is hidden."""
    whole, q_pos = call.geometry, call.geometry.q_pos
    q_pos = replace(
        q_pos,
        coordinates=q_pos.coordinates[..., rows, :],
        order=q_pos.order[rows],
        unplaced=None if q_pos.unplaced is None else q_pos.unplaced[..., rows],
    )
    bias = None if whole.bias is None else whole.bias[..., rows, :]
    relation = None if whole.relation is None else whole.encoding.relation(q_pos, whole.k_pos)
    geometry = Geometry(whole.encoding, q_pos, whole.k_pos, bias=bias, relation=relation)
    return replace(call, q=call.q[:, :, rows], geometry=geometry)


def _products(call: AttentionCall, head: int) -> Float[Tensor, "R K"]:
    """q.k, or the score in its place, with what the encoding adds to it before scaling."""
    products = (
        call.q @ call.k.transpose(-1, -2) if call.score is None else call.score(call.q, call.k)
    )
    terms = call.geometry.encoding.terms(call.q, call.k, call.geometry.relation)
    return (products if terms is None else products + terms)[0, head]


def _products_by_query(call: AttentionCall, head: int) -> Float[Tensor, "R K E"]:
    """d `_products` [i, j] / d q_i."""
    q, k, geometry = call.q, call.k, call.geometry
    pairs = (q.shape[2], k.shape[2], q.shape[3])
    if call.score is None:
        slopes = k[0, head].expand(pairs)
    else:
        # Every pair of query and key by itself, so that one backward pass gives the derivatives of all.
        sides = (q[0, head].unsqueeze(1), k[0, head].unsqueeze(0))
        q_P, k_P = (side.expand(pairs).reshape(-1, 1, 1, pairs[2]) for side in sides)
        q_P = q_P.clone().requires_grad_()
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(call.score(q_P, k_P).sum(), q_P)
        slopes = slopes.view(pairs)
    if "terms" not in geometry.encoding.hooks:
        return slopes
    q = q.clone().requires_grad_()
    with torch.enable_grad():
        terms = geometry.encoding.terms(q, k, geometry.relation)
        assert terms is not None
        columns = terms[0, head].unbind(-1)
    # A row of terms depends on its own query alone, so that the sum of a column has the derivatives of all rows.
    added = [
        torch.autograd.grad(column, q, torch.ones_like(column), retain_graph=True)[0][0, head]
        for column in columns
    ]
    return slopes + torch.stack(added, 1)


def softmax_jacobian(p: Float[Tensor, " K"]) -> Float[Tensor, "K K"]:
    """d p_i / d s_j = p_i (1[i = j] - p_j), that is diag(p) - p p^T; its trace is 1 - sum p^2."""
    return torch.diag(p) - torch.outer(p, p)
