"""A map, with what a measure needs to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch

from jarilab.attention.geometry import Geometry
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.recorded_call import RecordedCall
from jarilab.inspect.record.sites import AttentionSite
from jarilab.positions.coordinates import Positions, unrelated


@runtime_checkable
class Recording(Protocol):
    """The part of a `Tape` that maps are made from."""

    @property
    def calls(self) -> Mapping[str, Sequence[RecordedCall]]: ...

    @property
    def sites(self) -> list[str]: ...

    def site(self, name: str) -> AttentionSite: ...

    def weights(self, site: str) -> Float[Tensor, "B H Q K"]: ...

    def scores(self, site: str) -> Float[Tensor, "B H Q K"]: ...


@dataclass(frozen=True, eq=False)
class Map:
    """What the measures need to know of one site for one input.

    weights: after the softmax. scores: before mask and softmax. allowed: who may look at whom, without any True
    for a query that may look at nobody. queries, keys: the names of the tokens. q_at, k_at: their coordinates. q_order,
    k_order: the order in which they follow each other. same: queries and keys are of one sequence. apart: pairs of
    which one has no place, or None where all have one. All on the CPU.
    Raises UserError where the names are not as many as the rows and columns.
    """

    weights: Float[Tensor, "H Q K"]
    scores: Float[Tensor, "H Q K"]
    allowed: Bool[Tensor, "Q K"]
    queries: Sequence[str]
    keys: Sequence[str]
    q_at: Float[Tensor, "Q A"]
    k_at: Float[Tensor, "K A"]
    q_order: Int[Tensor, " Q"]
    k_order: Int[Tensor, " K"]
    same: bool
    apart: Bool[Tensor, "Q K"] | None = None

    def __post_init__(self) -> None:
        _check_names("queries", self.queries, len(self.q_order))
        _check_names("keys", self.keys, len(self.k_order))

    @staticmethod
    def of(tape: Recording, site: str, queries: Sequence[str], keys: Sequence[str]) -> Map:
        """The map at `site` of a forward of one input, in float64.

        Raises UserError as `Tape.weights` does, for a batch of several, and for names that do not fit.
        """
        weights_BHQK, scores_BHQK = tape.weights(site), tape.scores(site)
        if len(weights_BHQK) != 1:
            raise UserError(
                f"a map is of one input, got a batch of {len(weights_BHQK)}; record one input at a time"
            )
        places = [recorded.call.geometry for recorded in tape.calls[site]]
        k_pos = places[0].k_pos
        return Map(
            weights=weights_BHQK[0].double().cpu(),
            scores=scores_BHQK[0].double().cpu(),
            allowed=allowed_of(tape, site),
            queries=queries,
            keys=keys,
            q_at=torch.cat([_coordinates(geometry.q_pos) for geometry in places]),
            k_at=_coordinates(k_pos),
            q_order=torch.cat([geometry.q_pos.order for geometry in places]).cpu(),
            k_order=k_pos.order.cpu(),
            same=tape.site(site).kind != "cross",
            apart=_apart(places[0]) if len(places) == 1 else None,
        )

    @cached_property
    def count(self) -> Int[Tensor, " Q"]:
        """How many keys each query may look at."""
        return self.allowed.sum(-1)

    @cached_property
    def ahead(self) -> Int[Tensor, "Q K"]:
        """How far each key lies ahead of each query in the order of tokens; -1 is the key just before."""
        return self.k_order - self.q_order.unsqueeze(-1)

    @cached_property
    def offset(self) -> Int[Tensor, "Q K"]:
        """A number for each way that keys lie from queries: how far ahead in the order of tokens, or, in an image, how
        many rows down and columns to the right; one for all pairs of which one has no place."""
        if self.q_at.shape[-1] == 1:
            return self.ahead
        ways = self.k_at - self.q_at.unsqueeze(1)
        if self.apart is not None:
            ways = ways.masked_fill(self.apart.unsqueeze(-1), float("inf"))
        _, index = ways.flatten(0, 1).unique(dim=0, return_inverse=True)
        return index.view(self.ahead.shape)

    @cached_property
    def even(self) -> Map:
        """One head that looks at all allowed keys alike."""
        count_Q1 = self.count.clamp_min(1).unsqueeze(-1)
        even_QK = self.allowed.to(self.weights.dtype) / count_Q1
        weights = even_QK.unsqueeze(0)
        return replace(self, weights=weights, scores=torch.zeros_like(weights))


def _check_names(side: str, names: Sequence[str], count: int) -> None:
    if len(names) != count:
        raise UserError(
            f"expected a name for each of the {count} {side}, got {len(names)}; "
            "name every token that the model read, first and last ones included"
        )


def names_of_sides(
    tape: Recording, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None
) -> dict[str, list[str]]:
    """What the places of each sequence are called. tokens: by sequence, or of all where they are the same, or by the
    name of a site that has tokens of its own; without, their numbers. A site that has more or fewer places than its
    sequence, as where a model pools, looks at a sequence of its own, `source (3 places)`, which is numbered."""
    of_sites = tokens if isinstance(tokens, Mapping) else {}
    names: dict[str, list[str]] = {}
    lengths: dict[str, list[int]] = {}
    for name in tape.sites:
        if name in of_sites:
            names[name] = list(of_sites[name])
            continue
        for side, length in _sides(tape, name):
            lengths.setdefault(side, []).append(length)
    for side, found in lengths.items():
        given = tokens.get(side) if isinstance(tokens, Mapping) else tokens
        names[side] = _numbers(found[0]) if given is None else list(given)
        # Names that fit nowhere are of another input, which whoever makes a map is told.
        others = [length for length in found if length != len(names[side])]
        if len(others) < len(found):
            names |= {_pooled(side, length): _numbers(length) for length in others}
    return names


def fitting(tape: Recording, name: str, names: Mapping[str, Sequence[str]]) -> AttentionSite:
    """A site, and as its queries and keys those of `names_of_sides` that are its own."""
    site = tape.site(name)
    if name in names:
        return replace(site, queries=name, keys=name)
    queries, keys = (
        _pooled(side, length) if _pooled(side, length) in names else side
        for side, length in _sides(tape, name)
    )
    return replace(site, queries=queries, keys=keys)


def _sides(tape: Recording, name: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """Whose places queries and keys are, and how many."""
    site, calls = tape.site(name), [recorded.call for recorded in tape.calls[name]]
    queries = sum(call.q.shape[2] for call in calls)
    return (site.queries, queries), (site.keys, calls[0].k.shape[2])


def _pooled(side: str, length: int) -> str:
    return f"{side} ({length} places)"


def _numbers(count: int) -> list[str]:
    return [str(place) for place in range(count)]


def allowed_of(tape: Recording, site: str) -> Bool[Tensor, "Q K"]:
    """Who may look at whom at a site of a forward of one input, as a `Map` has it."""
    allowed = [allowed_links(recorded.call)[0, 0] for recorded in tape.calls[site]]
    return torch.cat(allowed).cpu()


def _coordinates(positions: Positions) -> Float[Tensor, "L A"]:
    """Those of the first row of a batch."""
    coordinates = positions.coordinates
    of_row = coordinates if coordinates.ndim == 2 else coordinates[0]
    return of_row.double().cpu()


def _apart(geometry: Geometry) -> Tensor | None:
    """Pairs of one forward of which query or key has no place."""
    apart = unrelated(geometry.q_pos, geometry.k_pos)
    if apart is None:
        return None
    return apart.reshape(-1, *apart.shape[-2:])[0].cpu()


@dataclass(frozen=True, eq=False)
class Scored:
    """A measure of each head, and what chance would give it. NaN where the map does not determine it."""

    value: Float[Tensor, " H"]
    chance: Float[Tensor, " H"]
