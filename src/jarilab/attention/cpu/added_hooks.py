"""What an encoding's hooks add to a block, asked for its queries alone, and the gradients through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from jarilab.attention.cpu.added import Added, Block, Group, Met, Opened, parameters_read, together
from jarilab.attention.definition import AttentionCall
from jarilab.attention.room import Room
from jarilab.core.shapes import Float


class ByHooks(Added):
    """What the encoding's hooks give for the queries of a block."""

    by_hooks = True

    def __init__(self, call: AttentionCall, hooks: frozenset[str]):
        """hooks: those that are asked."""
        self.call, self.hooks = call, hooks
        self.encoding = call.geometry.encoding
        self.whole = "values" in hooks
        # Of the content of other keys, or of how many there are: then they have to be there.
        self.cuts = (
            not self.encoding.extra_arguments("terms") and not self.encoding.depends_on_length
        )
        self.parameters = parameters_read(self.encoding)
        self.leaves = [*self.parameters, *call.states]

    def begin(self) -> None:
        self.d_leaves: list[Tensor | None] = [None] * len(self.leaves)

    def open(self, block: Block, q: Tensor, k: Tensor, room: Room, *, graph: bool) -> Opened:
        keys = block.keys if self.cuts else slice(0, k.shape[2])
        # What was hidden of the keys is cut off what the hooks gave.
        seen = slice(block.keys.start - keys.start, block.keys.stop - keys.start)
        with torch.set_grad_enabled(graph):
            part_q = q[:, :, block.rows].detach().requires_grad_(graph)
            part_k = k[:, :, keys].detach().requires_grad_(graph)
            call = self._part(block.rows, keys, part_q, part_k)
            made_BHQK = self._scores(call)
            if made_BHQK is not None:
                made_BHQK = made_BHQK[..., seen]
        return HooksOpened(self, call, made_BHQK, block.rows, keys, seen)

    def _part(self, rows: slice, keys: slice, part_q: Tensor, part_k: Tensor) -> AttentionCall:
        whole = self.call.geometry
        q_pos = whole.q_pos.slice(rows.start, rows.stop)
        k_pos = (
            whole.k_pos
            if keys.stop - keys.start == whole.k_pos.length
            else whole.k_pos.slice(keys.start, keys.stop)
        )
        relation = None
        if self.hooks & {"terms", "values"}:
            relation = self.encoding.relation(q_pos, k_pos)
        geometry = replace(whole, q_pos=q_pos, k_pos=k_pos, relation=relation, blockwise=None)
        if whole.mask is not None and "allowed" in self.encoding.extra_arguments("terms"):
            allowed = whole.mask.part(whole.q_pos, whole.k_pos, rows, keys)
            if (
                allowed is not None
            ):  # the rows of queries without any key are opened, as they are elsewhere
                allowed = allowed | ~allowed.any(-1, keepdim=True)
            geometry = replace(geometry, allowed=allowed)
        # Leaves of their own: what they were made of has its gradient from them, and not from here.
        states = tuple(
            state.detach().requires_grad_(part_q.requires_grad) for state in self.call.states
        )
        v_BHKW = self.call.v[:, :, keys]
        return replace(self.call, q=part_q, k=part_k, v=v_BHKW, geometry=geometry, states=states)

    def _scores(self, call: AttentionCall) -> Float[Tensor, "#B H Q K"] | None:
        terms = bias = None
        if "terms" in self.hooks:
            terms = call.terms(lambda: call.q @ call.k.transpose(2, 3))
        if "bias" in self.hooks:
            bias = self.encoding.bias(call.geometry.q_pos, call.geometry.k_pos)
        if terms is not None:
            terms = call.scale * terms
        made = bias if terms is None else terms if bias is None else terms + bias
        if made is None:
            return None
        made_BHQK = made.unsqueeze(0) if made.ndim == 3 else made
        return made_BHQK.to(call.q.dtype)

    def gradients(self, d_v: Tensor) -> list[Tensor | None]:
        return self.d_leaves

    def give(self, found: Sequence[Tensor | None]) -> None:
        """Add gradients of the leaves."""
        self.d_leaves = together(self.d_leaves, found)


@dataclass
class HooksOpened(Opened):
    """added: whose hooks; call: of the block, as they were asked; made: what they gave for the scores; rows, keys:
    which they were asked for; seen: of those keys, the block's."""

    added: ByHooks
    call: AttentionCall
    made: Float[Tensor, "#B H Q K"] | None
    rows: slice
    keys: slice
    seen: slice
    d_made: Tensor | None = None

    @property
    def leaves(self) -> list[Tensor]:
        """The block's own, in the order of the attention's."""
        return [*self.added.parameters, *self.call.states]

    def scores(self, group: Group) -> Tensor | None:
        if self.made is None:
            return None
        made = group.of(self.made.detach())
        return made.expand(*group.shape, -1, -1).flatten(0, 1)

    def take(self, met: Met, d_scores: Tensor, d_q: Tensor, d_k: Tensor) -> None:
        if self.made is None or not self.made.requires_grad:
            return
        if self.d_made is None:
            self.d_made = torch.zeros_like(self.made)
        group = met.group
        d_group = group.split(d_scores)
        into = group.of(self.d_made)
        into += d_group.sum(0, keepdim=True) if len(into) < len(d_group) else d_group

    def output(self, group: Group, weights: Tensor) -> Tensor | None:
        if not self.added.whole:
            return None
        # The hooks were asked for keys beside those of the block.
        beside = self.seen.start, self.call.k.shape[2] - self.seen.stop
        of_all = nn.functional.pad(weights, beside) if any(beside) else weights
        output = self.added.encoding.values(group.split(of_all), self.call.geometry.relation)
        return None if output is None else output.flatten(0, 1)

    def take_output(
        self, group: Group, weights: Tensor, d_output: Tensor, d_weights: Tensor
    ) -> None:
        if not self.added.whole:
            return
        with torch.enable_grad():
            leaf = weights.detach().requires_grad_()
            output = self.output(group, leaf)
        assert output is not None
        wanted = [leaf, *self.leaves]
        more, *d_leaves = torch.autograd.grad(output, wanted, d_output, allow_unused=True)
        self.added.give(d_leaves)
        d_weights += more

    def close(self, d_q: Tensor, d_k: Tensor) -> None:
        if self.made is None or self.d_made is None:
            return
        wanted = [self.call.q, self.call.k, *self.leaves]
        d_part_q, d_part_k, *d_leaves = torch.autograd.grad(
            self.made, wanted, self.d_made, allow_unused=True
        )
        if d_part_q is not None:
            d_q[:, :, self.rows] += d_part_q
        if d_part_k is not None:
            d_k[:, :, self.keys] += d_part_k
        self.added.give(d_leaves)
