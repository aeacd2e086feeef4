"""Steering: a part scaled by a number or moved by a vector, and how much a metric of the answer changes.

    rows = steer(model, batches, logit_difference(answers, rivals), parts, factors=[0, 2])
    rows = steer(model, batches, metric, parts, vector=direction_D, factors=[-4, 4])
    rows = steer_streams(model, batch, read, direction_D, position=-1)

Without a vector, parts are multiplied by the factor: 0 is zero ablation, 1 changes nothing. With one, the factor times
the vector is added. The control turns what is added into a random direction, the same at all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.answers import AnswerMetric, check_aligned, checked
from jarilab.inspect.cause.copies import CleanRun, Copies, Group, Replacement
from jarilab.inspect.cause.parts import ModelParts, Part
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.measure_table import interval_columns
from jarilab.inspect.study.tables import plain, rows_of

FACTORS = (0.0, 0.5, 2.0)
SCALES = (-2.0, -1.0, 0.5, 1.0, 2.0, 4.0)
"""Factors of a vector."""
MIN_EFFECT = 5e-4
"""Nats below which an effect counts as nothing."""


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


@torch.no_grad()
def steer_streams(
    model: nn.Module,
    batch: Batch,
    read: Callable[[Any, Batch], Float[Tensor, "R A"]],
    direction: Float[Tensor, " D"] | Batch,
    *,
    position: int | None = None,
    scales: Sequence[float] = SCALES,
    controls: int = 9,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A row for each layer and scale: what the answer is if a direction is added to the residual stream there.

    batch: one row. read: takes outputs and their batch, returns a score and any other numbers of each row. direction:
    a vector, or another input with as many tokens, whose stream less that of `batch` is the direction of each layer.
    position: where it is added, and where the two streams are compared; None for all positions and their mean.
    Streams of the answer's stack only.

    values: what was read. change: of the score. control: the largest change by one of `controls` random directions of
    the same norm; passes: whether the direction changes the score more. norm, stream_norm: of the direction and of the
    stream that it is added to.
    Raises UserError for a vector of another width, inputs of different lengths, a model whose residual stream is not
    found, a position that is not there, a direction of 0, and a score that is not finite.
    """
    check_evaluating(model)
    copies = Copies(ModelParts(model, batch))
    clean = copies.run_clean(batch)
    copies.check(clean, lambda outputs, rows: read(outputs, rows)[:, 0])
    base = float(checked(read(clean.outputs, batch)[:, 0], "score", batch)[0])
    streams = copies.parts.select(["stream"])
    side = "target" if any(part.side == "target" for part in streams) else "source"
    parts = [part.at(position) for part in streams if part.side == side]
    vectors, norms = _directions(copies, clean, parts, direction)
    rows = []
    for number, scale in enumerate(scales):
        change = changed(scale, vectors)
        singles: list[Group] = [(part,) for part in parts]
        values_GA = copies.scores(clean, singles, change, read)[:, 0]
        draws = [group for group in singles for _ in range(controls)]
        random = random_direction(change, [seed, number])
        random_GC = copies.scores(clean, draws, random, read)[:, 0, 0].reshape(-1, controls) - base
        for part, values_A, random_C in zip(parts, values_GA, random_GC, strict=True):
            checked(values_A[:1], f"score with {part.short} steered {scale:g} times", batch)
            largest = float(random_C.abs().max())
            effect = float(values_A[0]) - base
            row = {"scale": scale, "values": values_A.tolist(), "change": effect}
            row |= {"control": plain(largest), "passes": abs(effect) > max(largest, MIN_EFFECT)}
            norm = float(vectors[part.short].norm())
            rows.append(part.columns | row | {"norm": norm, "stream_norm": norms[part.short]})
    return rows


def _directions(
    copies: Copies, clean: CleanRun, parts: Sequence[Part], direction: Float[Tensor, " D"] | Batch
) -> tuple[dict[str, Float[Tensor, " D"]], dict[str, float]]:
    """The direction of each part by name, and the norm of the stream. Raises UserError if all directions are 0."""
    donor = None
    if isinstance(direction, Batch):
        check_aligned(clean.batch, direction, "other")
        donor = copies.run_clean(direction)
    vectors, norms = {}, {}
    for part in parts:
        places_L = copies.positions(clean, part)[0]
        stream_PD = copies.values(clean, part)[0][0, places_L]
        norms[part.short] = float(stream_PD.norm(dim=-1).mean())
        vectors[part.short] = direction
        if donor is not None:
            vectors[part.short] = (copies.values(donor, part)[0][0, places_L] - stream_PD).mean(0)
    if not any(bool(vector.any()) for vector in vectors.values()):
        raise UserError(
            "expected a direction to steer by, got 0 in every layer; give a vector that is not 0, or a second input "
            "that differs before the position"
        )
    return vectors, norms


def changed(
    factor: float, vectors: Float[Tensor, " W"] | Mapping[str, Float[Tensor, " W"]] | None = None
) -> Replacement:
    """The output of a part times the factor, or plus the factor times a vector: one for all, or one a part by name."""

    def replacement(part: Part, call: int, value: Tensor) -> Tensor:
        if vectors is None:
            return value * factor
        vector = vectors[part.short] if isinstance(vectors, Mapping) else vectors
        if value.shape[-1] != len(vector):
            raise UserError(
                f"{part.short}: expected a vector of {value.shape[-1]} numbers, got {len(vector)}; give one of that "
                "width: heads have theirs before the output projection, MLPs and the stream that of the model"
            )
        return value + factor * vector.to(value)

    return replacement


def random_direction(change: Replacement, seed: Sequence[int]) -> Replacement:
    """A control: what `change` adds, turned into a random direction; one rotation for all positions of a row."""
    generator = np.random.default_rng(seed)

    def replacement(part: Part, call: int, value: Tensor) -> Tensor:
        # Noise that differs between positions would average out where a model pools them. What it stands for does not.
        added = change(part, call, value) - value
        draws = generator.integers(2**31, size=len(added)).tolist()
        return value + torch.stack(
            [turned(row, draw) for row, draw in zip(added, draws, strict=True)]
        )

    return replacement


def turned(added_QD: Float[Tensor, "*B Q D"], draw: int) -> Float[Tensor, "*B Q D"]:
    """Vectors turned into a random direction, by a rotation of their space for each draw."""
    width = added_QD.shape[-1]
    rotated_QD = added_QD.float() @ _rotation(width).to(added_QD.device)
    # Along random axes, exchanged and mirrored axes give as many further rotations, for one matrix.
    generator = torch.Generator().manual_seed(draw)
    order_D = torch.randperm(width, generator=generator)
    signs_D = torch.randint(0, 2, (width,), generator=generator) * 2 - 1
    return (rotated_QD[..., order_D] * signs_D.to(rotated_QD)).to(added_QD)


@lru_cache(maxsize=4)
def _rotation(width: int) -> Float[Tensor, "D D"]:
    """A random rotation or reflection of a space."""
    generator = torch.Generator().manual_seed(width)
    return torch.linalg.qr(torch.randn(width, width, generator=generator))[0]


def compared(effect: float, controls: np.ndarray) -> tuple[float, bool]:
    """The control that is largest in the direction of an effect, and whether the effect is larger."""
    # Random directions nearly always hurt, so that a head that helps is compared with those that help.
    sign = 1 if effect >= 0 else -1
    largest = float((sign * controls).max())
    return sign * largest, bool(sign * effect > max(largest, MIN_EFFECT))
