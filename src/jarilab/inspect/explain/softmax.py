"""The softmax of given numbers or of a head's scores, its derivative, and the effect of a divisor on both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.calls import allowed_links, select_queries

MAX_NUMBERS = 256

Number = int | float


def softmax_jacobian(p: Float[Tensor, " K"]) -> Float[Tensor, "K K"]:
    """d p_i / d s_j = p_i (1[i = j] - p_j), that is diag(p) - p p^T; its trace is 1 - sum p^2."""
    return torch.diag(p) - torch.outer(p, p)


@dataclass(frozen=True, eq=False)
class Softmax:
    """The softmax of K numbers.

    name: the numbers as text. scores: the numbers, divided by the square root of `divided` if that is given.
    """

    name: str
    scores: Float[Tensor, " K"]
    divided: Number | None = None

    @property
    def weights(self) -> Float[Tensor, " K"]:
        return self.scores.softmax(-1)

    @property
    def jacobian(self) -> Float[Tensor, "K K"]:
        """The derivative of each weight by each score."""
        return softmax_jacobian(self.weights)

    @property
    def trace(self) -> float:
        """The trace of the derivative: 1 - sum p^2."""
        return float(self.jacobian.trace())

    @property
    def entropy(self) -> float:
        """The entropy in nats."""
        weights_K = self.weights
        return -float(torch.special.xlogy(weights_K, weights_K).sum())

    @property
    def max_entropy(self) -> float:
        """The largest possible entropy: log K."""
        return math.log(len(self.scores))

    def as_dict(self) -> dict[str, Any]:
        return {
            "scores": self.scores.tolist(),
            "divided_by_root_of": self.divided,
            "weights": self.weights.tolist(),
            "derivative": self.jacobian.tolist(),
            "trace": self.trace,
            "entropy": self.entropy,
            "largest_entropy": self.max_entropy,
        }


def softmax_of(rows: Sequence[Sequence[Number]], divide: Sequence[Number] = ()) -> list[Softmax]:
    """The softmax of each row, followed by that of the row divided by the square root of each number in `divide`.

    In float64. Raises UserError for a row without two finite numbers, and for a divisor that is not above 0.
    """
    if not rows:
        raise UserError("no numbers to take the softmax of; give such as 0.3,0.4,0.1")
    for number in divide:
        if not 0 < number < math.inf:
            raise UserError(
                f"numbers can be divided by the root of a number above 0, got {number:g}; give such as 64"
            )
    softmaxes = []
    for row in rows:
        if not 2 <= len(row) <= MAX_NUMBERS or not all(map(math.isfinite, row)):
            raise UserError(
                f"expected 2 to {MAX_NUMBERS} finite numbers in a row, got {', '.join(map(str, row)) or 'nothing'}; "
                "give such as 0.3,0.4,0.1"
            )
        name = ", ".join(f"{number:g}" for number in row)
        scores_K = torch.tensor(row, dtype=torch.float64)
        softmaxes.append(Softmax(name, scores_K))
        for number in divide:
            divided = Softmax(f"({name}) / √{number:g}", scores_K / math.sqrt(number), number)
            softmaxes.append(divided)
    return softmaxes


# The divisor of a head ----------------------------------------------------------------------------------------------

MAX_DERIVATIVES = 2**22
"""Components of derivatives that are computed at most. Beyond it, a sample of the queries is used."""
SAMPLED_QUERIES = 64


@dataclass(frozen=True)
class Divisor:
    """Statistics of a head's softmax when q.k is divided by `divisor`; means over the queries.

    entropy: relative to its largest value, log of the number of keys. largest: the largest weight. trace: 1 - sum p^2.
    jacobian: root mean square over queries of the Frobenius norm of d weights / d scores.
    gradient: the same of d weights / d q, which is the Jacobian times K / divisor, where K includes the encoding's
        terms. A smaller divisor saturates the softmax and multiplies the gradient that is left.
    queries: the number of queries that the means are over. choosing: the number of queries with two keys or more.
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
    """33 divisors in a geometric series from d^-1/2 to d^3/2, with 1, sqrt(d) and d exactly. width: of the queries."""
    base = max(width, 2)
    return [base ** ((i - 8) / 16) for i in range(33)]


@torch.no_grad()
def softmax_lens(
    call: AttentionCall, head: int, divisors: Sequence[float] | None = None
) -> list[Divisor]:
    """Statistics of the softmax of one head with q.k divided by each of `divisors`.

    divisors: 1, sqrt(d) and d by default, for queries of width d. The bias of an encoding is not divided.
    Raises UserError for a divisor that is not above 0, and if every query may attend to one key only.
    """
    width = call.q.shape[-1]
    names = {1.0: "1", width**0.5: f"sqrt({width})"}
    names[float(width)] = str(width)
    if divisors is None:
        divisors = 1.0, width**0.5, float(width)
    for divisor in divisors:
        if not 0 < divisor < math.inf:
            raise UserError(f"scores can be divided by a number above 0, got {divisor:g}; omit it")
    allowed_QK = allowed_links(call)[0, 0]
    # A row with one key has weight 1, whatever the divisor is.
    choosing = (allowed_QK.sum(-1) > 1).nonzero().flatten()
    if not len(choosing):
        raise UserError(
            "every query at this site may look at one key only, so there is nothing to divide; choose another site"
        )
    rows_R, count = choosing, len(choosing)
    derivatives = count * allowed_QK.shape[1] * width
    if derivatives > MAX_DERIVATIVES and count > SAMPLED_QUERIES:
        evenly = torch.linspace(0, count - 1, SAMPLED_QUERIES, device=choosing.device)
        rows_R = choosing[evenly.round().long()]
    sampled = select_queries(call, rows_R)
    allowed_RK = allowed_QK[rows_R]
    parts = definition.summands(sampled).of_head(head)
    slopes_RKE = _slopes_of_product(sampled, head)
    if "terms" in sampled.geometry.encoding.hooks:
        slopes_RKE = slopes_RKE + _slopes_of_terms(sampled, head)
    lens = []
    for divisor in divisors:
        scores_RK = parts.unscaled / divisor
        if parts.bias is not None:
            scores_RK = scores_RK + parts.bias
        p_RK = scores_RK.masked_fill(~allowed_RK, float("-inf")).softmax(-1)
        statistics = _statistics(p_RK, allowed_RK.sum(-1), slopes_RKE, divisor)
        name = names.get(divisor, f"{divisor:.4g}")
        lens.append(Divisor(name, divisor, *statistics, len(rows_R), count))
    return lens


def _statistics(
    p_RK: Tensor, key_count_R: Tensor, slopes_RKE: Tensor, divisor: float
) -> tuple[float, float, float, float, float]:
    """Entropy, largest weight, trace, and the norms of the derivatives by the scores and by the query."""
    entropy_R = -torch.special.xlogy(p_RK, p_RK).sum(-1)
    entropy_R = entropy_R / key_count_R.to(p_RK.dtype).log()
    squares = p_RK.square()
    # Row i of diag(p) - p p^T is p_i (e_i - p).
    rest = _sum_of_others(1 - p_RK, p_RK, p_RK)
    others = _sum_of_others(squares.sum(-1, keepdim=True) - squares, squares, p_RK)
    jacobian_R = (squares * (rest.square() + others)).sum(-1)
    # Row i of the Jacobian times `slopes` is p_i times the distance of slope i from the mean slope.
    mean_R1E = p_RK.unsqueeze(1) @ slopes_RKE
    distance_RK = torch.linalg.vector_norm(slopes_RKE - mean_R1E, dim=-1)
    gradient_R = (p_RK * distance_RK / divisor).square().sum(-1)
    return (
        float(entropy_R.mean()),
        float(p_RK.amax(-1).mean()),
        float((1 - squares.sum(-1)).mean()),
        float(jacobian_R.mean().sqrt()),
        float(gradient_R.mean().sqrt()),
    )


def _sum_of_others(difference_RK: Tensor, values_RK: Tensor, p_RK: Tensor) -> Tensor:
    """For each key, the sum of `values` over all other keys. difference: total minus value of each key."""
    # For the largest weight the others are added up: near 1, the difference would be the rounding of that weight.
    best_R1 = p_RK.argmax(-1, keepdim=True)
    sum_R1 = values_RK.scatter(-1, best_R1, 0.0).sum(-1, keepdim=True)
    return difference_RK.scatter(-1, best_R1, sum_R1)


def _slopes_of_product(call: AttentionCall, head: int) -> Float[Tensor, "R K E"]:
    """The derivative of the product of each query and key by the query."""
    q_RE = call.q[0, head]
    k_KE = call.k[0, head]
    pairs = (len(q_RE), *k_KE.shape)
    if call.score is None:
        return k_KE.expand(pairs)
    # Each pair of query and key is a batch row, so that one backward pass computes all derivatives.
    q_RKE = q_RE.unsqueeze(1).expand(pairs)
    k_RKE = k_KE.unsqueeze(0).expand(pairs)
    shape = (-1, 1, 1, pairs[2])
    q_P = q_RKE.reshape(shape).clone().requires_grad_()
    k_P = k_RKE.reshape(shape)
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(call.score(q_P, k_P).sum(), q_P)
    return slopes.view(pairs)


def _slopes_of_terms(call: AttentionCall, head: int) -> Float[Tensor, "R K E"]:
    q = call.q.clone().requires_grad_()
    with torch.enable_grad():
        with_grad = replace(call, q=q)
        terms = with_grad.terms(lambda: definition.summands(with_grad).product)
        assert terms is not None
        columns = terms[0, head].unbind(-1)
    slopes = []
    # A row of terms depends on its own query only, so the gradient of a column's sum has the derivatives of all rows.
    for column in columns:
        (slope,) = torch.autograd.grad(column, q, torch.ones_like(column), retain_graph=True)
        slopes.append(slope[0, head])
    return torch.stack(slopes, 1)
