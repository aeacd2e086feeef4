"""Random inputs on which roles that natural data cannot tell apart differ, and what heads do on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, groupby, islice

import numpy as np
import torch
from torch import nn

from jarilab.core.shapes import Float
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.measures import explained
from jarilab.inspect.record.capture import record
from jarilab.inspect.study.example import Batch, Example, HeadMaps, example_maps
from jarilab.inspect.study.head import Head
from jarilab.inspect.study.role_sums import MIN_QUERIES, Estimate, RoleSums, estimate

SEQUENCES = 32
"""Sequences of each kind of probe."""
MIN_LENGTH, MAX_LENGTH = 20, 40
MIN_TOKENS = 2
"""With fewer tokens or positions, all sequences are alike."""
MIN_BLOCK = 5
"""Shortest repeated block of the induction probe; the longest is a third of the sequence."""
SETS, ORDERS, SET_SIZE = 16, 4, 12
"""Sets of tokens of the content probe, orders of each, and tokens in it."""
BATCH = 8
PROBE = Example(0, "probe", {})

Rows = list[list[int]]


@dataclass(frozen=True, eq=False)
class ProbeInput:
    """How probes are made for a model.

    batch: makes a batch of rows of token ids. ids: of which sequences are drawn. start, end: ids around each sequence,
    as the model's data have them. longest: the largest number of tokens of a row. pads: whether `batch` can make a
    batch of rows of different lengths. target_start: the number of tokens before a sequence in the target, if there
    are other ones than in the source.
    """

    batch: Callable[[Rows], Batch]
    ids: Sequence[int]
    start: Sequence[int] = ()
    end: Sequence[int] = ()
    longest: int = MAX_LENGTH
    pads: bool = True
    target_start: int | None = None

    @property
    def inner_length(self) -> int:
        """The largest number of tokens between start and end."""
        return self.longest - len(self.start) - len(self.end)

    @property
    def shortage(self) -> str | None:
        """Why no sequences can be made, for a note; None if they can."""
        if min(len(self.ids), self.inner_length) >= MIN_TOKENS:
            return None
        return (
            f"no random sequences: expected at least {MIN_TOKENS} token ids and {MIN_TOKENS} positions between the "
            f"start and the end that all texts share, got {len(self.ids)} ids and {max(0, self.inner_length)} "
            "positions; add texts with more tokens. Roles are tested on your data alone"
        )

    def inner(self, row: list[int]) -> list[int]:
        """A row without start and end."""
        return row[len(self.start) : len(row) - len(self.end)]

    def start_of(self, side: str) -> int:
        """The number of tokens before a sequence of this side."""
        if side == "target" and self.target_start is not None:
            return self.target_start
        return len(self.start)


@dataclass(frozen=True, eq=False)
class ProbeResults:
    """What heads do on probes. sums: of roles, by kind of probe. moved, content, offset: an estimate for each head.

    moved: total variation between the maps of two inputs of equal length, the larger one of tokens without and with
    repeats. content, offset: the share of the variance of scores that a pair of tokens, and the offset, explain where
    the same tokens stand in several orders.
    """

    sums: dict[str, RoleSums]
    moved: Estimate
    content: Estimate
    offset: Estimate


@dataclass(eq=False)
class ProbeRunner:
    """Runs all probes of one model. seed: of the random sequences."""

    model: nn.Module
    heads: Sequence[Head]
    input: ProbeInput
    seed: int = 0
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng([self.seed, 71])

    @torch.no_grad()
    def run(self, tests: int) -> ProbeResults:
        """The results, with intervals that are simultaneous over `tests`."""
        sums = {kind: RoleSums(self.heads) for kind in ("random", "repeats", "induction")}
        variations = {
            kind: self._pairs(sums[kind], rows)
            for kind, rows in (("random", self._random_rows()), ("repeats", self._repeated_rows()))
        }
        for _, maps in self._maps(self._block_rows()):
            sums["induction"].add(PROBE, maps)
        contents = self._contents()
        moved = _largest([_over_examples(each, tests) for each in variations.values()])
        content, offset = (_over_examples(contents[..., part], tests) for part in (0, 1))
        return ProbeResults(sums, moved, content, offset)

    def _pairs(self, sums: RoleSums, rows: Rows) -> np.ndarray:
        """Add rows of which each two have one length; returns the total variation of each pair, `(N, H)`."""
        variations, before = [], []
        for number, maps in self._maps(rows):
            sums.add(PROBE, maps)
            if number % 2:
                variations.append(self._variation(before, maps))
            before = maps
        return np.array(variations).reshape(-1, len(self.heads))

    def _maps(self, rows: Rows) -> Iterator[tuple[int, list[HeadMaps]]]:
        number = 0
        for chunk in self._chunks(rows):
            batch = self.input.batch(chunk)
            with record(self.model) as tape:
                batch.forward(self.model)
            for _, parts in example_maps(tape, batch):
                yield number, list(chain.from_iterable(parts))
                number += 1

    def _chunks(self, rows: Rows) -> Iterator[Rows]:
        """Consecutive rows for a batch each, of one length if the model cannot be padded."""
        groups = [rows] if self.input.pads else [list(group) for _, group in groupby(rows, len)]
        for group in groups:
            for first in range(0, len(group), BATCH):
                yield group[first : first + BATCH]

    def _variation(self, one: list[HeadMaps], other: list[HeadMaps]) -> np.ndarray:
        """Total variation between the maps of two inputs, `(H,)`, mean over queries that have a choice.

        NaN where the maps have other shapes.
        """
        values = np.full(len(self.heads), np.nan)
        for part, other_part in zip(one, other, strict=True):
            a, b = part.map, other_part.map
            if a.weights.shape == b.weights.shape:
                rows_Q = (a.count > 1) & (b.count > 1)
                change_HQ = (a.weights - b.weights).abs().sum(-1)
                values[part.rows] = (change_HQ[:, rows_Q].mean(-1) / 2).numpy()
        return values

    # Sequences -------------------------------------------------------------------------------------------------------

    def _draw(self, count: int) -> list[int]:
        """Different tokens in random order."""
        return self.generator.choice(np.asarray(self.input.ids), count, replace=False).tolist()

    def _length(self, shortest: int = MIN_LENGTH) -> int:
        longest = min(MAX_LENGTH, self.input.inner_length)
        return int(self.generator.integers(min(shortest, longest), longest + 1))

    def _framed(self, ids: list[int]) -> list[int]:
        return [*self.input.start, *ids, *self.input.end]

    def _random_rows(self) -> Rows:
        """Sequences without repeated tokens; two of each length."""
        rows = []
        for _ in range(SEQUENCES // 2):
            length = min(self._length(), len(self.input.ids))
            rows += [self._framed(self._draw(length)) for _ in range(2)]
        return rows

    def _repeated_rows(self) -> Rows:
        """Sequences in which each token comes two or three times, at random gaps; two orders of each."""
        rows = []
        for _ in range(SEQUENCES // 2):
            different = max(2, min(self._length() * 2 // 5, len(self.input.ids)))
            tokens = self._draw(different)
            copies = self.generator.integers(2, 4, different)
            ids = np.repeat(tokens, copies)[: self.input.inner_length]
            rows += [self._framed(self.generator.permutation(ids).tolist()) for _ in range(2)]
        return rows

    def _block_rows(self) -> Rows:
        """Random tokens, a block, a gap, and the block again; all lengths are drawn for each sequence.

        Sequences for which there are too few different tokens are left out.
        """
        rows = []
        most = min(len(self.input.ids), self.input.inner_length)
        for _ in range(SEQUENCES):
            length = self._length(3 * MIN_BLOCK)
            block = int(self.generator.integers(MIN_BLOCK, max(MIN_BLOCK, length // 3) + 1))
            rest = min(length - 2 * block, most - block)
            if rest < 1:
                continue
            prefix = int(self.generator.integers(0, rest + 1))
            gap = int(self.generator.integers(0, rest - prefix + 1))
            tokens = self._draw(prefix + block + gap)
            again = tokens[prefix : prefix + block]
            rows.append(self._framed([*tokens, *again]))
        return rows

    # Content ---------------------------------------------------------------------------------------------------------

    def _contents(self) -> Float[np.ndarray, "S H 2"]:
        """For each set of tokens and head, R^2 of scores by the pair of tokens, and by the offset."""
        size = min(SET_SIZE, len(self.input.ids), self.input.inner_length)
        if size < 3:
            return np.full((0, len(self.heads), 2), np.nan)
        orders, rows = [], []
        for _ in range(SETS):
            tokens = np.array(self._draw(size))
            orders.append([self.generator.permutation(size) for _ in range(ORDERS)])
            rows += [self._framed(tokens[order].tolist()) for order in orders[-1]]
        maps = (each for _, each in self._maps(rows))
        return np.array([self._content(list(islice(maps, ORDERS)), each) for each in orders])

    def _content(self, of_orders: list[list[HeadMaps]], orders: list[np.ndarray]) -> np.ndarray:
        """The shares of one set of tokens, `(H, 2)`; NaN where queries and keys differ."""
        values = np.full((len(self.heads), 2), np.nan)
        size = len(orders[0])
        for parts in zip(*of_orders, strict=True):
            first, start = parts[0].map, self.input.start_of(parts[0].keys)
            if first.same and min(first.weights.shape[1:]) >= start + size:
                maps = [each.map for each in parts]
                values[parts[0].rows] = _explained_shares(maps, start, orders)
        return values


def other_tokens(source: Sequence[int], target: Sequence[int]) -> dict[int, int]:
    """Another token of the target's vocabulary for each token of the source's.

    A target of such tokens repeats as its source does, and cross-attention finds no equal tokens in it.
    """
    count = min(len(source), len(target))
    rolled = np.roll(np.asarray(target[:count]), count // 2)
    return dict(zip(source[:count], rolled.tolist(), strict=True))


def _explained_shares(
    maps: Sequence[Map], start: int, orders: Sequence[np.ndarray]
) -> Float[np.ndarray, "H 2"]:
    """R^2 of the scores of all orders together, by the pair of tokens and by the offset, each above chance.

    start: the number of tokens before the set; those before and after it are left out.
    """
    size = len(orders[0])
    places, inside = torch.arange(size), slice(start, start + size)
    scores = torch.cat([map.scores[:, inside, inside] for map in maps], 1)
    allowed = torch.cat([map.allowed[inside, inside] for map in maps])
    order_PL = torch.from_numpy(np.stack(orders))
    pairs = (order_PL.unsqueeze(-1) * size + order_PL.unsqueeze(1)).flatten(0, 1)
    offsets = (places - places.unsqueeze(-1)).repeat(len(orders), 1)
    rows = len(allowed)
    joined = Map(
        weights=torch.zeros_like(scores),
        scores=scores,
        allowed=allowed,
        queries=["?"] * rows,
        keys=["?"] * size,
        q_at=torch.zeros(rows, 1),
        k_at=torch.zeros(size, 1),
        q_order=torch.arange(rows),
        k_order=places,
        same=True,
    )
    fits = [explained(joined, labels) for labels in (pairs, offsets)]
    # Adjusted for the number of constants that were fitted: 0 by chance.
    return np.stack([((fit.value - fit.chance) / (1 - fit.chance)).numpy() for fit in fits], -1)


def _largest(estimates: Sequence[Estimate]) -> Estimate:
    """For each head, the estimate with the largest mean."""
    choice_H = np.nan_to_num([each.mean for each in estimates]).argmax(0)
    heads_H = np.arange(len(choice_H))
    arrays = []
    for part in fields(Estimate):
        values = np.stack([getattr(each, part.name) for each in estimates])
        arrays.append(values[choice_H, heads_H])
    return Estimate(*arrays)


def _over_examples(values: np.ndarray, tests: int) -> Estimate:
    """Means of `(N, H)` over examples with simultaneous intervals; NaN entries are left out."""
    defined = np.isfinite(values)
    filled = np.where(defined, values, 0.0)
    count = defined.sum(0)
    # Each example has many queries.
    queries = count * MIN_QUERIES
    return estimate(count, filled.sum(0), (filled**2).sum(0), queries, tests)
