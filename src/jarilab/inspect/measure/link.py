"""The heads that connect two tokens, such as the *it* and the *animal* of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.record.capture import Tape


@dataclass(frozen=True)
class TokenLinkHead:
    """A head, and its weight on the link from one query to one key.

    usual: its mean weight on links of the same offset, or on the same key from other queries, whichever is larger.
    row, column: of the link in the map.
    """

    # A head that always attends two tokens back, or always to this key, has `weight` near `usual`.

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
) -> list[TokenLinkHead]:
    """The heads sorted by how far their weight on the link is above their usual weight, largest first.

    tape: of one input. queries, keys: the names of the tokens; sites with other numbers of tokens are left out. If a
    token occurs several times, the last query is taken, and the last key before it, or else the last key.
    Raises UserError for an unknown token, and if no attention may attend from query to key.
    """
    row, column = _link_indices(queries, keys, query, key)
    heads = []
    for site, calls in tape.calls.items():
        call = calls[0].call
        if len(calls) > 1 or (call.q.shape[2], call.k.shape[2]) != (len(queries), len(keys)):
            continue
        map = Map.of(tape, site, queries, keys)
        if bool(map.allowed[row, column]):
            heads += _heads_of_site(site, map, row, column)
    if not heads:
        raise UserError(
            f"no attention of this model may look from {query!r} ({row}) to {key!r} ({column}): a causal model attends "
            "to earlier tokens only; swap the two tokens"
        )
    return sorted(heads, key=lambda head: -head.above)


def _link_indices(
    queries: Sequence[str], keys: Sequence[str], query: str, key: str
) -> tuple[int, int]:
    rows = [index for index, name in enumerate(queries) if name == query]
    columns = [index for index, name in enumerate(keys) if name == key]
    for name, indices, tokens in ((query, rows, queries), (key, columns, keys)):
        if not indices:
            raise unknown("token", name, list(dict.fromkeys(tokens)))
    earlier = [index for index in columns if index < rows[-1]]
    return rows[-1], (earlier or columns)[-1]


def _heads_of_site(site: str, map: Map, row: int, column: int) -> list[TokenLinkHead]:
    other_rows_Q = torch.ones(len(map.queries), dtype=torch.bool)
    other_rows_Q[row] = False
    other_links_QK = map.allowed & other_rows_Q.unsqueeze(-1)
    same_offset_QK = other_links_QK & (map.offset == map.offset[row, column])
    same_key_QK = other_links_QK.clone()
    same_key_QK[:, :column] = same_key_QK[:, column + 1 :] = False
    usual_H = torch.maximum(_mean_weight(map, same_offset_QK), _mean_weight(map, same_key_QK))
    weight_H = map.weights[:, row, column]
    pairs = zip(weight_H.tolist(), usual_H.tolist(), strict=True)
    return [
        TokenLinkHead(site, head, weight, usual, row, column)
        for head, (weight, usual) in enumerate(pairs)
    ]


def _mean_weight(map: Map, links_QK: Bool[Tensor, "Q K"]) -> Float[Tensor, " H"]:
    """The mean weight of each head on these links; 0 if there are none."""
    weights_HN = map.weights[:, links_QK]
    return weights_HN.sum(-1) / max(1, weights_HN.shape[1])
