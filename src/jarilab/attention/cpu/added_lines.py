"""What a few numbers of each query, times a few of each distance, add to a block: for as many heads at once as fit near
the processor, and never for all pairs of all heads."""

from __future__ import annotations

import torch
from torch import Tensor

from jarilab.attention.cpu.added import Added, Block, Met, Opened, parameters_read, together
from jarilab.attention.cpu.bands import Fit
from jarilab.attention.definition import AttentionCall
from jarilab.attention.room import Room
from jarilab.encodings.distance_forms import AffineBias


class ByLines(Added):
    """What an encoding says of its bias in `affine_bias`.

    ahead: how far the first key lies ahead of the first query. seen: no query looks at a key at a greater distance;
    None where that is not known.
    """

    def __init__(self, call: AttentionCall, ahead: int, seen: int | None):
        self.ahead, self.seen = ahead, seen
        self.encoding, self.q_pos = call.geometry.encoding, call.geometry.q_pos
        self.leaves = parameters_read(self.encoding)

    def begin(self) -> None:
        self.d_leaves: list[Tensor | None] = [None] * len(self.leaves)

    def open(self, block: Block, q: Tensor, k: Tensor, room: Room, *, graph: bool) -> Opened:
        ahead = self.ahead + block.keys.start - block.rows.start
        fit = Fit.of_each(block.size, ahead, self.seen)
        queries = self.q_pos.slice(block.rows.start, block.rows.stop)
        first = ahead - block.size[0] + 1
        with torch.set_grad_enabled(graph):
            made = self.encoding.affine_bias(queries, first, first + fit.distances - 1)
        assert made is not None
        return LinesOpened(self, made, fit, room)

    def gradients(self, d_v: Tensor) -> list[Tensor | None]:
        return self.d_leaves


class LinesOpened(Opened):
    """made: for the block, with a graph where gradients will be asked for."""

    def __init__(self, added: ByLines, made: AffineBias, fit: Fit, room: Room):
        self.added, self.fit, self.room = added, fit, room
        self.made, self.plain = made.tensors, made.detached()
        self.d_made = [torch.zeros_like(each) for each in self.plain.tensors]

    def add(self, met: Met, scores: Tensor) -> None:
        size = met.group.shape[1], self.fit.size[0], self.fit.distances
        lines_HQR = self.room.of("distances", size, self.plain.level.dtype)
        self.plain.write(met.group.heads, lines_HQR)
        if lines_HQR.dtype is not scores.dtype:  # a sum of both would be made anew
            lines_HQR = self.room.of("distances", size).copy_(lines_HQR)
        self.fit.spread(lines_HQR, met.group.split(scores))

    def take(self, met: Met, d_scores: Tensor, d_q: Tensor, d_k: Tensor) -> None:
        d_BHQK = met.group.split(d_scores)
        d_HQK = d_BHQK[0] if len(d_BHQK) == 1 else d_BHQK.sum(0)
        d_HQR = self.fit.gathered(d_HQK, self.room, self.plain.level.dtype)
        self.plain.gradients(met.group.heads, d_HQR, self.d_made)

    def close(self, d_q: Tensor, d_k: Tensor) -> None:
        pairs = zip(self.made, self.d_made, strict=True)
        wanted = [(made, d_made) for made, d_made in pairs if made.requires_grad]
        if wanted:
            made, d_made = zip(*wanted, strict=True)
            found = torch.autograd.grad(made, self.added.leaves, d_made, allow_unused=True)
            self.added.d_leaves = together(self.added.d_leaves, found)
