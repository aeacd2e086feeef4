"""Screening of heads by gradients, with the best ones and a random sample checked by real patching.

    result = screen(model, batches, logit_over_mean(answers), donors)
    result.rows, result.rank_correlation

The estimate of replacing a head's z by z' is (z' - z) . d score / d z: attribution patching (Nanda 2023) with the z' of
another input, minus the gate gradient (Michel et al. 2019) with 0. It only screens: a head that acts through a
saturated softmax has almost no gradient, as the previous-token head of an induction circuit, whose ablation costs 2.8
nats and whose gate gradient is 1e-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.answers import checked
from jarilab.inspect.cause.copies import CleanRun, Copies, Replacement
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import Loss
from jarilab.inspect.study.measure_table import interval_columns
from jarilab.inspect.study.tables import rows_of

MIN_RANKED = 3
"""Values that a rank correlation needs."""


@dataclass(frozen=True, eq=False)
class Screening:
    """Estimated and real changes of the score.

    rows: of all heads, the largest estimate first; `actual` is None for heads that were not checked. rank_correlation:
    of estimate and actual change (Spearman) over the checked heads; of_random: over the random ones alone, which is not
    raised by the choice of heads. None for fewer than 3 heads, or equal changes.
    """

    rows: list[dict[str, Any]]
    rank_correlation: float | None
    of_random: float | None


def screen(
    model: nn.Module,
    batches: Sequence[Batch],
    score: Loss,
    donors: Sequence[Batch] | None = None,
    *,
    top: int = 8,
    sample: int = 8,
    seed: int = 0,
) -> Screening:
    """Estimate the effect of every head by one backward, and check some by real patching.

    score: a metric, one number a row. donors: for each batch one of as many rows and tokens, whose heads are put in; 0
    by default. top: heads with the largest estimates that are checked. sample: other heads that are checked, drawn at
    random.
    Raises UserError for a model in training mode, without a batch, and for donors of another number or shape.
    """
    check_evaluating(model)
    _check(batches, donors, top, sample)
    copies = Copies(ModelParts(model, batches[0]))
    runs = [copies.run_clean(batch) for batch in batches]
    checked(score(runs[0].outputs, batches[0]), "screening", batches[0])
    copies.check(runs[0], score)
    given = [None] * len(runs) if donors is None else list(map(copies.run_clean, donors))
    for run, donor in zip(runs, given, strict=True):
        if donor is not None and _shapes(run) != _shapes(donor):
            raise UserError(
                f"expected a donor of as many rows and tokens, got outputs of heads {_shapes(donor)} for "
                f"{_shapes(run)}; pair inputs of equal length"
            )
    pairs = [(run, copies.replacement(donor)) for run, donor in zip(runs, given, strict=True)]
    estimates = torch.cat([estimated_changes(copies, *pair, score) for pair in pairs]).cpu().numpy()
    order = np.argsort(-np.abs(estimates.mean(0)), kind="stable")
    generator = np.random.default_rng(seed)
    random = generator.permutation(order[top:])[:sample].tolist()
    chosen = [*order[:top].tolist(), *random]
    actual = np.full_like(estimates, np.nan)
    if chosen:
        changes = [_actual_changes(copies, *pair, score, chosen) for pair in pairs]
        actual[:, chosen] = np.concatenate(changes)
    means = estimates.mean(0), actual.mean(0)
    checks = dict.fromkeys(random, "random") | dict.fromkeys(order[:top].tolist(), "top")
    columns = interval_columns("estimate", estimates, seed)
    columns |= interval_columns("actual", actual, seed)
    table = rows_of(columns)
    rows = [
        copies.parts.heads[each].columns | table[each] | {"checked": checks.get(each)}
        for each in order.tolist()
    ]
    first, second = means
    return Screening(
        rows,
        rank_correlation(first[chosen], second[chosen]),
        rank_correlation(first[random], second[random]),
    )


def _shapes(run: CleanRun) -> list[tuple[int, ...]]:
    """The different shapes `(B, H, Q, W)` of the outputs of heads."""
    return sorted({tuple(output.shape) for outputs in run.heads.values() for output in outputs})


def _check(batches: Sequence[Batch], donors: Sequence[Batch] | None, top: int, sample: int) -> None:
    if not batches or (donors is not None and len(donors) != len(batches)):
        got = f"{len(batches)} batches" + ("" if donors is None else f" and {len(donors)} donors")
        raise UserError(f"expected a batch or more, and a donor for each, got {got}; pass both")
    if min(top, sample) < 0:
        raise UserError(f"expected counts of 0 or more, got top={top} and sample={sample}")


def estimated_changes(
    copies: Copies, run: CleanRun, replacement: Replacement, score: Loss
) -> Float[Tensor, "B H"]:
    """The change of the score of each row to first order, if one head is replaced; all heads by one backward."""
    added: dict[str, list[Tensor]] = {}

    def add(site: str, call: AttentionCall, output: Tensor) -> Tensor:
        # Gradients with respect to added zeros: all sites stay on the path of the earlier ones.
        added.setdefault(site, []).append(torch.zeros_like(output).requires_grad_())
        return output + added[site][-1]

    parts = copies.parts
    with torch.enable_grad(), parts.hooked(add):
        score_B = score(run.batch.forward(parts.model), run.batch)
        checked(score_B, "screening", run.batch)
    zeros = [(site, call, each) for site, calls in added.items() for call, each in enumerate(calls)]
    tensors = [each for _, _, each in zeros]
    gradients: Sequence[Tensor | None] = [None] * len(tensors)
    if score_B.requires_grad:
        gradients = torch.autograd.grad(score_B.sum(), tensors, allow_unused=True)
    changes_BH = torch.zeros(len(run.batch), len(parts.heads), dtype=torch.double)
    for (site, call, _), gradient in zip(zeros, gradients, strict=True):
        for column, head in enumerate(parts.heads):
            if head.site == site and gradient is not None:
                z_BQW = run.heads[site][call][:, head.index]
                new_BQW = replacement(parts.of_head(head), call, z_BQW)
                change_BQW = (new_BQW - z_BQW) * gradient[:, head.index]
                changes_BH[:, column] += change_BQW.double().sum((1, 2)).cpu()
    return changes_BH


def _actual_changes(
    copies: Copies, run: CleanRun, replacement: Replacement, score: Loss, heads: Sequence[int]
) -> np.ndarray:
    """The change of the score of each row with one of these heads replaced, `(B, G)`."""
    base_B = checked(score(run.outputs, run.batch), "screening", run.batch)
    groups = [(copies.parts.of_head(copies.parts.heads[each]),) for each in heads]
    scores_GB = copies.scores(run, groups, replacement, score, name="screening")
    return (scores_GB - base_B).T.cpu().numpy()


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    """Spearman's correlation, ties at their mean rank; None for fewer than 3 values, or equal ones."""
    from scipy.stats import spearmanr

    if len(one) < MIN_RANKED or not np.ptp(one) or not np.ptp(other):
        return None
    correlation: Any = spearmanr(one, other)[0]
    return float(correlation)
