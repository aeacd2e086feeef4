"""Batches of a data set, and the maps of each example without its padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor
from jarilab.inspect.measure.maps import Map, SiteMaps
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import AttentionSite
from jarilab.inspect.study.head import Head, heads_of

MAX_CELLS = 2**19
"""Weights of one example that are measured at a time; all heads of a short example together."""
MAX_BLOCK_CELLS = 2**21
"""Weights of a batch that are computed at a time."""

WordIndices = list[int | None]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of a data set as a model reads them.

    args, kwargs: arguments of the model. tokens: for each row, the names of its tokens by sequence, without padding.
    valid: where these tokens are, by sequence; a sequence without padding may be left out. origins: the file and line
    of each row. extras: data of each row for accumulators, such as its gold annotation. words: the word of each token,
    by sequence. ids: token ids by sequence. copies: how many times the rows stand in the batch, one copy below the
    other.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    tokens: list[dict[str, list[str]]] = field(default_factory=list)
    valid: dict[str, Bool[Tensor, "B L"]] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)
    extras: list[Any] = field(default_factory=list)
    words: list[dict[str, WordIndices]] = field(default_factory=list)
    ids: dict[str, Int[Tensor, "B L"]] = field(default_factory=dict)
    copies: int = 1

    def __len__(self) -> int:
        return len(self.tokens)

    def forward(self, model: Any) -> Any:
        """The outputs of the model."""
        return model(*self.args, **self.kwargs)

    def example(self, row: int, index: int) -> Example:
        """One row as the example with this number in the study."""
        origin = self.origins[row] if self.origins else f"example {index + 1}"
        extra = self.extras[row] if self.extras else None
        words = self.words[row] if self.words else {}
        return Example(index, origin, self.tokens[row], words, extra)


@dataclass(frozen=True, eq=False)
class Example:
    """One row of a data set. index: its number in the study, from 0. Others: as in `Batch`."""

    index: int
    origin: str
    tokens: dict[str, list[str]]
    words: dict[str, WordIndices] = field(default_factory=dict)
    extra: Any = None


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """Consecutive heads of one example with the same queries, keys and mask.

    first: the index of the first of them in the study. queries, keys: the names of the sequences. map: without padding.
    """

    first: int
    queries: str
    keys: str
    map: Map

    @property
    def rows(self) -> slice:
        """These heads among all heads of the study."""
        return slice(self.first, self.first + len(self.map.weights))


class Accumulator(Protocol):
    """A statistic over the examples of a study, whose memory does not grow with their number.

    name: of its state and of its table.
    """

    name: str

    def add(self, example: Example, maps: Sequence[HeadMaps]) -> None:
        """Add maps of an example. A long example comes in several calls, each with other heads."""

    def state(self) -> dict[str, np.ndarray]:
        """All that is needed to continue."""
        ...

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state."""

    def rows(self) -> list[dict[str, Any]]:
        """The results so far, as plain data."""
        ...


# Maps of a batch ------------------------------------------------------------------------------------------------------


def _valid_of(
    side: str, length: int, row: int, tokens: Mapping[str, list[str]], valid: Mapping[str, Tensor]
) -> tuple[Tensor, list[str]]:
    """Indices of the tokens of a row that are no padding, and their names.

    A site with another number of tokens than its sequence, as after pooling, has numbers as names.
    """
    names = tokens.get(side)
    if side in valid and valid[side].shape[1] == length:
        places = valid[side][row].nonzero()[:, 0].to(valid[side].device)
        return places, names if names is not None else list(map(str, range(len(places))))
    places = torch.arange(length)
    return places, names if names and len(names) == length else list(map(str, range(length)))


def example_maps(tape: Tape, batch: Batch) -> Iterator[tuple[int, Iterator[list[HeadMaps]]]]:
    """Each row of a batch with its maps, a list of `HeadMaps` at a time, every head once.

    Raises UserError as `site_maps`.
    """
    for row, sites in site_maps(tape, batch):
        yield row, _groups(sites)


def site_maps(tape: Tape, batch: Batch) -> Iterator[tuple[int, Iterator[HeadMaps]]]:
    """Each row of a batch with the maps of its sites, one after the other.

    Raises UserError if a site has batch and heads in one axis, or another batch size.
    """
    sites = [tape.site(name) for name in tape.sites]
    cells = sum(_cells(tape, site, len(batch)) for site in sites)
    size = max(1, MAX_BLOCK_CELLS // max(1, cells))
    for first in range(0, len(batch), size):
        rows = slice(first, min(first + size, len(batch)))
        block = tape
        if rows.stop - rows.start < len(batch):
            calls: dict[str, Any] = {}
            for site, calls_of_site in tape.calls.items():
                calls[site] = [recorded.select_rows(rows) for recorded in calls_of_site]
            block = replace(tape, calls=calls, activations=None)
        valid = {side: valid_BL[rows] for side, valid_BL in batch.valid.items()}
        # Maps of a long row are computed a site at a time.
        kept = None
        if cells <= MAX_BLOCK_CELLS:
            kept = [SiteMaps.of(block, site) for site in sites]
        for row in range(rows.start, rows.stop):
            each = iter(kept or (SiteMaps.of(block, site) for site in sites))
            yield row, _maps_of_row(each, row - first, batch.tokens[row], valid)


def _maps_of_row(
    sites: Iterator[SiteMaps],
    row: int,
    tokens: Mapping[str, list[str]],
    valid: Mapping[str, Tensor],
) -> Iterator[HeadMaps]:
    first = 0
    for site in sites:
        (queries, keys), sizes = (site.site.queries, site.site.keys), site.weights.shape[2:]
        places = [
            _valid_of(side, size, row, tokens, valid)
            for side, size in zip((queries, keys), sizes, strict=True)
        ]
        item = HeadMaps(first, queries, keys, site.row(row, *places))
        first = item.rows.stop
        yield item


def heads_of_batch(tape: Tape, batch: Batch) -> list[Head]:
    """All heads on the tape of a batch. Raises UserError if a site has no map for each row."""
    for name in tape.sites:
        _cells(tape, tape.site(name), len(batch))
    return heads_of(tape)


def _cells(tape: Tape, site: AttentionSite, batch: int) -> int:
    """The weights of one row at a site."""
    calls = [recorded.call for recorded in tape.calls[site.name]]
    if site.folded:
        raise UserError(
            f"{site.name} has batch and heads in one axis of {site.folded}, in an order that the recorder could not "
            "follow, so its heads cannot be studied"
        )
    rows, heads, _, _ = calls[0].q.shape
    if rows != batch:
        raise UserError(
            f"{site.name}: expected the {batch} rows of the batch, got {rows}; this model divides its input, as into "
            "windows, so study one input at a time with jarilab.measure_heads"
        )
    return heads * sum(call.q.shape[2] for call in calls) * calls[0].k.shape[2]


def _groups(sites: Iterator[HeadMaps]) -> Iterator[list[HeadMaps]]:
    """The maps of one row: consecutive sites with equal masks and positions in one map, cut to `MAX_CELLS`."""
    group: list[HeadMaps] = []
    for item in sites:
        cells = sum(each.map.weights.numel() for each in [*group, item])
        if group and (cells > MAX_CELLS or not _are_alike(group[0], item)):
            yield from _joined(group)
            group = []
        group.append(item)
    if group:
        yield from _joined(group)


def _are_alike(one: HeadMaps, other: HeadMaps) -> bool:
    """Whether two sites have the same queries, keys, positions and mask."""
    a, b = one.map, other.map
    if (one.queries, one.keys, a.same, a.placed) != (other.queries, other.keys, b.same, b.placed):
        return False
    if (a.unplaced is None) != (b.unplaced is None) or a.q_at.shape != b.q_at.shape:
        return False
    pairs = [(a.allowed, b.allowed), (a.q_order, b.q_order), (a.k_order, b.k_order)]
    pairs += [(a.q_at, b.q_at), (a.k_at, b.k_at)]
    if a.unplaced is not None and b.unplaced is not None:
        pairs.append((a.unplaced, b.unplaced))
    return list(a.queries) == list(b.queries) and all(torch.equal(*pair) for pair in pairs)


def _joined(group: list[HeadMaps]) -> Iterator[list[HeadMaps]]:
    """One map of all heads of alike sites, in parts of at most `MAX_CELLS` weights."""
    head = group[0]
    weights = torch.cat([each.map.weights for each in group])
    scores = torch.cat([each.map.scores for each in group])
    size = max(1, MAX_CELLS // max(1, weights[0].numel()))
    for start in range(0, len(weights), size):
        part = slice(start, start + size)
        cut = replace(head.map, weights=weights[part], scores=scores[part])
        yield [replace(head, first=head.first + start, map=cut)]
