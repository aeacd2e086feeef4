"""One head of one attention, matrix by matrix, in the model's own numbers.

The steps are computed anew from the input of the attention and its parameters, and the last of them is compared with
what the model itself put out: a walk that does not arrive there is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from jari.attention import call as definition
from jari.attention.call import AttentionCall
from jari.attention.module import Attention, split_heads
from jari.encodings.compose import LayerEncodings
from jari.errors import UserError, unknown
from jari.inspect.capture import record, site_name
from jari.inspect.measures import equal_tokens, row_difference
from jari.shapes import Float, Tensor

ARRIVES = {torch.float64: 1e-10, torch.float32: 1e-4}


@dataclass(frozen=True, eq=False)
class Step:
    """One matrix on the way. rows, columns: the tokens they stand for; columns None for the components of vectors.
    equal: for each pair of equal tokens among the rows, the largest difference of their rows."""

    name: str
    formula: str
    matrix: Float[Tensor, "R C"]
    rows: Sequence[str]
    columns: Sequence[str] | None = None

    @property
    def equal(self) -> dict[str, float]:
        return {
            f"{self.rows[i]!r} at {i} and at {j}": float(row_difference(self.matrix, i, j).max())
            for i, j in equal_tokens(self.rows)
        }

    def as_dict(self) -> dict[str, Any]:
        # A hidden score is minus infinity, which JSON does not have: null.
        rows = [[value if value > float("-inf") else None for value in row] for row in self.matrix.tolist()]
        record = {"name": self.name, "formula": self.formula, "shape": list(self.matrix.shape)}
        names = {"rows": list(self.rows), "columns": None if self.columns is None else list(self.columns)}
        return {**record, **names, "matrix": rows, "equal": self.equal}


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of one head, and how far the last is from the model's own output.

    encoding: the spec at this site. call: what was recorded, of all heads.
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
    model: nn.Module, inputs: Sequence[Any], *, site: str, head: int, queries: Sequence[str], keys: Sequence[str]
) -> Walk:
    """Follow `head` of the attention at `site` (`encoder.0`, `decoder.1.cross`) while the model runs on `inputs`.

    inputs: what the model is called with, a batch of one. queries, keys: the names of the tokens at this site.
    Raises UserError for an unknown site or a head that is not there.
    """
    paths = {site_name(f"{path}.attend"): path for path, m in model.named_modules() if isinstance(m, Attention)}
    if site not in paths:
        raise unknown("site", site, paths)
    attention = model.get_submodule(paths[site])
    assert isinstance(attention, Attention)
    if not 0 <= head < attention.site.heads:
        raise UserError(f"{site} has the heads 0 to {attention.site.heads - 1}, got {head}")

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
    error = float((steps[-1].matrix - seen.output).abs().max())
    if error > ARRIVES[seen.output.dtype] * max(1.0, float(seen.output.abs().max())):
        raise RuntimeError(f"the walk through {site} ends {error:g} away from the model's own output")
    own = getattr(stack, "cross_encoding" if site.endswith(".cross") else "encoding", call.geometry.encoding)
    spec = own.spec if isinstance(own, LayerEncodings) else type(own).__name__
    return Walk(spec, site, head, steps, error, call)


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
        products = torch.einsum("bhqe,bhke->bhqk", q_BHQE, call.k)
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
