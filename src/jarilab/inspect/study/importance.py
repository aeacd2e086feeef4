"""How much the answers of a model depend on each head: the change of its loss with the head ablated.

    importance = HeadImportance(model, batches, next_token_loss)
    rows = importance.rows(("zero", "mean"))
    pairs = importance.pair_rows(rows)

zero: z becomes 0. mean: its mean over the tokens of all examples. mean_by_position: over the examples at each position.
resample: the z of another example of the same length. The kinds answer different questions: each has its own ranking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Bool, Tensor
from jarilab.inspect.cause.answers import valid_of
from jarilab.inspect.cause.copies import CleanRun, Copies, Group, Replacement
from jarilab.inspect.cause.parts import ModelParts, Part
from jarilab.inspect.cause.steering import changed, random_direction
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import Loss
from jarilab.inspect.study.measure_table import interval_columns
from jarilab.inspect.study.permutation import adjusted_p
from jarilab.inspect.study.progress_file import ProgressFile
from jarilab.inspect.study.tables import plain, rows_of

Kind = Literal["zero", "mean", "mean_by_position", "resample"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CONTROL = "random"
"""The control: a random direction with the norm of z is added to z, as zero ablation adds -z."""

DISTANCE = "squared distance"
"""The unit of changes of an embedding."""
RESAMPLES = 2
"""Draws of other examples, of which the mean is taken."""

Changes = np.ndarray
"""`(N, G)`: the change of the loss of each example with each group of heads ablated."""


class HeadImportance:
    """The effect of ablating heads over a data set.

    batches: read several times. loss: a row's loss in nats a token, or its embedding, see `losses.Loss`. means:
    batches over which means are taken, `batches` by default. report: is called with the batches that are done and with
    all of this pass. progress: where the changes of each batch are saved, from which the same call continues.
    report_groups: of `Copies`, within a batch.
    Raises UserError for a model in training mode, and no batch.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Batch],
        loss: Loss,
        *,
        means: Sequence[Batch] | None = None,
        seed: int = 0,
        report: Callable[[int, int], None] | None = None,
        progress: ProgressFile | None = None,
        report_groups: Callable[[int, int], None] | None = None,
    ):
        check_evaluating(model)
        if not batches or (means is not None and not means):
            raise UserError("expected a batch of examples or more, got none; pass examples")
        self._batches, self._loss, self._seed = batches, loss, seed
        self._batches_of_means = batches if means is None else means
        self._report = report or (lambda done, total: None)
        self.parts = ModelParts(model, batches[0])
        self.heads = self.parts.heads
        self._copies = Copies(self.parts, report_groups)
        clean = self._copies.run_clean(batches[0])
        base = self._values(clean.outputs, clean.batch)
        self.unit = "nats a token" if base.ndim == 1 else DISTANCE
        self._copies.check(clean, self._values)
        self._means: dict[str, dict[str, Tensor]] = {}
        self._progress = progress or ProgressFile(None)

    @property
    def has_direct(self) -> bool:
        """Whether direct effects can be computed."""
        return self._copies.can_freeze

    @property
    def finished_kinds(self) -> list[Kind]:
        """The kinds of ablation that earlier calls computed for every head and batch."""
        groups: list[Group] = [(self.parts.of_head(head),) for head in self.heads]
        finished = []
        for kind in KINDS:
            numbers = range(len(self._batches))
            keys = {_key(kind, groups, number, direct=True) for number in numbers}
            if self._progress.arrays.keys() >= keys:
                finished.append(kind)
        return finished

    def _values(self, outputs: Any, batch: Batch) -> Tensor:
        values = self._loss(outputs, batch)
        if not isinstance(values, Tensor) or values.ndim not in (1, 2) or len(values) != len(batch):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise UserError(
                f"expected a loss for each of {len(batch)} rows, got {got}; return a tensor (B,) from loss, or "
                "embeddings (B, D)"
            )
        return values.detach().double()

    # Tables ---------------------------------------------------------------------------------------------------------

    def rows(self, kinds: Sequence[Kind] = KINDS, controls: int = 8) -> list[dict[str, Any]]:
        """A row for each kind and head, with the largest total effect of each kind first.

        total: mean change of the loss over examples, its 95 % interval, and the share of examples where it is positive.
        direct: with later heads and MLPs at their clean outputs; None if they cannot be kept there. p_holm: of the
        total, over the heads of the kind. control: the total with a random direction added, for the first `controls`
        heads of each kind.
        """
        for kind in kinds:
            if kind not in KINDS:
                raise unknown("kind of ablation", kind, KINDS)
        groups: list[Group] = [(self.parts.of_head(head),) for head in self.heads]
        rows: list[dict[str, Any]] = []
        for kind in kinds:
            total, direct = self.changes(kind, groups)
            order = np.argsort(-np.abs(_means(total)), kind="stable")
            control = np.full_like(total, np.nan)
            first = order[:controls]
            if len(first):
                control[:, first], _ = self.changes(
                    CONTROL, [groups[each] for each in first], direct=False
                )
            columns = self._columns(kind, total, total)
            columns |= interval_columns("direct", direct, self._seed)
            columns |= interval_columns("control", control, self._seed)
            table = rows_of(columns)
            for rank, each in enumerate(order):
                rows.append(self.heads[each].columns | {"rank": rank + 1} | table[each])
        return rows

    def _columns(self, kind: str, total: Changes, tested: Changes) -> dict[str, list[Any]]:
        """The first columns of a table. tested: the changes of which `p_holm` is."""
        count = np.isfinite(total).sum(0)
        columns: dict[str, list[Any]] = {
            "kind": [kind] * len(count),
            "unit": [self.unit] * len(count),
            "examples": count.tolist(),
        }
        columns |= interval_columns("total", total, self._seed)
        columns["positive_share"] = [
            plain(each) for each in (total > 0).sum(0) / np.maximum(count, 1)
        ]
        columns["p_holm"] = adjusted_p(tested, seed=self._seed)
        if self.unit == DISTANCE and tested is total:
            columns["p_holm"] = ["not tested: a distance is never negative"] * len(count)
        return columns

    def pair_rows(
        self, rows: Sequence[dict[str, Any]], kind: Kind = "zero", top: int = 6
    ) -> list[dict[str, Any]]:
        """A row for each pair of the `top` heads, whose larger effect of total and direct is largest.

        rows: of `rows`. total: with both ablated. excess: the total less the two single effects; p_holm is that of the
        excess, over all pairs. Backups, and heads that can replace each other, have a large one.
        """
        strength = {
            row["head"]: max(abs(row["total"] or 0.0), abs(row["direct"] or 0.0))
            for row in rows
            if row["kind"] == kind
        }
        if not strength:
            raise unknown("kind of ablation", kind, sorted({row["kind"] for row in rows}))
        chosen = sorted(self.heads, key=lambda head: -strength.get(head.short, -1.0))[:top]
        chosen.sort(key=self.heads.index)
        pairs = list(combinations(range(len(chosen)), 2))
        if not pairs:
            return []
        parts = list(map(self.parts.of_head, chosen))
        groups: list[Group] = [(part,) for part in parts]
        groups += [(parts[one], parts[other]) for one, other in pairs]
        changes, _ = self.changes(kind, groups, direct=False)
        single, total = changes[:, : len(chosen)], changes[:, len(chosen) :]
        first, second = np.array(pairs).T
        excess = total - single[:, first] - single[:, second]
        columns = {
            "head": [chosen[one].short for one in first],
            "other": [chosen[other].short for other in second],
        }
        columns |= self._columns(kind, total, excess)
        columns |= interval_columns("excess", excess, self._seed)
        return sorted(rows_of(columns), key=lambda row: -abs(row["excess"] or 0.0))

    # Changes --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def changes(
        self, kind: str, groups: Sequence[Group], *, direct: bool = True
    ) -> tuple[Changes, Changes]:
        """Total and direct change of the loss of each example, with the heads of each group ablated together.

        NaN where a row has no loss, or no other row of its length to resample from, and for direct effects that are
        not asked for or cannot be computed.
        """
        effects = (False, True) if direct and self._copies.can_freeze else (False,)
        saved, tables = self._progress.arrays, []
        for number in range(len(self._batches)):
            key = _key(kind, groups, number, direct=direct)
            if key not in saved:
                saved[key] = np.stack(self._effects_of_batch(kind, groups, number, effects))
                if self._progress.is_due:
                    self._progress.write(saved)
            tables.append(saved[key])
            self._report(number + 1, len(self._batches))
        self._progress.write(saved)
        total, *rest = np.concatenate(tables, 1)
        return total, rest[0] if rest else np.full_like(total, np.nan)

    def _effects_of_batch(
        self, kind: str, groups: Sequence[Group], number: int, effects: Sequence[bool]
    ) -> list[Changes]:
        """The changes of one batch, for each of `effects`: whether later heads and MLPs are frozen."""
        if kind.startswith("mean") and not self._means:
            self._means = self._mean_outputs()
        clean = self._copies.run_clean(self._batches[number])
        base = self._values(clean.outputs, clean.batch)
        replacements = self._replacements(kind, clean, number)
        tables = []
        for frozen in effects:
            draws = []
            for each in replacements:
                scores = self._copies.scores(clean, groups, each, self._values, frozen=frozen)
                change = scores - base
                change = change.square().sum(-1) if change.ndim > 2 else change
                draws.append(change.T.cpu().numpy())
            tables.append(np.mean(draws, 0))
        return tables

    # Replacements ---------------------------------------------------------------------------------------------------

    def _valid(self, site: str, z_BHQW: Tensor, batch: Batch) -> Bool[Tensor, "B Q"]:
        """The queries of a site that are no padding."""
        return valid_of(batch, self.parts.sides[site], z_BHQW.shape[2]).to(z_BHQW.device)

    def _mean_outputs(self) -> dict[str, dict[str, Tensor]]:
        """Means of z by site, over all valid tokens `(1, H, W)` and over the examples at each position `(L, H, W)`."""
        sums: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        for batch in self._batches_of_means:
            for site, calls in self._copies.run_clean(batch, heads_only=True).heads.items():
                for z_BHQW in calls:
                    valid_BQ = self._valid(site, z_BHQW, batch)
                    places_N = _positions(valid_BQ)[valid_BQ]
                    length = int(places_N.max()) + 1 if len(places_N) else 1
                    z_NHW = z_BHQW.transpose(1, 2)[valid_BQ].double()
                    sum_LHW = z_NHW.new_zeros(length, *z_NHW.shape[1:])
                    sum_LHW.index_add_(0, places_N, z_NHW)
                    count_L = torch.bincount(places_N, minlength=length).double()
                    sums[site] = _add_padded(sums.get(site), sum_LHW)
                    counts[site] = _add_padded(counts.get(site), count_L)
        return {
            site: {
                "mean": (sum_LHW.sum(0) / counts[site].sum())[None],
                "mean_by_position": sum_LHW / counts[site][:, None, None],
            }
            for site, sum_LHW in sums.items()
        }

    def _replacements(self, kind: str, clean: CleanRun, number: int) -> list[Replacement]:
        """The replacement of z in one batch, for each draw. number: of the batch."""
        if kind == "zero":
            return [lambda part, call, z: torch.zeros_like(z)]
        if kind.startswith("mean"):
            return [self._mean_of(kind, clean)]
        if kind == CONTROL:
            return [random_direction(changed(0.0), [self._seed, number])]
        seeds = ([self._seed, number, draw] for draw in range(RESAMPLES))
        return [self._of_other_row(clean, seed) for seed in seeds]

    def _mean_of(self, kind: str, clean: CleanRun) -> Replacement:
        def replacement(part: Part, call: int, z_BQW: Tensor) -> Tensor:
            mean_LHW = self._means[part.site][kind]
            valid_BQ = self._valid(part.site, clean.heads[part.site][call], clean.batch)
            places_BQ = _positions(valid_BQ).clamp(0, len(mean_LHW) - 1)
            return mean_LHW[places_BQ, part.index].to(z_BQW.dtype)

        return replacement

    def _of_other_row(self, clean: CleanRun, seed: list[int]) -> Replacement:
        """The z of another row of the batch with the same places of tokens; NaN where there is none."""
        donors: dict[str, Tensor] = {}

        def replacement(part: Part, call: int, z_BQW: Tensor) -> Tensor:
            z_BHQW = clean.heads[part.site][call]
            side = self.parts.sides[part.site]
            if side not in donors:
                donors[side] = other_rows(self._valid(part.site, z_BHQW, clean.batch), seed)
            donors_B = donors[side]
            other = z_BHQW[donors_B.clamp_min(0), part.index]
            return other.masked_fill((donors_B < 0)[:, None, None], torch.nan)

        return replacement


def _key(kind: str, groups: Sequence[Group], number: int, *, direct: bool) -> str:
    """The name under which the changes of a batch are saved."""
    digest = hashlib.sha256(f"{direct} {list(groups)}".encode()).hexdigest()
    return f"{kind}/{digest[:16]}/{number}"


def other_rows(valid_BQ: Tensor, seed: list[int]) -> Tensor:
    """For each row, a random other one with tokens at the same places; -1 if there is none."""
    generator = np.random.default_rng(seed)
    alike: dict[bytes, list[int]] = {}
    for row, valid_Q in enumerate(valid_BQ.cpu().numpy()):
        alike.setdefault(valid_Q.tobytes(), []).append(row)
    others = np.full(len(valid_BQ), -1)
    for rows in alike.values():
        if len(rows) > 1:
            cycle = generator.permutation(rows)
            others[cycle] = np.roll(cycle, 1)
    return torch.from_numpy(others).to(valid_BQ.device)


def _positions(valid_BQ: Tensor) -> Tensor:
    """The place of each token among those of its row; -1 for padding before the first."""
    return valid_BQ.cumsum(1) - 1


def _add_padded(total: Tensor | None, new: Tensor) -> Tensor:
    """The sum of two tensors of different lengths."""
    return new if total is None else pad_sequence([total, new]).sum(1)


def _means(changes: Changes) -> np.ndarray:
    """The mean of each column without NaN; 0 if there is none."""
    return np.nan_to_num(changes).sum(0) / np.maximum(np.isfinite(changes).sum(0), 1)
