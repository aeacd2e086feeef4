"""An attention map with its positions and token names, and the names of the sequences of a tape."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.record.calls import allowed_links, check_has_sites
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import AttentionSite
from jarilab.positions.coordinates import Positions, undefined_pairs

MIN_VARIANCE = 1e-12  # relative to the mean square; a smaller variance is the round-off of float32


@dataclass(frozen=True, eq=False)
class Map:
    """The attention map of one site for one input, on the CPU.

    weights: after the softmax. scores: before mask and softmax. allowed: True where a query may attend to a key.
    queries, keys: the names of the tokens. q_at, k_at: their coordinates. q_order, k_order: their order.
    same: whether queries and keys are of one sequence. unplaced: True for pairs of which one has no position; None if
    all have one. even_weights: those of `even`; equal on all allowed keys if None.
    placed: whether it is known which of the keys the queries are.
    Raises UserError if the number of names does not match the rows and columns.
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
    unplaced: Bool[Tensor, "Q K"] | None = None
    even_weights: Float[Tensor, "1 Q K"] | None = None
    placed: bool = True

    def __post_init__(self) -> None:
        sides = (("queries", self.queries, self.q_order), ("keys", self.keys, self.k_order))
        for side, names, order in sides:
            if len(names) != len(order):
                raise UserError(
                    f"expected a name for each of the {len(order)} {side}, got {len(names)}; "
                    "name every token that the model reads, special ones included"
                )

    @staticmethod
    def of(tape: Tape, site: str, queries: Sequence[str], keys: Sequence[str]) -> Map:
        """The map at `site` for one input, in float64.

        Raises UserError as `Tape.weights` does, for a batch of several inputs, and for names that do not match.
        """
        maps = SiteMaps.of(tape, tape.site(site))
        if len(maps.weights) > 1:
            raise UserError(
                f"a map is of one input, got a batch of {len(maps.weights)}; take one of them by tape.row(0), or all "
                "by jarilab.study"
            )
        if not maps.weights.numel():
            raise UserError(
                f"expected queries and keys at {site}, got a map {tuple(maps.weights.shape)} without any; record an "
                "input that has tokens"
            )
        return maps.row(0, (slice(None), queries), (slice(None), keys))

    @cached_property
    def count(self) -> Int[Tensor, " Q"]:
        """The number of keys that each query may attend to."""
        return self.allowed.sum(-1)

    @cached_property
    def ahead(self) -> Int[Tensor, "Q K"]:
        """The order of each key minus that of each query; -1 is the key just before."""
        return self.k_order - self.q_order.unsqueeze(-1)

    @cached_property
    def offset(self) -> Int[Tensor, "Q K"]:
        """A label for each offset from query to key: `ahead`, or, in an image, one label a row and column offset.

        All pairs of which one has no position share a label.
        """
        if self.q_at.shape[-1] == 1:
            return self.ahead
        offset_QKA = self.k_at - self.q_at.unsqueeze(1)
        if self.unplaced is not None:
            offset_QKA = offset_QKA.masked_fill(self.unplaced.unsqueeze(-1), float("inf"))
        _, index = offset_QKA.flatten(0, 1).unique(dim=0, return_inverse=True)
        return index.view(self.ahead.shape)

    @cached_property
    def entropy(self) -> Float[Tensor, "H Q"]:
        """The entropy of each row of weights, in nats."""
        return torch.special.entr(self.weights).sum(-1)

    @cached_property
    def row_of_pair(self) -> Int[Tensor, " C"]:
        """The query of each allowed pair of query and key."""
        return self.allowed.nonzero()[:, 0]

    @cached_property
    def centred_scores(self) -> Float[Tensor, "H C"]:
        """The scores of the allowed pairs minus the mean of their query, in float64; a constant head has zeros.

        A softmax does not depend on this mean.
        """
        row_C = self.row_of_pair
        scores_HC = self.scores[:, self.allowed].double()
        sums_HQ = scores_HC.new_zeros(self.scores.shape[:2]).index_add_(1, row_C, scores_HC)
        means_HQ = sums_HQ / self.count.clamp_min(1)
        least_H = MIN_VARIANCE * scores_HC.square().sum(-1)
        centred_HC = scores_HC.sub_(means_HQ[:, row_C])
        is_constant_H = centred_HC.square().sum(-1) <= least_H
        return centred_HC.masked_fill_(is_constant_H.unsqueeze(-1), 0.0)

    @cached_property
    def even(self) -> Map:
        """One head with equal weights on all allowed keys."""
        weights = self.even_weights
        if weights is None:
            count_Q1 = self.count.clamp_min(1).unsqueeze(-1)
            even_QK = self.allowed.to(self.weights.dtype) / count_Q1
            weights = even_QK.unsqueeze(0)
        return replace(self, weights=weights, scores=torch.zeros_like(weights))

    @cached_property
    def by_mask(self) -> list[tuple[Int[Tensor, " G"], Map]]:
        """The heads that may attend to the same keys, with their map; a score of -inf hides a key from one head."""
        hidden_HQK = self.scores.isneginf() & self.allowed
        # A word without weight has this score too.
        if self.even_weights is not None or not bool(hidden_HQK.any()):
            return [(torch.arange(len(self.weights)), self)]
        masks_GQK, number_H = hidden_HQK.unique(dim=0, return_inverse=True)
        parts = []
        for number, hidden_QK in enumerate(masks_GQK):
            heads = (number_H == number).nonzero()[:, 0]
            weights, scores, allowed = (
                self.weights[heads],
                self.scores[heads],
                self.allowed & ~hidden_QK,
            )
            parts.append((heads, replace(self, weights=weights, scores=scores, allowed=allowed)))
        return parts

    def rows(self, index_R: Int[Tensor, " R"]) -> Map:
        """The map of some of the queries."""
        return replace(
            self,
            weights=self.weights[:, index_R],
            scores=self.scores[:, index_R],
            allowed=self.allowed[index_R],
            queries=[self.queries[row] for row in index_R.tolist()],
            q_at=self.q_at[index_R],
            q_order=self.q_order[index_R],
            unplaced=None if self.unplaced is None else self.unplaced[index_R],
            even_weights=None if self.even_weights is None else self.even_weights[:, index_R],
        )


Places = tuple[slice | Tensor, Sequence[str]]
"""The indices of some tokens, and their names."""


@dataclass(frozen=True, eq=False)
class SiteMaps:
    """The maps of one site for the rows of a batch, with padding."""

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

    def row(self, row: int, queries: Places, keys: Places) -> Map:
        """The map of one row between these tokens, in float64 on the CPU."""
        (at_Q, names_Q), (at_K, names_K) = queries, keys
        unplaced = undefined_pairs(self.q_pos, self.k_pos)
        if unplaced is not None:
            unplaced = _row(unplaced.reshape(-1, *unplaced.shape[-2:]), row)[at_Q][:, at_K].cpu()
        return Map(
            weights=self.weights[row][:, at_Q][:, :, at_K].double().cpu(),
            scores=self.scores[row][:, at_Q][:, :, at_K].double().cpu(),
            allowed=_row(self.allowed[:, 0], row)[at_Q][:, at_K].cpu(),
            queries=names_Q,
            keys=names_K,
            q_at=_row(self.q_pos.coordinates, row)[at_Q].double().cpu(),
            k_at=_row(self.k_pos.coordinates, row)[at_K].double().cpu(),
            q_order=self.q_pos.order[at_Q].cpu(),
            k_order=self.k_pos.order[at_K].cpu(),
            same=self.site.relation == "self",
            placed=self.site.placed,
            unplaced=unplaced,
        )


def _row(tensor: Tensor, row: int) -> Tensor:
    """The row of a tensor that may be shared by all rows."""
    if tensor.ndim == 2:
        return tensor
    return tensor[row if len(tensor) > 1 else 0]


def names_of_sides(
    tape: Tape, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None
) -> dict[str, list[str]]:
    """The names of the tokens of each sequence, `source` and `target`.

    tokens: names by sequence; or one list for all sequences; or by site, for a site with tokens of its own. Tokens
    without names are numbered. A site with another number of tokens than its sequence, as after pooling, gets a
    sequence of its own, `source (3 places)`, which is numbered.
    """
    check_has_sites(tape.sites)
    names_by_site = tokens if isinstance(tokens, Mapping) else {}
    names: dict[str, list[str]] = {}
    lengths_by_side: dict[str, list[int]] = {}
    for name in tape.sites:
        if name in names_by_site:
            names[name] = list(names_by_site[name])
            continue
        for side, length in _sides(tape, name):
            lengths_by_side.setdefault(side, []).append(length)
    for side, lengths in lengths_by_side.items():
        side_tokens = tokens.get(side) if isinstance(tokens, Mapping) else tokens
        names[side] = _numbers(lengths[0]) if side_tokens is None else list(side_tokens)
        # Names that match no site are kept: `Map` then raises.
        others = [length for length in lengths if length != len(names[side])]
        if len(others) < len(lengths):
            names |= {_pooled(side, length): _numbers(length) for length in others}
    return names


def named_site(tape: Tape, name: str, names: Mapping[str, Sequence[str]]) -> AttentionSite:
    """A site with its sequences replaced by those of `names_of_sides` that match its tokens."""
    site = tape.site(name)
    if name in names:
        return replace(site, queries=name, keys=name)
    queries, keys = (
        _pooled(side, length) if _pooled(side, length) in names else side
        for side, length in _sides(tape, name)
    )
    return replace(site, queries=queries, keys=keys)


def _sides(tape: Tape, name: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """The sequence and the number of queries, and those of keys."""
    site, calls = tape.site(name), [recorded.call for recorded in tape.calls[name]]
    queries = sum(call.q.shape[2] for call in calls)
    return (site.queries, queries), (site.keys, calls[0].k.shape[2])


def _pooled(side: str, length: int) -> str:
    return f"{side} ({length} places)"


def is_numbered(side: str) -> bool:
    """Whether the tokens of a sequence of `names_of_sides` are numbered for their length."""
    return side.endswith(" places)")


def _numbers(count: int) -> list[str]:
    return [str(index) for index in range(count)]


def allowed_of(tape: Tape, site: str) -> Bool[Tensor, "Q K"]:
    """The allowed links at a site, for one input."""
    allowed = [allowed_links(recorded.call)[0, 0] for recorded in tape.calls[site]]
    return torch.cat(allowed).cpu()


@dataclass(frozen=True, eq=False)
class Scored:
    """A measure of each head, and its value by chance; NaN where the map does not determine it.

    partial: what of the site the number leaves out: other maps, or some of the queries; empty if nothing.
    """

    value: Float[Tensor, " H"]
    chance: Float[Tensor, " H"]
    partial: str = ""


def undefined(map: Map) -> Float[Tensor, " H"]:
    """NaN for every head."""
    return map.weights.new_full((len(map.weights),), float("nan"))


# Equal tokens -------------------------------------------------------------------------------------------------------


def equal_tokens(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """All pairs of indices with the same token."""
    pairs = itertools.combinations(range(len(tokens)), 2)
    return [(i, j) for i, j in pairs if tokens[i] == tokens[j]]


def same_tokens(map: Map) -> Tensor:
    """True where a key has the query's token."""
    names = {*map.queries, *map.keys}
    numbers = {name: number for number, name in enumerate(names)}
    token_Q = torch.tensor([numbers[name] for name in map.queries])
    token_K = torch.tensor([numbers[name] for name in map.keys])
    return token_Q.unsqueeze(-1) == token_K


def row_difference(
    matrix: Float[Tensor, "*H R C"], first: Tensor | int, second: Tensor | int
) -> Tensor:
    """Elementwise absolute differences between rows, at the resolution of float32; 0 for two hidden scores."""
    # A matrix product rounds equal rows differently where they fall into different tiles. Computed in float64 and
    # compared in float32, rows that are equal in theory are exactly equal.
    rows = matrix.float()
    difference = rows[..., first, :] - rows[..., second, :]
    return difference.nan_to_num(0.0).abs()


def equal_row_difference(
    weights: Float[Tensor, "H Q K"], tokens: Sequence[str]
) -> list[float] | None:
    """The largest difference between the rows of equal tokens, for each head; None without equal tokens.

    Exactly 0 means that the head does not distinguish them.
    """
    pairs = equal_tokens(tokens)
    if not pairs:
        return None
    first_P, second_P = torch.tensor(pairs).unbind(1)
    difference_HPK = row_difference(weights, first_P, second_P)
    return difference_HPK.amax((1, 2)).tolist()


# Rollout ------------------------------------------------------------------------------------------------------------


def rollout(maps: Sequence[Map]) -> Float[Tensor, "Q K"]:
    """The share of each input token in each output token of an encoder (Abnar & Zuidema 2020).

    `R_l = A_l R_(l-1)`, where A_l is the mean over heads with the residual connection, `(A + I) / 2`, rows normalised.
    maps: of all layers, the first layer first. Raises UserError for cross-attention and causal attention.
    """
    if not maps:
        raise UserError("expected the maps of an encoder's layers, the first layer first, got none")
    identity_KK = torch.eye(len(maps[0].keys), dtype=maps[0].weights.dtype)
    rollout_QK = identity_KK
    for layer, map in enumerate(maps):
        if not map.same:
            raise UserError(
                f"rollout is for encoders only, layer {layer} is cross-attention; omit it"
            )
        attends_ahead = bool((map.allowed & (map.ahead > 0)).any())
        if len(map.keys) > 1 and not attends_ahead:
            # Under a causal mask the first tokens are in every row, so their share grows whatever the model learned.
            raise UserError(
                f"rollout is for encoders only, layer {layer} is causal; use the maps of an encoder"
            )
        layer_shape, shape = tuple(map.weights.shape[1:]), tuple(rollout_QK.shape)
        if layer_shape != shape:
            raise UserError(
                f"expected maps of one encoder, {shape} each, got {layer_shape} in layer {layer}; give all layers the "
                "same input"
            )
        mixed_QK = (map.weights.mean(0) + identity_KK) / 2
        rollout_QK = (mixed_QK / mixed_QK.sum(-1, keepdim=True)) @ rollout_QK
    return rollout_QK
