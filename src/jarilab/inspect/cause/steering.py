"""Steering: a part scaled by a number or moved by a vector, and how much a metric of the answer changes.

    rows = steer(model, batches, logit_difference(answers, rivals), parts, factors=[0, 2])
    rows = steer(model, batches, metric, parts, vector=direction_D, factors=[-4, 4])

Without a vector, parts are multiplied by the factor: 0 is zero ablation, 1 changes nothing. With one, the factor times
the vector is added. The control adds a random direction with the norm of what is added otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.answers import AnswerMetric, checked
from jarilab.inspect.cause.copies import Copies, Replacement
from jarilab.inspect.cause.parts import ModelParts, Part
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.measure_table import interval_columns
from jarilab.inspect.study.tables import rows_of

FACTORS = (0.0, 0.5, 2.0)


@torch.no_grad()
def steer(
    model: nn.Module,
    batches: Sequence[Batch],
    metrics: AnswerMetric | Sequence[AnswerMetric],
    parts: Sequence[Part],
    factors: Sequence[float] = FACTORS,
    *,
    vector: Float[Tensor, " W"] | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A row for each factor and part: the change of the metric, with its 95 % interval over examples.

    metrics: one for all batches, or one for each. parts: with their positions, see `Part.at`. vector: as wide as a
    head before the output projection, or as the residual stream. control: the change with a random direction.
    Raises UserError for a vector of another width, a position that a row does not have, a metric that is not
    finite, and without parts or factors.
    """
    check_evaluating(model)
    listed = [metrics] * len(batches) if isinstance(metrics, AnswerMetric) else list(metrics)
    if not batches or len(listed) != len(batches):
        raise UserError(
            f"expected a metric for each of {len(batches)} batches, one at least, got {len(listed)}"
        )
    if not parts or not factors:
        raise UserError(
            f"expected a part and a factor, one each at least, got {len(parts)} parts and {len(factors)} factors"
        )
    copies = Copies(ModelParts(model, batches[0]))
    tables: dict[float, tuple[list[np.ndarray], ...]] = {factor: ([], []) for factor in factors}
    for number, (batch, metric) in enumerate(zip(batches, listed, strict=True)):
        clean = copies.run_clean(batch)
        base = checked(metric(clean.outputs, batch), metric.name, batch)
        if not number:
            copies.check(clean, metric, metric.read_at(clean.outputs, batch))
        for factor in factors:
            change = changed(factor, vector)
            replacements = (change, random_direction(change, [seed, number]))
            for table, each in zip(tables[factor], replacements, strict=True):
                (values,) = copies.measure(clean, [(part,) for part in parts], each, [metric])
                table.append(values - base.cpu().numpy()[:, None])
    rows = []
    for factor, table in tables.items():
        change, control = map(np.concatenate, table)
        columns = interval_columns("change", change, seed)
        columns |= interval_columns("control", control, seed)
        shared = {"factor": factor, "metric": listed[0].name, "examples": len(change)}
        of_parts = zip(parts, rows_of(columns), strict=True)
        rows += [part.columns | shared | row for part, row in of_parts]
    return rows


def changed(factor: float, vector: Float[Tensor, " W"] | None = None) -> Replacement:
    """The output of a part times the factor, or plus the factor times a vector."""

    def replacement(part: Part, call: int, value: Tensor) -> Tensor:
        if vector is None:
            return value * factor
        if value.shape[-1] != len(vector):
            raise UserError(
                f"{part.short}: expected a vector of {value.shape[-1]} numbers, got {len(vector)}; heads have their "
                "width before the output projection, MLPs and the stream that of the model"
            )
        return value + factor * vector.to(value)

    return replacement


def random_direction(change: Replacement, seed: Sequence[int]) -> Replacement:
    """A control: adds a random direction with the norm of what `change` adds."""
    generator = np.random.default_rng(seed)

    def replacement(part: Part, call: int, value: Tensor) -> Tensor:
        noise = torch.from_numpy(generator.standard_normal(tuple(value.shape))).to(value)
        norm = (change(part, call, value) - value).norm(dim=-1, keepdim=True)
        return value + functional.normalize(noise, dim=-1) * norm

    return replacement
