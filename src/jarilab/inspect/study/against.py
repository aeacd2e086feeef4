"""Which heads of two models differ on the same inputs, beside the noise of each model on two halves of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.measure.head_matching import divergence_of_rows, match_heads, row_divergence
from jarilab.inspect.record.capture import record
from jarilab.inspect.study.example import Batch, Example, HeadMaps, site_maps
from jarilab.inspect.study.head import Head, heads_of
from jarilab.inspect.study.progress_file import ProgressFile

MAX_POSITIONS = 64
"""Queries and keys of the mean maps that noise is computed from."""
TIE = 1e-9
"""Heads with equal maps keep their place: a pair of equal index is preferred by so many nats."""
Z = NormalDist().inv_cdf(0.975)


class Against:
    """Distances between the heads of two models on the same inputs, in constant memory.

    The distance D of two heads is the mean Jensen-Shannon divergence of their rows. Heads of a layer are matched so
    that the sum of distances is smallest. The noise of a head is the divergence of its mean rows on the first, third,
    ... examples from those on the others, the mean over rows.
    Raises UserError for models with different numbers of layers.
    """

    name = "against"

    def __init__(self, heads: Sequence[Head], other_heads: Sequence[Head]):
        self.models = [_Model(heads), _Model(other_heads)]
        one, other = [len(model.sites) for model in self.models]
        if one != other:
            raise UserError(
                f"expected two models with the same number of attention layers, got {one} and {other}; compare "
                "checkpoints or seeds of one architecture"
            )
        self._index = -1  # of the last example
        self._rows = np.zeros((one, 3))  # by site: examples, rows, and the sum of squared rows
        sizes = zip(self.models[0].sizes, self.models[1].sizes, strict=True)
        self._sums = {f"distances/{i}": np.zeros((3, *size)) for i, size in enumerate(sizes)}

    @property
    def examples(self) -> int:
        """The number of examples so far."""
        return self._index + 1

    def add(
        self, example: Example, maps: Iterable[HeadMaps], other_maps: Iterable[HeadMaps]
    ) -> None:
        """Add the maps of each site of both models for an example.

        Raises UserError if the two models have maps of different sizes.
        """
        self._index = example.index
        for i, pair in enumerate(zip(maps, other_maps, strict=True)):
            weights = [each.map.weights for each in pair]
            shapes = [tuple(each.shape[1:]) for each in weights]
            if shapes[0] != shapes[1]:
                raise UserError(
                    f"{example.origin}: expected maps of the same size from both models, got {shapes[0]} and "
                    f"{shapes[1]} (queries, keys); compare models with the same tokenizer, or the same patches"
                )
            rows_Q = pair[0].map.allowed.any(-1) & pair[1].map.allowed.any(-1)
            count = int(rows_Q.sum())
            each_HGQ = divergence_of_rows(weights[0][:, rows_Q], weights[1][:, rows_Q])
            sums_HG = each_HGQ.sum(-1).numpy()
            self._sums[f"distances/{i}"] += np.stack([sums_HG, sums_HG**2, sums_HG * count])
            self._rows[i] += (1, count, count**2)
            for model, each in zip(self.models, weights, strict=True):
                model.add(example.index % 2, i, each, rows_Q)

    def state(self) -> dict[str, np.ndarray]:
        """Sums over examples."""
        halves = {f"halves/{i}": model.halves for i, model in enumerate(self.models)}
        counts = {f"counts/{i}": model.counts for i, model in enumerate(self.models)}
        index = {"index": np.array([self._index])}
        return {"rows": self._rows, **index, **self._sums, **halves, **counts}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state."""
        self._rows, self._index = np.array(state["rows"]), int(state["index"][0])
        self._sums = {name: np.array(state[name]) for name in self._sums}
        for i, model in enumerate(self.models):
            model.halves = np.array(state[f"halves/{i}"])
            model.counts = np.array(state[f"counts/{i}"])

    def rows(self) -> list[dict[str, Any]]:
        """A row for each head of the first model, with its match in the second.

        distance: in nats, with a 95 % interval over examples. same_index: the distance from the head of equal index.
        noise: the larger of those of both heads. moved: distance less noise; moved_lowest: a lower end that holds for
        all heads at once. has_moved: whether that is above 0.
        """
        return [
            row for i in range(len(self._rows)) if self._rows[i, 0] for row in self._site_rows(i)
        ]

    def _site_rows(self, i: int) -> list[dict[str, Any]]:
        one, other = self.models
        sums_HG, squares_HG, products_HG = self._sums[f"distances/{i}"]
        examples, count, count2 = self._rows[i]
        distance_HG = sums_HG / max(1, count)
        # The linearized error of a ratio of sums: examples are independent, not their rows.
        variance_HG = squares_HG - 2 * distance_HG * products_HG + distance_HG**2 * count2
        error_HG = np.sqrt(np.maximum(variance_HG, 0)) / max(1, count)
        cost_HG = torch.from_numpy(distance_HG - TIE * np.eye(*distance_HG.shape))
        matches = dict(match_heads(cost_HG).pairs)
        noises = [model.noise(i) for model in self.models]
        z = NormalDist().inv_cdf(1 - 0.025 / len(one.heads))
        rows = []
        for h, head in enumerate(one.heads[one.sites[i]]):
            same = float(distance_HG[h, h]) if h < distance_HG.shape[1] else None
            row = {
                **head.columns,
                "match": None,
                "distance": None,
                "same_index": same,
                "examples": int(examples),
            }
            if h in matches:
                g = matches[h]
                distance, error = float(distance_HG[h, g]), float(error_HG[h, g])
                noise = float(max(noises[0][h], noises[1][g]))
                row |= {
                    "match": other.heads[other.sites[i]][g].short,
                    "distance": distance,
                    "distance_low": max(0.0, distance - Z * error),
                    "distance_high": min(math.log(2), distance + Z * error),
                    "noise": noise,
                    "moved": distance - noise,
                    "moved_lowest": distance - z * error - noise,
                    "has_moved": distance - z * error > noise,
                }
            rows.append(row)
        return rows


@torch.no_grad()
def compare_heads(
    models: tuple[nn.Module, nn.Module],
    batches: Iterable[tuple[Batch, Batch]],
    report: Callable[[int], None] | None = None,
    *,
    against: Against | None = None,
    progress: ProgressFile | None = None,
) -> Against:
    """Compare the heads of two models. batches: each as both models read it. report: called with examples so far.

    against: a comparison to continue; batches are then its further examples. progress: where its state is saved.
    Raises UserError for no batches, for other tokens or maps of other sizes, and for other numbers of layers.
    """
    for pair in batches:
        tapes = []
        for model, batch in zip(models, pair, strict=True):
            with record(model) as tape:
                batch.forward(model)
            tapes.append(tape)
        if against is None:
            against = Against(*map(heads_of, tapes))
        for (row, maps), (_, other_maps) in zip(*map(site_maps, tapes, pair), strict=True):
            example, other = (batch.example(row, against.examples) for batch in pair)
            for side, tokens in example.tokens.items():
                others = other.tokens.get(side, [])
                if tokens != others:
                    raise UserError(
                        f"{example.origin}: expected the same tokens from both models, got {' '.join(tokens[:8])!r} "
                        f"and {' '.join(others[:8])!r}; compare models with one tokenizer"
                    )
            against.add(example, maps, other_maps)
        if progress is not None and progress.is_due:
            progress.write(against.state())
        if report is not None:
            report(against.examples)
    if against is None:
        raise UserError("expected at least one batch to compare models on, got none; add examples")
    if progress is not None:
        progress.write(against.state())
    return against


class _Model:
    """The heads of one model, and its mean rows on two halves of the examples.

    sites, sizes: the heads of each layer, and their number. halves: sums of weights, (2, H, P, P), P positions.
    counts: examples that have each query, (2, sites, P).
    """

    def __init__(self, heads: Sequence[Head]):
        self.heads = list(heads)
        names = [head.site for head in heads]
        firsts = [names.index(site) for site in dict.fromkeys(names)]
        self.sites = [slice(first, first + names.count(names[first])) for first in firsts]
        self.sizes = [site.stop - site.start for site in self.sites]
        self.halves = np.zeros((2, len(names), MAX_POSITIONS, MAX_POSITIONS))
        self.counts = np.zeros((2, len(self.sites), MAX_POSITIONS))

    def add(
        self, half: int, i: int, weights_HQK: Float[Tensor, "H Q K"], rows_Q: Bool[Tensor, " Q"]
    ) -> None:
        cut = weights_HQK[:, :MAX_POSITIONS, :MAX_POSITIONS].numpy()
        self.halves[half, self.sites[i], : cut.shape[1], : cut.shape[2]] += cut
        self.counts[half, i, : cut.shape[1]] += rows_Q[:MAX_POSITIONS].numpy()

    def noise(self, i: int) -> np.ndarray:
        """The divergence of each head's mean rows on one half from those on the other, the mean over rows."""
        halves = torch.from_numpy(self.halves[:, self.sites[i]])
        one, other = halves / halves.sum(-1, keepdim=True).clamp_min(torch.finfo(halves.dtype).tiny)
        weight_Q = torch.from_numpy(self.counts[:, i].min(0))
        each_HQ = row_divergence(one, other)
        return (each_HQ @ weight_Q / weight_Q.sum().clamp_min(1)).numpy()
