"""Activation patching: outputs of parts in one input, put into the forward of another one.

    rows = patch(model, clean, corrupt, answers, rivals, kinds=["head", "mlp"])
    rows = exchange(model, batch, score, donor)                # of one input, beside random directions

Denoising runs the corrupt input with outputs of the clean one, which shows what suffices. Noising runs the clean input
with outputs of the corrupt one, which shows what is needed. Denoising misses both arms of an AND, noising both arms of
an OR (Heimersheim and Nanda 2024). A difference of two logits hides this, so each patch has a second metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Int, Tensor
from jarilab.inspect.cause.answers import (
    AnswerMetric,
    Ids,
    check_aligned,
    checked,
    logit_difference,
    logit_over_mean,
    token_ids,
    valid_of,
)
from jarilab.inspect.cause.copies import CleanRun, Copies, Group, Replacement
from jarilab.inspect.cause.parts import Kind, ModelParts, Part
from jarilab.inspect.cause.steering import MIN_EFFECT, compared, random_direction
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.importance import other_rows
from jarilab.inspect.study.losses import Loss
from jarilab.inspect.study.measure_table import bootstrap, interval_columns, resampled, widening
from jarilab.inspect.study.tables import plain, rows_of

Direction = Literal["denoising", "noising"]
DIRECTIONS: dict[Direction, tuple[str, str]] = {
    "denoising": ("corrupt", "clean"),
    "noising": ("clean", "corrupt"),
}
"""The input that runs, and the one whose outputs are put in."""
MAX_SHARE = 10
"""Of the difference of two scores; if an effect is a larger share, the difference is too small to divide by."""
ENDS = (0.025, 0.975)
"""Quantiles of a 95 % interval."""

Batches = Batch | Sequence[Batch]
Metrics = list[AnswerMetric]
Values = list[np.ndarray]
"""Of each metric: `(N,)`, or `(N, G)` for G groups of parts."""


def patch(
    model: nn.Module,
    clean: Batches,
    corrupt: Batches,
    answers: Ids,
    rivals: Ids | None = None,
    *,
    other: nn.Module | None = None,
    kinds: Sequence[Kind] = ("head",),
    positions: Sequence[int | None] = (None,),
    groups: Sequence[Part | Group] | None = None,
    directions: Sequence[Direction] = tuple(DIRECTIONS),
    read_at: int = -1,
    third: Batches | None = None,
    controls: int = 8,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """A row for each direction, metric and part: how much of the difference of two inputs the part carries.

    clean, corrupt: batches whose rows form pairs with as many tokens each. answers, rivals: the right tokens for the
        clean and for the corrupt inputs, one for all examples or one each. Without rivals there is no logit difference.
    other: a model of the same shape that runs the corrupt inputs; `corrupt` may then be `clean`.
    kinds, positions: which parts are patched, each alone; position None is all at once. groups: parts, or tuples of
        parts that are patched together, instead. read_at: position of the answer.
    third: inputs with as many tokens as the others, whose outputs are put in as a control; by default those of another
        row of the same length. controls: how many parts have a control, those that change the first metric most.
    report: called with the batches that are done and their number.

    change: of the metric, with its 95 % interval over examples. fraction: the ratio of the mean change to the mean
    difference of the two inputs; None where the difference is 0, without interval where its interval includes 0, as
    `note` says. control: the fraction with the third input.
    Raises UserError for inputs of different lengths, models of different shapes, positions that a row does not have,
    answers of several tokens, a rival that is the answer, a metric that is not finite, and parts that the model does
    not have.
    """
    for direction in directions:
        if direction not in DIRECTIONS:
            raise unknown("direction", direction, DIRECTIONS)
    inputs = _inputs(clean, corrupt, third)
    metrics = _metrics(answers, rivals, read_at, [len(each["clean"]) for each in inputs])
    patching = _Patching(model, other, inputs, metrics, seed, report)
    if groups is None:
        parts = shared_parts(patching.copies.values(), kinds)
        groups = [part.at(place) for part in parts for place in positions]
    listed: list[Group] = [each if isinstance(each, tuple) else (each,) for each in groups]
    if not listed:
        raise UserError(
            "expected a part or more to patch, got none; name kinds, positions or groups"
        )
    effects = patching.effects(dict.fromkeys(directions, listed))
    top = {direction: effects[direction].top(controls) for direction in directions}
    has_control = third is not None or any(len(each["clean"]) > 1 for each in inputs)
    of_third: dict[Direction, _Effects] = {}
    if controls and has_control:
        chosen: dict[Direction, list[Group]] = {}
        for direction in directions:
            chosen[direction] = [listed[each] for each in top[direction]]
        of_third = patching.effects(chosen, is_control=True)
    rows: list[dict[str, Any]] = []
    for direction in directions:
        rows += _rows(listed, effects[direction], of_third.get(direction), top[direction], seed)
    return rows


# Inputs ---------------------------------------------------------------------------------------------------------------


def _inputs(clean: Batches, corrupt: Batches, third: Batches | None) -> list[dict[str, Batch]]:
    """The batches that go together. Raises UserError for different numbers of rows or tokens."""
    listed = {"clean": clean, "corrupt": corrupt} | ({} if third is None else {"third": third})
    columns = {
        name: [each] if isinstance(each, Batch) else list(each) for name, each in listed.items()
    }
    for each in chain.from_iterable(columns.values()):
        if not isinstance(each, Batch):
            raise UserError(f"expected batches, got {type(each).__name__}; pass batch_of(inputs)")
    counts = {name: len(batches) for name, batches in columns.items()}
    if not columns["clean"] or len(set(counts.values())) > 1:
        raise UserError(
            f"expected as many batches of each input, one at least, got {counts}; pair them"
        )
    inputs = rows_of(columns)
    for each in inputs:
        for name, batch in each.items():
            check_aligned(each["clean"], batch, name)
    return inputs


def _metrics(answers: Ids, rivals: Ids | None, read_at: int, sizes: list[int]) -> list[Metrics]:
    """The metrics of each batch. sizes: of the batches."""
    answer_ids = _of_examples(answers, sum(sizes))
    rival_ids = [] if rivals is None else _of_examples(rivals, sum(sizes))
    for row, (answer, rival) in enumerate(zip(answer_ids, rival_ids, strict=False)):
        if answer == rival:
            raise UserError(
                f"row {row}: expected a rival other than the answer, got {answer} for both; name another"
            )
    metrics = []
    for number, size in enumerate(sizes):
        first = sum(sizes[:number])
        answer, rival = (ids[first : first + size] for ids in (answer_ids, rival_ids))
        difference = [logit_difference(answer, rival, read_at)] if rival else []
        metrics.append([*difference, logit_over_mean(answer, read_at)])
    return metrics


def _of_examples(ids: Ids, count: int) -> list[int]:
    """The answer of each example. Raises UserError for another number of answers."""
    listed = token_ids(ids)
    listed = [listed] * count if isinstance(listed, int) else listed
    if len(listed) != count:
        raise UserError(
            f"expected an answer for each of {count} examples, got {len(listed)}; pass one for all, or one each"
        )
    return listed


# Effects --------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Effects:
    """Values of metrics over all examples: of the input that runs, of the one that is put in, and with patches.

    metrics: their names. tolerance: the smallest difference of the two inputs, relative to the metrics.
    """

    direction: Direction
    metrics: list[str]
    tolerance: float
    batches: list[tuple[Values, Values, Values]] = field(default_factory=list)

    def of(self, metric: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Base `(N,)`, donor `(N,)` and the changes `(N, G)` of one metric."""
        of_metric = (map(itemgetter(metric), batch) for batch in self.batches)
        base, donor, patched = map(np.concatenate, zip(*of_metric, strict=True))
        return base, donor, patched - base[:, None]

    def top(self, count: int) -> list[int]:
        """The groups with the largest change of the first metric."""
        change = np.abs(self.of(0)[2].mean(0))
        return np.argsort(-change, kind="stable")[:count].tolist()


class _Patching:
    """Patches between the batches of `inputs`. metrics: of each of them. Others: as for `patch`."""

    def __init__(
        self,
        model: nn.Module,
        other: nn.Module | None,
        inputs: list[dict[str, Batch]],
        metrics: list[Metrics],
        seed: int,
        report: Callable[[int, int], None] | None,
    ):
        self._inputs, self._metrics, self._seed, self._report = inputs, metrics, seed, report
        models = {"clean": model, "corrupt": other or model}
        self.copies: dict[str, Copies] = {}
        for name, each in models.items():
            check_evaluating(each)
            is_same = name == "corrupt" and other is None
            self.copies[name] = self.copies["clean"] if is_same else self._checked(each, name)
        self._tolerance = torch.finfo(next(model.parameters()).dtype).eps ** 0.5

    def _checked(self, model: nn.Module, name: str) -> Copies:
        """The copies of a model, checked with the first batch that it runs."""
        batch, metric = self._inputs[0][name], self._metrics[0][0]
        copies = Copies(ModelParts(model, batch))
        clean = copies.run_clean(batch)
        _values(clean, [metric])
        copies.check(clean, metric, metric.read_at(clean.outputs, batch))
        return copies

    def effects(
        self, groups: Mapping[Direction, Sequence[Group]], *, is_control: bool = False
    ) -> dict[Direction, _Effects]:
        """The effects of the groups of each direction. is_control: outputs of the third inputs are put in."""
        names = [metric.name for metric in self._metrics[0]]
        effects: dict[Direction, _Effects] = {}
        for each in groups:
            effects[each] = _Effects(each, names, self._tolerance)
        for number, (inputs, metrics) in enumerate(zip(self._inputs, self._metrics, strict=True)):
            runs = {name: copies.run_clean(inputs[name]) for name, copies in self.copies.items()}
            values = {name: _values(run, metrics) for name, run in runs.items()}
            for direction, of_direction in groups.items():
                base, donor = DIRECTIONS[direction]
                run, rows_B = runs[donor], None
                if is_control and "third" in inputs:
                    run = self.copies[donor].run_clean(inputs["third"])
                elif is_control:
                    valid = [*inputs[donor].valid.values()] or [torch.ones(len(inputs[donor]), 1)]
                    rows_B = other_rows(torch.cat(valid, 1), [self._seed, number])
                replacement = _replacement(self.copies[donor], run, rows_B)
                patched = self.copies[base].measure(
                    runs[base], of_direction, replacement, metrics, allow_nan=is_control
                )
                effects[direction].batches.append((values[base], values[donor], patched))
            if self._report is not None and not is_control:
                self._report(number + 1, len(self._inputs))
        return effects


def _values(run: CleanRun, metrics: Metrics) -> Values:
    """Each metric of a run. Raises UserError if one is not finite."""
    tables = (checked(each(run.outputs, run.batch), each.name, run.batch) for each in metrics)
    return [table.cpu().numpy() for table in tables]


def _replacement(copies: Copies, run: CleanRun, rows_B: Int[Tensor, " B"] | None) -> Replacement:
    """The outputs of another run. rows_B: the row that each row takes; NaN where it is below 0."""

    def replacement(part: Part, call: int, value: Tensor) -> Tensor:
        new = copies.values(run, part)[call]
        if new.shape != value.shape:
            raise UserError(
                f"{part.short}: expected an output {tuple(value.shape)} to put in, got {tuple(new.shape)}; patch "
                "between inputs and models of one shape"
            )
        if rows_B is None:
            return new
        is_alone = (rows_B < 0).to(new.device).view(-1, *[1] * (new.ndim - 1))
        return new[rows_B.clamp_min(0)].masked_fill(is_alone, torch.nan)

    return replacement


def shared_parts(copies: Iterable[Copies], kinds: Sequence[Kind]) -> list[Part]:
    """The parts of these kinds of one or two models. Raises UserError if the models have different ones."""
    parts, *rest = (each.parts.select(kinds) for each in copies)
    different = sorted(
        f"{part.short} ({part.site})" for others in rest for part in {*parts} ^ {*others}
    )
    if different:
        raise UserError(
            f"expected two models with the same parts, got {different[0]} in one of them only; compare models of one "
            "shape, such as two checkpoints"
        )
    return parts


# One input ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def exchange(
    model: nn.Module,
    batch: Batch,
    score: Loss,
    donor: Batch,
    other: nn.Module | None = None,
    kinds: Sequence[Kind] = ("head",),
    *,
    by_position: bool = False,
    controls: int = 39,
    tested: int = 12,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A row for each part, and for all heads and all MLPs together: one input with outputs of another input or model.

    batch, donor: one row each, of as many tokens. score: of outputs and their batch, a number a row. other: the model
    that runs `donor`, of the same shape; `donor` may then be `batch`. by_position: patch the residual stream at each
    position alone.

    noised: how much the score of `batch` falls with the output of the part for `donor`. restored: how much that of
    `donor` rises with the output of the part for `batch`. share: `noised` by the difference of the two scores; None if
    that is 0, or so small that a share would be above MAX_SHARE. control: the largest of `controls` random directions
    of the norm of what was changed, in the direction of the effect, for the `tested` heads and MLPs with the largest
    effect; passes: whether the effect is larger. base, donor: the two scores.
    Raises UserError for inputs of different lengths, models of different shapes, and a score that is not finite.
    """
    check_aligned(batch, donor, "other")
    here, there = _scored_run(model, batch, score), _scored_run(other or model, donor, score)
    parts = shared_parts([here.copies, there.copies], kinds)
    groups: list[Group] = []
    for kind in ("head", "mlp"):
        together = tuple(part for part in parts if part.kind == kind)
        groups += [together] if together else []
    for part in parts:
        length = here.copies.values(here.run, part)[0].shape[-2]
        count = int(valid_of(batch, part.side, length).sum())
        is_divided = by_position and part.kind == "stream"
        groups += [(part.at(place),) for place in range(count)] if is_divided else [(part,)]
    replacement = _replacement(there.copies, there.run, None)
    noised = here.changes(groups, replacement, score)
    restored = there.changes(groups, _replacement(here.copies, here.run, None), score)
    order = np.argsort(-np.abs(noised), kind="stable")
    first = [each for each in order.tolist() if groups[each][0].kind != "stream"][:tested]
    draws = [groups[each] for each in first for _ in range(controls)]
    random = here.changes(draws, random_direction(replacement, [seed]), score, allow_nan=True)
    random_of = dict(zip(first, random.reshape(-1, controls), strict=True))
    difference = here.base - there.base
    is_small = abs(difference) < max(MIN_EFFECT, float(np.abs(noised).max()) / MAX_SHARE)
    rows = []
    for number, group in enumerate(groups):
        fall = -float(noised[number])
        row = _columns(group) | {"noised": fall, "restored": float(restored[number])}
        if len(group) > 1:
            row["part"] = {"head": "all heads", "mlp": "all MLPs"}[group[0].kind]
        row |= {"share": None if is_small else fall / difference, "control": None, "passes": None}
        if number in random_of:
            row["control"], row["passes"] = compared(fall, -random_of[number])
        rows.append(row | {"base": here.base, "donor": there.base})
    return rows


@dataclass(frozen=True, eq=False)
class _ScoredRun:
    """A clean run of one row and its score."""

    copies: Copies
    run: CleanRun
    base: float

    def changes(
        self,
        groups: Sequence[Group],
        replacement: Replacement,
        score: Loss,
        *,
        allow_nan: bool = False,
    ) -> np.ndarray:
        """The change of the score with each group replaced."""
        name = "" if allow_nan else "score"
        scores_GB = self.copies.scores(self.run, groups, replacement, score, name=name)
        return scores_GB[:, 0].cpu().numpy() - self.base


def _scored_run(model: nn.Module, batch: Batch, score: Loss) -> _ScoredRun:
    check_evaluating(model)
    copies = Copies(ModelParts(model, batch))
    run = copies.run_clean(batch)
    base = float(checked(score(run.outputs, batch), "score", batch)[0])
    copies.check(run, score)
    return _ScoredRun(copies, run, base)


# Tables ---------------------------------------------------------------------------------------------------------------


def _rows(
    groups: Sequence[Group],
    effects: _Effects,
    control: _Effects | None,
    top: Sequence[int],
    seed: int,
) -> list[dict[str, Any]]:
    """The rows of one direction. control: effects of the groups at `top` with the third inputs."""
    rows = []
    for number, name in enumerate(effects.metrics):
        base, donor, change = effects.of(number)
        note, is_zero = _doubt(base, donor, effects.tolerance, seed)
        fraction, controls = np.full((2, 3, len(groups)), np.nan)
        if not is_zero:
            fraction = _ratios(change, donor - base, seed)
            if control is not None:
                controls[:, top] = _ratios(control.of(number)[2], donor - base, seed)
        if note:
            fraction[1:] = controls[1:] = np.nan
        columns = interval_columns("change", change, seed)
        for column, table in (("fraction", fraction), ("control", controls)):
            for suffix, values in zip(("", "_low", "_high"), table, strict=True):
                columns[column + suffix] = list(map(plain, values))
        shared = {"direction": effects.direction, "metric": name, "examples": len(base)}
        shared |= {"base": float(base.mean()), "donor": float(donor.mean()), "note": note}
        for group, row in zip(groups, rows_of(columns), strict=True):
            rows.append(_columns(group) | shared | row)
    return rows


def _columns(group: Group) -> dict[str, Any]:
    if len(group) == 1:
        return group[0].columns
    names = [
        each.short + ("" if each.position is None else f" at {each.position}") for each in group
    ]
    nothing = dict.fromkeys(("site", "index", "position"))
    return {"part": " + ".join(names) or "nothing", "kind": "group"} | nothing


def _doubt(base: np.ndarray, donor: np.ndarray, tolerance: float, seed: int) -> tuple[str, bool]:
    """What is wrong with the mean difference of the two inputs as a denominator, and whether it is 0."""
    mean, low, high, _ = (float(each[0]) for each in bootstrap((donor - base)[:, None], seed))
    if abs(mean) <= tolerance * (np.abs(base).mean() + np.abs(donor).mean()):
        note = f"no fraction: the two inputs differ by {mean:.3g} in this metric; choose answers that differ more"
        return note, True
    if low <= 0 <= high:
        note = (
            f"no interval: the difference of the two inputs, {low:.3g} to {high:.3g}, includes 0; add examples, or "
            "choose answers that differ more"
        )
        return note, False
    return "", False


def _ratios(change_NG: np.ndarray, difference_N: np.ndarray, seed: int) -> np.ndarray:
    """Ratio of the mean change to the mean difference with its bootstrap interval, `(3, G)`.

    Examples with NaN are left out. An interval needs two examples.
    """
    complete = np.isfinite(change_NG).all(1)
    change_NG, difference_N = change_NG[complete], difference_N[complete]
    table = np.full((3, change_NG.shape[1]), np.nan)
    if not len(difference_N):
        return table
    with np.errstate(invalid="ignore", divide="ignore"):
        table[0] = change_NG.sum(0) / difference_N.sum()
        if len(difference_N) > 1:
            draws = [
                (weights @ change_NG) / (weights @ difference_N)[:, None]
                for weights in resampled(len(difference_N), seed)
            ]
            ends = np.quantile(np.concatenate(draws), ENDS, axis=0)
            table[1:] = table[0] + (ends - table[0]) * widening(len(difference_N))
    return table
