"""Batches of a data set, and the maps of each example without its padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.recorded_call import RecordedCall
from jarilab.inspect.record.sites import AttentionSite
from jarilab.inspect.study.head import Head, heads_of
from jarilab.positions.coordinates import Positions, undefined_pairs

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
    by sequence. ids: token ids by sequence.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    tokens: list[dict[str, list[str]]] = field(default_factory=list)
    valid: dict[str, Bool[Tensor, "B L"]] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)
    extras: list[Any] = field(default_factory=list)
    words: list[dict[str, WordIndices]] = field(default_factory=list)
    ids: dict[str, Int[Tensor, "B L"]] = field(default_factory=dict)

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


@dataclass(frozen=True, eq=False)
class SiteMaps:
    """The maps of one site for some rows of a batch, with padding."""

    site: AttentionSite
    weights: Float[Tensor, "R H Q K"]
    scores: Float[Tensor, "R H Q K"]
    allowed: Bool[Tensor, "#R 1 Q K"]
    q_pos: Positions
    k_pos: Positions

    @staticmethod
    def of(tape: Tape, site: AttentionSite) -> SiteMaps:
        calls = [recorded.call for recorded in tape.calls[site.name]]
        q_pos = calls[0].geometry.q_pos
        if len(calls) > 1:  # steps through one sequence, a row each
            q_pos = replace(
                q_pos,
                coordinates=torch.cat([call.geometry.q_pos.coordinates for call in calls], -2),
                order=torch.cat([call.geometry.q_pos.order for call in calls]),
                unplaced=None,
            )
        return SiteMaps(
            site,
            tape.weights(site.name),
            tape.scores(site.name),
            torch.cat([allowed_links(call) for call in calls], 2),
            q_pos,
            calls[0].geometry.k_pos,
        )

    def cut(self, row: int, tokens: Mapping[str, list[str]], valid: Mapping[str, Tensor]) -> Map:
        """The map of one row, in float64 on the CPU, without its padding."""
        queries, names_Q = _valid_of(self.site.queries, self.weights.shape[2], row, tokens, valid)
        keys, names_K = _valid_of(self.site.keys, self.weights.shape[3], row, tokens, valid)
        allowed_QK = self.allowed[row if len(self.allowed) > 1 else 0, 0]
        unplaced = undefined_pairs(self.q_pos, self.k_pos)
        if unplaced is not None:
            unplaced = _row(unplaced.reshape(-1, *unplaced.shape[-2:]), row)[queries][:, keys].cpu()
        return Map(
            weights=self.weights[row][:, queries][:, :, keys].double().cpu(),
            scores=self.scores[row][:, queries][:, :, keys].double().cpu(),
            allowed=allowed_QK[queries][:, keys].cpu(),
            queries=names_Q,
            keys=names_K,
            q_at=_row(self.q_pos.coordinates, row)[queries].double().cpu(),
            k_at=_row(self.k_pos.coordinates, row)[keys].double().cpu(),
            q_order=self.q_pos.order[queries].cpu(),
            k_order=self.k_pos.order[keys].cpu(),
            same=self.site.relation == "self",
            placed=self.site.placed,
            unplaced=unplaced,
        )


def _row(tensor: Tensor, row: int) -> Tensor:
    """The row of a tensor that may be shared by all rows."""
    if tensor.ndim == 2:
        return tensor
    return tensor[row if len(tensor) > 1 else 0]


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

    Raises UserError if a site has batch and heads in one axis, or another batch size.
    """
    sites = [tape.site(name) for name in tape.sites]
    cells = sum(_cells(tape, site, len(batch)) for site in sites)
    size = max(1, MAX_BLOCK_CELLS // max(1, cells))
    for first in range(0, len(batch), size):
        rows = range(first, min(first + size, len(batch)))
        block = _select_rows(tape, rows) if len(rows) < len(batch) else tape
        # Maps of a long row are computed a site at a time.
        sites_maps = None
        if cells <= MAX_BLOCK_CELLS:
            sites_maps = [SiteMaps.of(block, site) for site in sites]
        for row in rows:
            each = iter(sites_maps or (SiteMaps.of(block, site) for site in sites))
            yield row, _groups(each, row - first, batch.tokens[row], _cut_rows(batch.valid, rows))


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


def _select_rows(tape: Tape, rows: range) -> Tape:
    """The tape of some rows of the batch."""
    part = slice(rows.start, rows.stop)
    calls: dict[str, list[RecordedCall]] = {}
    for site, calls_of_site in tape.calls.items():
        calls[site] = [recorded.select_rows(part) for recorded in calls_of_site]
    return replace(tape, calls=calls, activations=None)


def _cut_rows(valid: Mapping[str, Tensor], rows: range) -> dict[str, Tensor]:
    return {side: valid_BL[rows.start : rows.stop] for side, valid_BL in valid.items()}


def _groups(
    sites: Iterator[SiteMaps],
    row: int,
    tokens: Mapping[str, list[str]],
    valid: Mapping[str, Tensor],
) -> Iterator[list[HeadMaps]]:
    """The maps of one row: consecutive sites with equal masks and positions in one map, cut to `MAX_CELLS`."""
    first, group = 0, []
    for site in sites:
        item = HeadMaps(first, site.site.queries, site.site.keys, site.cut(row, tokens, valid))
        first = item.rows.stop
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
