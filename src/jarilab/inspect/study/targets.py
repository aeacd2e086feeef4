"""The keys that each role of a head names, and a head's weight on them."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import torch

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.measure.maps import Map, same_tokens
from jarilab.inspect.measure.measures import after_earlier_copy, first_key
from jarilab.inspect.measure.words import MARKS, SPECIAL

MAX_OFFSET = 16
OFFSETS = list(range(-MAX_OFFSET, MAX_OFFSET + 1))
SETS = ["same token", "induction", "first token", "delimiter"]
"""Roles whose targets are a set of keys."""
MIN_KEYS = 2
"""A query with fewer keys has no choice."""


def offset_name(offset: int) -> str:
    """The role of a fixed offset, key minus query."""
    return {-1: "previous", 1: "next"}.get(offset, f"offset {offset:+d}" if offset else "offset 0")


ROLES = [*map(offset_name, OFFSETS), *SETS]
"""Roles with targets, in the order of all arrays."""
SUB_ROLES = {("first token", "delimiter"), ("delimiter", "first token")}
"""Roles that are no rivals: the targets of one may contain those of the other."""


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of all roles in one map.

    keys: True for targets. defined: queries that have a target and a choice. chance: the weight of even weights on the
    targets.
    """

    keys: Bool[Tensor, "R Q K"]
    defined: Bool[Tensor, "R Q"]
    chance: Float[Tensor, "R Q"]

    @staticmethod
    def of(map: Map, context: int = 1) -> Targets:
        """context: the number of tokens that an earlier copy must share with the query's for induction."""
        offsets_O11 = torch.tensor(OFFSETS).view(-1, 1, 1)
        # There are no fixed offsets in an image, or where positions are not known.
        is_on_a_line = map.placed and map.q_at.shape[-1] == 1
        offset_keys_OQK = (map.ahead == offsets_O11) & is_on_a_line
        keys_RQK = torch.cat([offset_keys_OQK, _set_keys(map, context)]) & map.allowed
        defined_RQ = keys_RQK.any(-1) & (map.count >= MIN_KEYS)
        return Targets(keys_RQK, defined_RQ, keys_RQK.sum(-1) / map.count.clamp_min(1).double())

    def masses(self, weights: Float[Tensor, "H Q K"]) -> Float[Tensor, "R H Q"]:
        """The weight of each head on the targets, 0 where none is defined."""
        by_query_QHK = weights.transpose(0, 1)
        mass_QHR = by_query_QHK @ self.keys.permute(1, 2, 0).to(weights.dtype)
        return mass_QHR.permute(2, 1, 0) * self.defined.unsqueeze(1)

    def disagree(self) -> Bool[Tensor, "R R Q"]:
        """Queries where both of two roles have targets, and none in common."""
        keys_QRK = self.keys.transpose(0, 1).float()
        shared_QRR = keys_QRK @ keys_QRK.transpose(1, 2) > 0
        both_RRQ = self.defined.unsqueeze(1) & self.defined.unsqueeze(0)
        return both_RRQ & ~shared_QRR.permute(1, 2, 0)


def _set_keys(map: Map, context: int) -> Bool[Tensor, "S Q K"]:
    none = torch.zeros_like(map.allowed)
    same, induction = none, none
    if map.same and map.placed:
        same = same_tokens(map) & (map.ahead != 0)
        induction = after_earlier_copy(map, context)
    delimiter_K = torch.tensor([is_delimiter(name) for name in map.keys], dtype=torch.bool)
    is_first, first = none.clone(), first_key(map)
    if map.placed and first is not None:
        is_first[:, first] = True
    return torch.stack([same, induction, is_first, none | delimiter_K])


def is_delimiter(name: str) -> bool:
    """Whether a token is special or punctuation, with or without the mark of a word's beginning."""
    if SPECIAL.fullmatch(name):
        return True
    text = MARKS.sub("", name).strip() or name
    return bool(text) and all(unicodedata.category(char)[0] == "P" for char in text)
