"""What the hooks of an encoding answer, asked one by one and without a model around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.laws.material import BATCH, LENGTH, noise
from jarilab.positions.coordinates import Positions

OF_TOKENS = ("embed", "inject", "rotate", "rotate of keys")
"""Answers about one token each, `(B, _, L, _)`."""
OF_PAIRS = ("bias", "terms", "values")
"""Answers about a query, on axis 2, and a key, on axis 3."""
READS_KEYS_BETWEEN = {"product", "allowed", "state"}
"""Who asks for one of these may hear of other keys than the pair's own."""


@dataclass(frozen=True, eq=False)
class Question:
    """Vectors at places, for the hooks to answer about.

    x: what embed and inject add to, and what keys are made of, `(B, K, D)`; q: `(B, H, Q, E)`; k: `(B, H, K, E)`.
    weights: of each key for each query, `(B, H, Q, K)`; None asks what `values` gives for each key alone.
    """

    q_pos: Positions
    k_pos: Positions
    x: Tensor
    q: Tensor
    k: Tensor
    weights: Tensor | None = None

    @staticmethod
    def about(site: Site, q_pos: Positions, k_pos: Positions | None = None) -> Question:
        """Vectors by chance, the first LENGTH tokens' the same for all lengths."""
        k_pos = q_pos if k_pos is None else k_pos
        heads, width = site.n_heads, site.d_head
        return Question(
            q_pos,
            k_pos,
            _cut(noise("x", BATCH, LENGTH, site.d_model), k_pos.length),
            _cut(noise("q", BATCH, heads, LENGTH, width), q_pos.length),
            _cut(noise("k", BATCH, heads, LENGTH, width), k_pos.length),
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The vectors by name."""
        named = {"x": self.x, "q": self.q, "k": self.k}
        return named if self.weights is None else {**named, "weights": self.weights}

    def weighted(self) -> Question:
        """The same with weights by chance, which sum to 1."""
        shape = (*self.q.shape[:3], self.k.shape[2])
        return replace(self, weights=noise("weights", *shape).softmax(-1))

    def to(self, dtype: torch.dtype, of_heads: torch.dtype | None = None) -> Question:
        """The same in another precision. of_heads: that of all but x."""
        of_heads = of_heads or dtype
        return replace(
            self,
            x=self.x.to(dtype),
            q=self.q.to(of_heads),
            k=self.k.to(of_heads),
            weights=None if self.weights is None else self.weights.to(of_heads),
        )

    def picked(self, queries: Tensor, keys: Tensor) -> Question:
        """The same about some of the tokens."""
        assert self.weights is None
        return Question(
            pick(self.q_pos, queries),
            pick(self.k_pos, keys),
            self.x[:, keys],
            self.q[:, :, queries],
            self.k[:, :, keys],
        )


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a forward works out of the positions alone, before the layers use it."""

    q_rotation: Any
    k_rotation: Any
    relation: Any


def pick(pos: Positions, index: Tensor) -> Positions:
    """Some of the tokens, in another order perhaps; each keeps its place and its number in the order."""
    unplaced = None if pos.unplaced is None else pos.unplaced[..., index]
    coordinates = pos.coordinates[..., index, :]
    return replace(pos, coordinates=coordinates, order=pos.order[index], unplaced=unplaced)


def prepare(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> Prepared:
    """As `geometry_of` does it."""
    hooks = encoding.hooks
    turns, relates = "rotate" in hooks, bool(hooks & {"terms", "values"})
    return Prepared(
        encoding.rotation_for(q_pos, "query", k_pos) if turns else None,
        encoding.rotation_for(k_pos, "key", k_pos) if turns else None,
        encoding.relation(q_pos, k_pos) if relates else None,
    )


def answers(
    encoding: Encoding, asked: Question, prepared: Prepared | None = None
) -> dict[str, Tensor]:
    """What every hook that it uses gives. prepared: worked out before; by default now."""
    hooks = encoding.hooks
    ready = prepared or prepare(encoding, asked.q_pos, asked.k_pos)
    found: dict[str, Tensor | None] = {
        "embed": encoding.embed(asked.x, asked.k_pos).unsqueeze(1),
        "inject": encoding.inject(asked.x, asked.k_pos).unsqueeze(1),
    }
    if "rotate" in hooks:
        found["rotate"] = encoding.rotate(asked.q, ready.q_rotation)
        found["rotate of keys"] = encoding.rotate(asked.k, ready.k_rotation)
    bias = encoding.bias(asked.q_pos, asked.k_pos)
    if bias is not None:
        found["bias"] = bias.expand(*asked.q.shape[:3], asked.k.shape[2])
    if "terms" in hooks:
        found["terms"] = _terms(encoding, asked, ready.relation)
    if "values" in hooks:
        found["values"] = _values(encoding, asked, ready.relation)
    return {hook: answer for hook, answer in found.items() if answer is not None}


def hook_outputs(encoding: Encoding, pos: Positions) -> dict[str, Tensor]:
    """What every hook gives for the first LENGTH tokens, between themselves."""
    found = {}
    for hook, answer in answers(encoding, Question.about(encoding.site, pos)).items():
        answer = answer[:, :, :LENGTH].detach()
        found[hook] = answer[:, :, :, :LENGTH] if hook in OF_PAIRS else answer
    return found


def _cut(x: Tensor, length: int) -> Tensor:
    """The first tokens, on the last axis but one, and zeros for more than there are."""
    room = max(0, length - x.shape[-2])
    return functional.pad(x, (0, 0, 0, room))[..., :length, :]


def _terms(encoding: Encoding, asked: Question, relation: Any) -> Tensor | None:
    """What is added to q.k: all keys in sight of an encoder, none later in that of a decoder."""
    q_order, k_order = asked.q_pos.order, asked.k_pos.order
    seen_QK = k_order <= q_order.unsqueeze(-1)
    around = {
        "product": asked.q @ asked.k.transpose(-1, -2),
        "allowed": seen_QK[None, None] if encoding.site.causal else None,
        "scale": encoding.site.d_head**-0.5,
        "state": encoding.key_states(asked.x),
    }
    terms = encoding.terms_for(asked.q, asked.k, relation, around)
    if terms is None or not encoding.site.causal:
        return terms
    # What is added where nobody may look means nothing.
    return terms.masked_fill(~seen_QK, 0.0)


def _values(encoding: Encoding, asked: Question, relation: Any) -> Tensor | None:
    """What is added to the values; with all weight on one key after the other where no weights are given, so that this
    too is about pairs."""
    if asked.weights is not None:
        return encoding.values(asked.weights, relation)
    alone = [encoding.values(weights, relation) for weights in _one_hot(asked)]
    given = [each for each in alone if each is not None]
    return torch.stack(given, 3) if given else None


def _one_hot(asked: Question) -> Iterator[Tensor]:
    keys = asked.k.shape[2]
    for weights_K in torch.eye(keys, dtype=asked.q.dtype)[:LENGTH]:
        yield weights_K.expand(*asked.q.shape[:3], -1)
