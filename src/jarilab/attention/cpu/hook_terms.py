"""Score terms computed by an encoding's hooks for the queries of one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from jarilab.attention.cpu.score_terms import (
    Block,
    BlockScores,
    BlockTerm,
    HeadGroup,
    ScoreTerm,
    ScratchBuffers,
    add_gradients,
    trainable_parameters,
)
from jarilab.attention.definition import AttentionCall
from jarilab.core.shapes import Float


class HookTerm(ScoreTerm):
    """What the given hooks of the call's encoding add."""

    uses_hooks = True

    def __init__(self, call: AttentionCall, hooks: frozenset[str]):
        self.call, self.hooks = call, hooks
        self.encoding = call.geometry.encoding
        self.needs_all_weights = "values" in hooks
        # Hooks that read the content or the number of other keys need all keys.
        self.only_block_keys = (
            not self.encoding.extra_arguments("terms") and not self.encoding.depends_on_length
        )
        self.parameters = trainable_parameters(self.encoding)
        self.leaves = [*self.parameters, *call.states]

    def begin_backward(self) -> None:
        self.d_leaves: list[Tensor | None] = [None] * len(self.leaves)

    def block_term(
        self, block: Block, q: Tensor, k: Tensor, buffers: ScratchBuffers, *, needs_grad: bool
    ) -> BlockTerm:
        keys = block.keys if self.only_block_keys else slice(0, k.shape[2])
        block_keys = slice(block.keys.start - keys.start, block.keys.stop - keys.start)
        with torch.set_grad_enabled(needs_grad):
            block_q = q[:, :, block.rows].detach().requires_grad_(needs_grad)
            block_k = k[:, :, keys].detach().requires_grad_(needs_grad)
            call = self._block_call(block.rows, keys, block_q, block_k)
            scores_BHQK = self._scores(call)
            if scores_BHQK is not None:
                scores_BHQK = scores_BHQK[..., block_keys]
        return HookBlock(self, call, scores_BHQK, block.rows, keys, block_keys)

    def _block_call(
        self, rows: slice, keys: slice, block_q: Tensor, block_k: Tensor
    ) -> AttentionCall:
        """The call restricted to some queries and keys, with leaves of its own."""
        full = self.call.geometry
        q_pos, k_pos = full.q_pos.slice(rows.start, rows.stop), full.k_pos
        if keys.stop - keys.start != k_pos.length:
            k_pos = k_pos.slice(keys.start, keys.stop)
        relation = None
        if self.hooks & {"terms", "values"}:
            relation = self.encoding.relation(q_pos, k_pos)
        geometry = replace(full, q_pos=q_pos, k_pos=k_pos, relation=relation, blockwise=None)
        if full.mask is not None and "allowed" in self.encoding.extra_arguments("terms"):
            allowed = full.mask.part(full.q_pos, full.k_pos, rows, keys)
            if allowed is not None:  # a query without any key sees all, as in other kernels
                allowed = allowed | ~allowed.any(-1, keepdim=True)
            geometry = replace(geometry, allowed=allowed)
        # Detached: gradients of the states are collected here and passed on by autograd outside.
        states = tuple(
            state.detach().requires_grad_(block_q.requires_grad) for state in self.call.states
        )
        v_BHKW = self.call.v[:, :, keys]
        return replace(self.call, q=block_q, k=block_k, v=v_BHKW, geometry=geometry, states=states)

    def _scores(self, call: AttentionCall) -> Float[Tensor, "#B H Q K"] | None:
        terms = bias = None
        if "terms" in self.hooks:
            terms = call.terms(lambda: call.q @ call.k.transpose(2, 3))
        if "bias" in self.hooks:
            bias = self.encoding.bias(call.geometry.q_pos, call.geometry.k_pos)
        if terms is not None:
            terms = call.scale * terms
        total = bias if terms is None else terms if bias is None else terms + bias
        if total is None:
            return None
        scores_BHQK = total.unsqueeze(0) if total.ndim == 3 else total
        return scores_BHQK.to(call.q.dtype)

    def gradients(self, d_v: Tensor) -> list[Tensor | None]:
        return self.d_leaves

    def accumulate(self, d_leaves: Sequence[Tensor | None]) -> None:
        """Add gradients of the leaves."""
        self.d_leaves = add_gradients(self.d_leaves, d_leaves)


@dataclass
class HookBlock(BlockTerm):
    """A `HookTerm` within one block.

    call: what the hooks were called with. scores: what they returned for the scores. rows, keys: the queries and keys
    of the call. block_keys: the keys of the block, counted from the first of `keys`.
    """

    term: HookTerm
    call: AttentionCall
    scores: Float[Tensor, "#B H Q K"] | None
    rows: slice
    keys: slice
    block_keys: slice
    d_scores: Tensor | None = None

    @property
    def leaves(self) -> list[Tensor]:
        """Leaves of the block, in the order of `HookTerm.leaves`."""
        return [*self.term.parameters, *self.call.states]

    def initial_scores(self, group: HeadGroup) -> Tensor | None:
        if self.scores is None:
            return None
        scores_BHQK = group.select(self.scores.detach())
        return scores_BHQK.expand(*group.shape, -1, -1).flatten(0, 1)

    def scores_backward(
        self, block: BlockScores, d_scores: Tensor, d_q: Tensor, d_k: Tensor
    ) -> None:
        if self.scores is None or not self.scores.requires_grad:
            return
        if self.d_scores is None:
            self.d_scores = torch.zeros_like(self.scores)
        d_group = block.group.split(d_scores)
        total = block.group.select(self.d_scores)
        # The hooks may return one row of scores for the whole batch.
        total += d_group.sum(0, keepdim=True) if len(total) < len(d_group) else d_group

    def output(self, group: HeadGroup, weights: Tensor) -> Tensor | None:
        if not self.term.needs_all_weights:
            return None
        # The hooks may have been called with keys outside the block, whose weights are 0.
        padding = self.block_keys.start, self.call.k.shape[2] - self.block_keys.stop
        padded = nn.functional.pad(weights, padding) if any(padding) else weights
        output = self.term.encoding.values(group.split(padded), self.call.geometry.relation)
        return None if output is None else output.flatten(0, 1)

    def output_backward(
        self, group: HeadGroup, weights: Tensor, d_output: Tensor, d_weights: Tensor
    ) -> None:
        if not self.term.needs_all_weights:
            return
        with torch.enable_grad():
            weights_leaf = weights.detach().requires_grad_()
            output = self.output(group, weights_leaf)
        assert output is not None
        inputs = [weights_leaf, *self.leaves]
        d_leaf, *d_leaves = torch.autograd.grad(output, inputs, d_output, allow_unused=True)
        self.term.accumulate(d_leaves)
        d_weights += d_leaf

    def finish_backward(self, d_q: Tensor, d_k: Tensor) -> None:
        if self.scores is None or self.d_scores is None:
            return
        inputs = [self.call.q, self.call.k, *self.leaves]
        d_block_q, d_block_k, *d_leaves = torch.autograd.grad(
            self.scores, inputs, self.d_scores, allow_unused=True
        )
        if d_block_q is not None:
            d_q[:, :, self.rows] += d_block_q
        if d_block_k is not None:
            d_k[:, :, self.keys] += d_block_k
        self.term.accumulate(d_leaves)
