"""Which heads connect two tokens: the picture of *it* that looks at *animal*, found by a number and not by eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.record.capture import Tape


@dataclass(frozen=True)
class HeadOfLink:
    """A head, and the weight that it gives to one key of one query.

    usual: what it gives to keys that lie as far from other queries, or what other queries give to this key, on average,
    whichever is more: a head that always looks two tokens back, or always at this token, has no more for this link than
    for any. row, column: of the link in the map.
    """

    site: str
    head: int
    weight: float
    usual: float
    row: int
    column: int

    @property
    def above(self) -> float:
        return self.weight - self.usual


def heads_of_link(
    tape: Tape, queries: Sequence[str], keys: Sequence[str], query: str, key: str
) -> list[HeadOfLink]:
    """The heads of a forward of one input, by how much more they give to this link than is usual for them.

    queries, keys: the tokens' names. Only sites with as many queries and keys are asked. Of a token that occurs several
    times, the last query and the last key before it, or else the last, are meant. Raises UserError for a token that is
    not there, and where no attention may look from one to the other.
    """
    row, column = _places(queries, keys, query, key)
    found = []
    for site in tape.sites:
        shown = _map(tape, site, queries, keys)
        if shown is not None and bool(shown.allowed[row, column]):
            found += _of_site(site, shown, row, column)
    if not found:
        raise UserError(
            f"no attention of this model may look from {query!r} ({row}) to {key!r} ({column}): a model that writes "
            "sees what came before alone; name them the other way round"
        )
    return sorted(found, key=lambda one: -one.above)


def _places(queries: Sequence[str], keys: Sequence[str], query: str, key: str) -> tuple[int, int]:
    rows = [place for place, name in enumerate(queries) if name == query]
    columns = [place for place, name in enumerate(keys) if name == key]
    for name, places, there in ((query, rows, queries), (key, columns, keys)):
        if not places:
            raise unknown("token", name, list(dict.fromkeys(there)))
    before = [place for place in columns if place < rows[-1]]
    return rows[-1], (before or columns)[-1]


def _map(tape: Tape, site: str, queries: Sequence[str], keys: Sequence[str]) -> Map | None:
    if len(tape.calls[site]) > 1:
        return None
    call = tape.recorded(site).call
    fits = (call.q.shape[2], call.k.shape[2]) == (len(queries), len(keys))
    return Map.of(tape, site, queries, keys) if fits else None


def _of_site(site: str, shown: Map, row: int, column: int) -> list[HeadOfLink]:
    others = torch.ones(len(shown.queries), dtype=torch.bool)
    others[row] = False
    of_others_QK = shown.allowed & others.unsqueeze(-1)
    as_far_QK = of_others_QK & (shown.offset == shown.offset[row, column])
    same_key_QK = of_others_QK.clone()
    same_key_QK[:, :column] = same_key_QK[:, column + 1 :] = False
    usual_H = torch.maximum(_mean(shown, as_far_QK), _mean(shown, same_key_QK))
    weight_H = shown.weights[:, row, column]
    pairs = zip(weight_H.tolist(), usual_H.tolist(), strict=True)
    return [
        HeadOfLink(site, head, weight, usual, row, column)
        for head, (weight, usual) in enumerate(pairs)
    ]


def _mean(shown: Map, pairs_QK: Bool[Tensor, "Q K"]) -> Float[Tensor, " H"]:
    """What each head gives to these pairs; 0 where there is none."""
    weights_HN = shown.weights[:, pairs_QK]
    return weights_HN.sum(-1) / max(1, weights_HN.shape[1])
