"""One head of one attention, matrix by matrix, in the model's own numbers, and in float64.

The steps are computed anew from the input of the attention and its parameters, and the last of them is compared with
what the model itself put out: a walk that does not arrive there is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from jari.attention import call as definition
from jari.attention.call import AttentionCall
from jari.attention.module import Attention, split_heads
from jari.errors import UserError, unknown
from jari.inspect.capture import record, site_name
from jari.inspect.measures import equal_tokens, jacobian_trace, normalised_entropy
from jari.positions import Positions, Tokens
from jari.shapes import Float, Tensor
from jari.tasks.base import Task
from jari.text import FIRST
from jari.training import loop

ARRIVES = 1e-9


@dataclass(frozen=True, eq=False)
class Step:
    """One matrix on the way. rows, columns: what they stand for (token names, or numbers). equal: for each pair of
    equal tokens among the rows, their largest difference."""

    name: str
    formula: str
    matrix: Float[Tensor, "R C"]
    rows: list[str]
    columns: list[str] | None = None
    equal: tuple[tuple[str, float], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "matrix": self.matrix.tolist(), "shape": list(self.matrix.shape), "equal": dict(self.equal)}


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of one head, and how far the last is from the model's own output."""

    input: str
    answer: str
    encoding: str
    site: str
    head: int
    scale: float
    steps: list[Step]
    error: float
    recorded: AttentionCall
    """The call as it was recorded, all heads, float64."""

    def as_dict(self) -> dict[str, Any]:
        names = ("input", "answer", "encoding", "site", "head", "scale", "error")
        return {**{name: getattr(self, name) for name in names}, "steps": [step.as_dict() for step in self.steps]}


@torch.no_grad()
def walk(model: nn.Module, task: Task, line: str, *, site: str, head: int) -> Walk:
    """Follow `head` of the attention at `site` (`encoder.0`, `decoder.1.self`, `decoder.1.cross`) for an input.

    Raises UserError for an unknown site, a head that is not there, or an input the task cannot read.
    """
    model = model.double().eval()
    attentions = {site_name(f"{path}.attend"): module for path, module in model.named_modules() if isinstance(module, Attention)}
    if site not in attentions:
        raise unknown("site", site, attentions)
    attention = attentions[site]
    if not 0 <= head < attention.site.heads:
        raise UserError(f"{site} has the heads 0 to {attention.site.heads - 1}, got {head}")

    ids = task.read(line)
    source = task.sources([ids])
    written = loop.answer(model, task, source).ids[0].tolist()
    said = torch.tensor([[FIRST, *written[:-1]]])
    inputs: dict[str, Any] = {}

    def keep(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Tensor) -> None:
        inputs.update(x=arguments[0][0], source=arguments[1][0] if len(arguments) > 1 else None, output=output[0])

    handle = attention.register_forward_hook(keep, with_kwargs=True)
    try:
        with record(model) as tape:
            model(source, Tokens(said, Positions.sequence(said.shape[1], frame="target")))
    finally:
        handle.remove()
    source_names, target_names = task.show_source(ids), task.show_target(said[0].tolist())
    queries = source_names if site.startswith("encoder") else target_names
    keys = target_names if site.endswith(".self") else source_names
    call = tape.recorded(site).call
    steps = [*_embedding(model, site, ids, said, queries), *_head(attention, call, inputs, head, queries, keys)]
    # The projection adds all heads, so the walk arrives when all of them do.
    arrived = attention.out(definition.output(call)[0].transpose(0, 1).flatten(-2))
    error = float((arrived - inputs["output"]).abs().max())
    if error > ARRIVES * max(1.0, float(inputs["output"].abs().max())):
        raise RuntimeError(f"the walk through {site} ends {error:g} away from the model's own output")
    spec = getattr(model, site.partition(".")[0]).encoding.spec if not site.endswith(".cross") else model.decoder.cross_encoding.spec  # type: ignore[union-attr]
    return Walk(line, task.write(written), spec, site, head, attention.scale, steps, error, call)


def _embedding(model: Any, site: str, ids: list[int], said: Tensor, names: list[str]) -> list[Step]:
    """What goes into the stack: the tokens' vectors, and what the encoding adds to them."""
    if site.startswith("encoder"):
        embedding, stack, tokens = model.source_embedding, model.encoder, torch.tensor([ids])
    else:
        embedding, stack, tokens = model.target_embedding, model.decoder, said
    x = embedding(tokens)
    steps = [_step("embedding", "E[token] * sqrt(D)", x[0], names)]
    if "embed" in stack.encoding.of_layer[0].hooks:
        placed = stack.encoding.embed(x, Positions.sequence(tokens.shape[1], frame=site.partition(".")[0]))
        steps.append(_step("embedding + position", f"embedding + {stack.encoding.spec}", placed[0], names))
    return steps


def _head(
    attention: Attention, call: AttentionCall, inputs: dict[str, Any], head: int, queries: list[str], keys: list[str]
) -> list[Step]:
    place, encoding = call.geometry, call.geometry.encoding
    x = inputs["x"]
    source = x if inputs["source"] is None else inputs["source"]
    same = queries is keys
    steps = [_step("input", "what reaches this attention", x, queries)]
    if not same:
        steps.append(_step("source", "what its keys and values are made of", source, keys))
    q, k, v = (
        split_heads(linear(side.unsqueeze(0)), attention.site.heads)[0, head]
        for linear, side in (
            (attention.query, encoding.inject(x.unsqueeze(0), place.q_pos)[0]),
            (attention.key, encoding.inject(source.unsqueeze(0), place.k_pos)[0]),
            (attention.value, source),
        )
    )
    steps += [_step("Q", "input W_Q + b_Q", q, queries), _step("K", "source W_K + b_K", k, keys)]
    if same:
        steps[-1] = _step("K", "input W_K + b_K", k, keys)
    steps.append(_step("V", "source W_V + b_V" if not same else "input W_V + b_V", v, keys))
    if "rotate" in encoding.hooks:
        q, k = call.q[0, head], call.k[0, head]
        steps.append(_step("Q rotated", "each pair turned by its position's angle", q, queries))
        steps.append(_step("K rotated", "each pair turned by its position's angle", k, keys))
    products = q @ k.transpose(0, 1)
    steps.append(_step("Q K^T", "how well each query fits each key", products, queries, keys))
    terms = encoding.terms(call.q, call.k, place.relation)
    if terms is not None:
        products = products + terms[0, head]
        steps.append(_step("+ terms", "what the encoding adds, by content and place", products, queries, keys))
    scores = products * call.scale
    root = f"sqrt({call.q.shape[-1]}) = {call.q.shape[-1] ** 0.5:.4g}"
    steps.append(_step("scores", f"Q K^T / {root}", scores, queries, keys))
    if place.bias is not None:
        scores = scores + place.bias.expand(1, call.q.shape[1], -1, -1)[0, head]
        steps.append(_step("+ bias", "what the encoding adds, by place alone", scores, queries, keys))
    if place.allowed is not None and not bool(place.allowed.all()):
        scores = scores.masked_fill(~place.allowed[0, 0], float("-inf"))
        steps.append(_step("masked", "minus infinity where a query may not look", scores, queries, keys))
    weights = definition.weights(call)[0, head]
    steps.append(_step("weights", "softmax of each row", weights, queries, keys))
    steps.append(_step("weights V", "the weighted sum of the values", definition.output(call)[0, head], queries))
    all_heads = definition.output(call)[0].transpose(0, 1).flatten(-2)
    steps.append(_step("output", "all heads side by side, W_O + b_O", attention.out(all_heads), queries))
    return steps


def _step(name: str, formula: str, matrix: Tensor, rows: list[str], columns: list[str] | None = None) -> Step:
    equal = tuple(
        (f"{rows[i]!r} at {i} and at {j}", float((matrix[i] - matrix[j]).nan_to_num().abs().max()))
        for i, j in equal_tokens(rows)
    )
    return Step(name, formula, matrix, rows, columns, equal)


@dataclass(frozen=True)
class Divisor:
    """What the softmax of a head's own scores becomes when q.k is divided by `divisor`; means over the queries.

    entropy: over its largest value, log of the number of keys. largest: the largest weight. trace: 1 - sum p^2.
    jacobian: root mean square over queries of the Frobenius norm of d weights / d scores, what is left of a gradient
    on its way through the softmax. gradient: the same of d weights / d q, which is the Jacobian times K / divisor: a
    smaller divisor lets less through the softmax and makes more of what gets through.
    """

    name: str
    divisor: float
    entropy: float
    largest: float
    trace: float
    jacobian: float
    gradient: float


def softmax_lens(call: AttentionCall, head: int) -> list[Divisor]:
    """The same scores of one head divided by 1, sqrt(d_k) and d_k. What the encoding adds stays as it is."""
    width = call.q.shape[-1]
    place = call.geometry
    terms = place.encoding.terms(call.q, call.k, place.relation)
    products = call.q[0, head] @ call.k[0, head].transpose(0, 1)
    if terms is not None:
        products = products + terms[0, head]
    lens = []
    for name, divisor in (("1", 1.0), (f"sqrt({width})", math.sqrt(width)), (f"{width}", float(width))):
        scores = products / divisor
        if place.bias is not None:
            scores = scores + place.bias.expand(1, call.q.shape[1], -1, -1)[0, head]
        allowed = torch.ones_like(scores, dtype=torch.bool) if place.allowed is None else place.allowed[0, 0].expand_as(scores)
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        # Rows with one allowed key are saturated whatever the divisor is.
        rows = [i for i in range(len(weights)) if int(allowed[i].sum()) > 1]
        if not rows:
            raise UserError("every query of this site may look at one key only; there is nothing to saturate")
        jacobians = [softmax_jacobian(weights[i]) for i in rows]
        gradients = [jacobian @ call.k[0, head] / divisor for jacobian in jacobians]
        entropies = [float(normalised_entropy(weights[i], int(allowed[i].sum()))) for i in rows]
        lens.append(
            Divisor(
                name,
                divisor,
                math.fsum(entropies) / len(rows),
                float(weights[rows].amax(-1).mean()),
                float(jacobian_trace(weights[rows]).mean()),
                _norm(jacobians),
                _norm(gradients),
            )
        )
    return lens


def _norm(matrices: Sequence[Tensor]) -> float:
    return math.sqrt(math.fsum(float(matrix.square().sum()) for matrix in matrices) / len(matrices))


def softmax_jacobian(p: Float[Tensor, " K"]) -> Float[Tensor, "K K"]:
    """d p_i / d s_j = p_i (1[i = j] - p_j), that is diag(p) - p p^T."""
    return torch.diag(p) - torch.outer(p, p)


# As text -----------------------------------------------------------------------------------------------------------

SHOWN_COLUMNS = 8


def as_text(walked: Walk) -> str:
    """The walk for a terminal: every matrix with its shape, and under it how far rows of equal tokens differ."""
    lines = [
        f"{walked.input} -> {walked.answer}    encoding {walked.encoding}, {walked.site}, head {walked.head}",
        "",
    ]
    apart: str | None = None
    for step in walked.steps:
        rows, columns = step.matrix.shape
        lines.append(f"{step.name}: {step.formula}    ({rows} x {columns})")
        lines += _matrix(step)
        for pair, difference in step.equal:
            same = "the same row" if difference == 0 else f"largest difference {difference:.3g}"
            lines.append(f"    {pair}: {same}")
            if difference > 0 and apart is None:
                apart = step.name
        lines.append("")
    if any(step.equal for step in walked.steps):
        if apart is None:
            lines.append(
                "Equal tokens have the same row in every matrix: nothing in this attention says where a token stands, "
                "so no head can treat them differently."
            )
        else:
            lines.append(f"Equal tokens first differ in: {apart}.")
    lines.append(f"The last matrix is {walked.error:.1e} away from what the model itself computed.")
    return "\n".join(lines)


def lens_as_text(walked: Walk) -> str:
    """The softmax lens for a terminal, with the derivative it is about."""
    weights = definition.weights(walked.recorded)[0, walked.head]
    row = len(weights) - 1
    names = walked.steps[-2].rows
    jacobian = softmax_jacobian(weights[row])
    lines = [
        f"{walked.input}    encoding {walked.encoding}, {walked.site}, head {walked.head}",
        "",
        "The derivative of the softmax: d p_i / d s_j = p_i (1[i = j] - p_j). Its trace is 1 - sum p^2: the more one",
        "weight takes all, the nearer the derivative comes to 0, and the less the scores can learn.",
        "",
        "  q.k divided by   entropy / log n   largest weight   1 - sum p^2   |d p / d s|   |d p / d q|",
    ]
    for lens in softmax_lens(walked.recorded, walked.head):
        used = "  <- the model's own" if abs(1 / lens.divisor - walked.scale) < 1e-12 else ""
        lines.append(
            f"  {lens.name:>14}   {lens.entropy:15.4f}   {lens.largest:14.4f}   {lens.trace:11.4f}   {lens.jacobian:11.4f}   {lens.gradient:11.4f}{used}"
        )
    lines += ["", f"The derivative for the query {names[row]!r} at {row} (rows p_i, columns s_j):"]
    lines += _matrix(Step("", "", jacobian, [str(i) for i in range(len(jacobian))], [str(i) for i in range(len(jacobian))]))
    return "\n".join(lines)


def _matrix(step: Step) -> list[str]:
    rows, columns = step.matrix.shape
    # Maps over keys are shown whole, vectors by their first components.
    shown = columns if step.columns is not None else min(columns, SHOWN_COLUMNS)
    heads = step.columns or [str(c) for c in range(columns)]
    width = max(9, *(len(h) + 1 for h in heads[:shown]))
    margin = max(len(name) for name in step.rows) + 4
    more = "" if shown == columns else f"  ... {columns - shown} more"
    lines = [" " * margin + "".join(f"{h:>{width}}" for h in heads[:shown])]
    for name, row in zip(step.rows, step.matrix[:, :shown].tolist(), strict=True):
        lines.append(f"{name:>{margin}}" + _numbers(row, width) + more)
    return lines


def _numbers(row: Sequence[float], width: int) -> str:
    return "".join(f"{value:>{width}.4f}" if math.isfinite(value) else f"{'-inf':>{width}}" for value in row)


