"""What a divisor of q.k does to the softmax: to its weights, and to what of a gradient gets through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.record.calls import allowed_links, select_queries

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
    width = call.q.shape[-1]
    names = {1.0: "1", width**0.5: f"sqrt({width})"}
    names[float(width)] = str(width)
    if divisors is None:
        divisors = 1.0, width**0.5, float(width)
    for divisor in divisors:
        _check(divisor)
    allowed_QK = allowed_links(call)[0, 0]
    choosing = _choosing(allowed_QK)
    rows_R = _spread(choosing, allowed_QK.shape[1] * width)
    some = select_queries(call, rows_R)
    allowed_RK = allowed_QK[rows_R]
    parts = definition.summands(some).of_head(head)
    slopes_RKE = _slopes(some, head)
    lens = []
    for divisor in divisors:
        scores_RK = parts.unscaled / divisor
        if parts.bias is not None:
            scores_RK = scores_RK + parts.bias
        p_RK = scores_RK.masked_fill(~allowed_RK, float("-inf")).softmax(-1)
        figures = _figures(p_RK, allowed_RK.sum(-1), slopes_RKE, divisor)
        name = names.get(divisor, f"{divisor:.4g}")
        lens.append(Divisor(name, divisor, *figures, len(rows_R), len(choosing)))
    return lens


def _check(divisor: float) -> None:
    if not 0 < divisor < float("inf"):
        raise UserError(f"scores can be divided by a number above 0, got {divisor:g}; omit it")


def _choosing(allowed_QK: Bool[Tensor, "Q K"]) -> Int[Tensor, " C"]:
    """The queries that may look at two keys or more: a row with one is saturated whatever the divisor is."""
    choosing = (allowed_QK.sum(-1) > 1).nonzero().flatten()
    if not len(choosing):
        raise UserError(
            "every query at this site may look at one key only, so there is nothing to divide"
        )
    return choosing


def _spread(rows: Int[Tensor, " C"], components: int) -> Int[Tensor, " R"]:
    """All of these queries, or some at even distances. components: of the derivatives of each."""
    count = len(rows)
    if count * components <= LARGEST or count <= SPREAD:
        return rows
    evenly = torch.linspace(0, count - 1, SPREAD, device=rows.device)
    return rows[evenly.round().long()]


def _figures(
    p_RK: Tensor, allowed_R: Tensor, slopes_RKE: Tensor, divisor: float
) -> tuple[float, float, float, float, float]:
    """Entropy, largest weight, trace, and the norms of the derivatives by the scores and by the query."""
    entropy_R = -torch.special.xlogy(p_RK, p_RK).sum(-1)
    entropy_R = entropy_R / allowed_R.to(p_RK.dtype).log()
    squares = p_RK.square()
    # Row i of diag(p) - p p^T is p_i (e_i - p).
    rest = _others(1 - p_RK, p_RK, p_RK)
    others = _others(squares.sum(-1, keepdim=True) - squares, squares, p_RK)
    jacobian_R = (squares * (rest.square() + others)).sum(-1)
    # The Jacobian times the rows of `slopes`: each weighs its distance from their mean.
    mean_R1E = p_RK.unsqueeze(1) @ slopes_RKE
    apart_RK = torch.linalg.vector_norm(slopes_RKE - mean_R1E, dim=-1)
    gradient_R = (p_RK * apart_RK / divisor).square().sum(-1)
    return (
        float(entropy_R.mean()),
        float(p_RK.amax(-1).mean()),
        float((1 - squares.sum(-1)).mean()),
        float(jacobian_R.mean().sqrt()),
        float(gradient_R.mean().sqrt()),
    )


def _others(rest_RK: Tensor, each_RK: Tensor, p_RK: Tensor) -> Tensor:
    """What all other keys have of a sum, beside each key. Beside the largest weight it is added up: near 1, what is
    left of the sum would be the rounding of that weight."""
    best_R1 = p_RK.argmax(-1, keepdim=True)
    added_R1 = each_RK.scatter(-1, best_R1, 0.0).sum(-1, keepdim=True)
    return rest_RK.scatter(-1, best_R1, added_R1)


def _slopes(call: AttentionCall, head: int) -> Float[Tensor, "R K E"]:
    """The derivative of `product + terms` of each query and key, by the query."""
    slopes = _slopes_of_product(call, head)
    if "terms" in call.geometry.encoding.hooks:
        slopes = slopes + _slopes_of_terms(call, head)
    return slopes


def _slopes_of_product(call: AttentionCall, head: int) -> Float[Tensor, "R K E"]:
    q_RE = call.q[0, head]
    k_KE = call.k[0, head]
    pairs = (len(q_RE), *k_KE.shape)
    if call.score is None:
        return k_KE.expand(pairs)
    # Every pair of query and key by itself, so that one backward pass gives the derivatives of all.
    q_RKE = q_RE.unsqueeze(1).expand(pairs)
    k_RKE = k_KE.unsqueeze(0).expand(pairs)
    each = (-1, 1, 1, pairs[2])
    q_P = q_RKE.reshape(each).clone().requires_grad_()
    k_P = k_RKE.reshape(each)
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(call.score(q_P, k_P).sum(), q_P)
    return slopes.view(pairs)


def _slopes_of_terms(call: AttentionCall, head: int) -> Float[Tensor, "R K E"]:
    q = call.q.clone().requires_grad_()
    with torch.enable_grad():
        moved = replace(call, q=q)
        terms = moved.terms(lambda: definition.summands(moved).product)
        assert terms is not None
        columns = terms[0, head].unbind(-1)
    slopes = []
    # A row of terms depends on its own query alone, so that the sum of a column has the derivatives of all rows.
    for column in columns:
        (by_q,) = torch.autograd.grad(column, q, torch.ones_like(column), retain_graph=True)
        slopes.append(by_q[0, head])
    return torch.stack(slopes, 1)


def softmax_jacobian(p: Float[Tensor, " K"]) -> Float[Tensor, "K K"]:
    """d p_i / d s_j = p_i (1[i = j] - p_j), that is diag(p) - p p^T; its trace is 1 - sum p^2."""
    return torch.diag(p) - torch.outer(p, p)
