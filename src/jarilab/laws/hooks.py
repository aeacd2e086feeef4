"""Calls the hooks of an encoding one by one, without a model around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.laws.fixtures import BATCH, LENGTH, noise
from jarilab.positions.coordinates import Positions

TOKEN_HOOKS = ("embed", "inject", "rotate", "rotate of keys")
"""Hooks with a result for each token, `(B, _, L, _)`."""
PAIR_HOOKS = ("bias", "terms", "values")
"""Hooks with a result for each query, on axis 2, and key, on axis 3."""
READS_OTHER_KEYS = {"product", "allowed", "state"}
"""With one of these arguments, the result of a pair may depend on other keys."""


@dataclass(frozen=True, eq=False)
class HookInputs:
    """Vectors at positions, for the hooks.

    x: what embed and inject add to, and what keys are made of, `(B, K, D)`. q: `(B, H, Q, E)`. k: `(B, H, K, E)`.
    weights: of each key for each query, `(B, H, Q, K)`; None asks for `values` of each key alone.
    """

    q_pos: Positions
    k_pos: Positions
    x: Tensor
    q: Tensor
    k: Tensor
    weights: Tensor | None = None

    @staticmethod
    def random(site: Site, q_pos: Positions, k_pos: Positions | None = None) -> HookInputs:
        """Random vectors; those of the first LENGTH tokens are equal for all lengths."""
        k_pos = q_pos if k_pos is None else k_pos
        heads, width = site.n_heads, site.d_head
        return HookInputs(
            q_pos,
            k_pos,
            _cut(noise("x", BATCH, LENGTH, site.d_model), k_pos.length),
            _cut(noise("q", BATCH, heads, LENGTH, width), q_pos.length),
            _cut(noise("k", BATCH, heads, LENGTH, width), k_pos.length),
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The vectors by name."""
        tensors = {"x": self.x, "q": self.q, "k": self.k}
        return tensors if self.weights is None else {**tensors, "weights": self.weights}

    def with_weights(self) -> HookInputs:
        """The same with random weights that sum to 1."""
        shape = (*self.q.shape[:3], self.k.shape[2])
        return replace(self, weights=noise("weights", *shape).softmax(-1))

    def to(self, dtype: torch.dtype, of_heads: torch.dtype | None = None) -> HookInputs:
        """The same in another precision. of_heads: the precision of all but x."""
        of_heads = of_heads or dtype
        return replace(
            self,
            x=self.x.to(dtype),
            q=self.q.to(of_heads),
            k=self.k.to(of_heads),
            weights=None if self.weights is None else self.weights.to(of_heads),
        )

    def select(self, queries: Tensor, keys: Tensor) -> HookInputs:
        """The same for some of the tokens."""
        assert self.weights is None
        return HookInputs(
            self.q_pos.select(queries),
            self.k_pos.select(keys),
            self.x[:, keys],
            self.q[:, :, queries],
            self.k[:, :, keys],
        )


@dataclass(frozen=True, eq=False)
class Prepared:
    """Rotations and relation, which a forward computes from positions alone, before its layers."""

    q_rotation: Any
    k_rotation: Any
    relation: Any


def prepare(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> Prepared:
    """Compute the rotation and the relation as `geometry_of` does."""
    hooks = encoding.hooks
    turns, relates = "rotate" in hooks, bool(hooks & {"terms", "values"})
    return Prepared(
        encoding.rotation_for(q_pos, "query", k_pos) if turns else None,
        encoding.rotation_for(k_pos, "key", k_pos) if turns else None,
        encoding.relation(q_pos, k_pos) if relates else None,
    )


def call_hooks(
    encoding: Encoding, inputs: HookInputs, prepared: Prepared | None = None
) -> dict[str, Tensor]:
    """The results of all hooks that the encoding uses. prepared: computed before; now by default."""
    hooks = encoding.hooks
    computed = prepared or prepare(encoding, inputs.q_pos, inputs.k_pos)
    results: dict[str, Tensor | None] = {
        "embed": encoding.embed(inputs.x, inputs.k_pos).unsqueeze(1),
        "inject": encoding.inject(inputs.x, inputs.k_pos).unsqueeze(1),
    }
    if "rotate" in hooks:
        results["rotate"] = encoding.rotate(inputs.q, computed.q_rotation)
        results["rotate of keys"] = encoding.rotate(inputs.k, computed.k_rotation)
    bias = encoding.bias(inputs.q_pos, inputs.k_pos)
    if bias is not None:
        results["bias"] = bias.expand(*inputs.q.shape[:3], inputs.k.shape[2])
    if "terms" in hooks:
        results["terms"] = _terms(encoding, inputs, computed.relation)
    if "values" in hooks:
        results["values"] = _values(encoding, inputs, computed.relation)
    return {hook: answer for hook, answer in results.items() if answer is not None}


def hook_outputs(encoding: Encoding, pos: Positions) -> dict[str, Tensor]:
    """The results of all hooks for the first LENGTH tokens, among themselves."""
    results = {}
    for hook, answer in call_hooks(encoding, HookInputs.random(encoding.site, pos)).items():
        answer = answer[:, :, :LENGTH].detach()
        results[hook] = answer[:, :, :, :LENGTH] if hook in PAIR_HOOKS else answer
    return results


def _cut(x: Tensor, length: int) -> Tensor:
    """The first tokens on the last axis but one, with zeros beyond the end."""
    missing = max(0, length - x.shape[-2])
    return functional.pad(x, (0, 0, 0, missing))[..., :length, :]


def _terms(encoding: Encoding, inputs: HookInputs, relation: Any) -> Tensor | None:
    """The terms added to q.k. In an encoder all keys are visible, in a decoder no later ones."""
    q_order, k_order = inputs.q_pos.order, inputs.k_pos.order
    visible_QK = k_order <= q_order.unsqueeze(-1)
    extra = {
        "product": inputs.q @ inputs.k.transpose(-1, -2),
        "allowed": visible_QK[None, None] if encoding.site.causal else None,
        "scale": encoding.site.d_head**-0.5,
        "state": encoding.key_states(inputs.x),
    }
    terms = encoding.terms_for(inputs.q, inputs.k, relation, extra)
    if terms is None or not encoding.site.causal:
        return terms
    # A term at a hidden key has no effect.
    return terms.masked_fill(~visible_QK, 0.0)


def _values(encoding: Encoding, inputs: HookInputs, relation: Any) -> Tensor | None:
    """What is added to the values. Without weights, each key in turn gets all the weight."""
    if inputs.weights is not None:
        return encoding.values(inputs.weights, relation)
    results = [encoding.values(weights, relation) for weights in _one_hot(inputs)]
    known = [each for each in results if each is not None]
    return torch.stack(known, 3) if known else None


def _one_hot(inputs: HookInputs) -> Iterator[Tensor]:
    keys = inputs.k.shape[2]
    for weights_K in torch.eye(keys, dtype=inputs.q.dtype)[:LENGTH]:
        yield weights_K.expand(*inputs.q.shape[:3], -1)
