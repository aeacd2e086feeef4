"""What an encoding adds to the scores and the output of one block, with gradients.

| source | computed |
| --- | --- |
| `bias` by distance, consecutive positions | once per distance, with the geometry (`DistanceBiasTerm`) |
| `bias` given by `affine_bias` | from its factors, for the queries of a block (`distance_terms.py`) |
| `terms` and `values` given by `distance_vectors` | from the vectors of all distances, once (`distance_terms.py`) |
| anything else | by the encoding's hooks, per block, and again in the backward pass (`hook_terms.py`) |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jarilab.attention.flex import DistanceBias
from jarilab.core.shapes import Float
from jarilab.encodings.base import Encoding
from jarilab.encodings.skew import skew, unskew


class ScratchBuffers:
    """Named tensors that all blocks reuse; their contents are undefined until written."""

    # Asking the system for new memory in each block would take longer than the products.

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def buffer(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """The buffer of this name, in this shape; it grows as needed. dtype: that of the attention by default."""
        size, key = math.prod(shape), (name, dtype or self.dtype)
        if key not in self._buffers or self._buffers[key].numel() < size:
            self._buffers[key] = torch.empty(size, dtype=key[1])
        return self._buffers[key][:size].view(*shape)

    def product(self, name: str, x: Tensor, y: Tensor, added: Tensor | None = None) -> Tensor:
        """`x @ y + added` of batches of matrices, written into a buffer."""
        out = self.buffer(name, (x.shape[0], x.shape[1], y.shape[2]))
        return torch.bmm(x, y, out=out) if added is None else torch.baddbmm(added, x, y, out=out)


@dataclass(frozen=True)
class Block:
    """Some consecutive queries and the keys that any of them sees.

    rows: the queries. keys: the keys. masked: the keys that some queries do not see, counted from the first of `keys`.
    """

    rows: slice
    keys: slice
    masked: slice

    @property
    def size(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.keys.stop - self.keys.start


@dataclass(frozen=True)
class HeadGroup:
    """All heads of some rows of a batch, or some heads of one row. n_heads: of the attention."""

    batch: slice
    heads: slice
    n_heads: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.batch.stop - self.batch.start, self.heads.stop - self.heads.start

    @property
    def indices(self) -> slice:
        """Their indices along one axis of batch times heads."""
        first = self.batch.start * self.n_heads + self.heads.start
        rows, heads = self.shape
        return slice(first, first + rows * heads)

    def split(self, x: Tensor) -> Tensor:
        """`(N, ...)` as `(batch rows, heads, ...)`."""
        return x.view(*self.shape, *x.shape[1:])

    def repeat_for_rows(self, x_HQK: Tensor) -> Tensor:
        """A tensor of these heads, repeated for each row of the batch."""
        rows, _ = self.shape
        return x_HQK if rows == 1 else x_HQK.repeat(rows, 1, 1)

    def select(self, x: Tensor) -> Tensor:
        """This group's part of `(B or 1, H or 1, ...)`."""
        batch = self.batch if x.shape[0] > 1 else slice(None)
        heads = self.heads if x.shape[1] > 1 else slice(None)
        return x[batch, heads]


@dataclass(frozen=True)
class BlockScores:
    """Queries, already scaled, and keys of a block and a group of heads."""

    group: HeadGroup
    q: Float[Tensor, "N Q E"]
    k: Float[Tensor, "N K E"]


class BlockTerm:
    """A `ScoreTerm` within one block; adds nothing unless a method is overridden."""

    def initial_scores(self, group: HeadGroup) -> Float[Tensor, "#N Q K"] | None:
        """Summand of the scores that depends on neither queries nor keys."""
        return None

    def add_to_scores(self, block: BlockScores, scores: Float[Tensor, "N Q K"]) -> None:
        """Add to `scores` in place, after the product of queries and keys."""

    def scores_backward(
        self,
        block: BlockScores,
        d_scores: Float[Tensor, "N Q K"],
        d_q: Float[Tensor, "N Q E"],
        d_k: Float[Tensor, "N K E"],
    ) -> None:
        """Add gradients to `d_q` (before the scale) and `d_k`, and those of the leaves to the term."""

    def output(
        self, group: HeadGroup, weights: Float[Tensor, "N Q K"]
    ) -> Float[Tensor, "N Q W"] | None:
        """Summand of the output."""
        return None

    def output_backward(
        self,
        group: HeadGroup,
        weights: Float[Tensor, "N Q K"],
        d_output: Float[Tensor, "N Q W"],
        d_weights: Float[Tensor, "N Q K"],
    ) -> None:
        """Add the gradient through this term to `d_weights`, and gradients of its leaves to the term."""

    def finish_backward(self, d_q: Float[Tensor, "B H Q E"], d_k: Float[Tensor, "B H K E"]) -> None:
        """Add remaining gradients to `d_q` and `d_k`, after the last group of heads."""


class ScoreTerm:
    """What an encoding adds to one attention; nothing unless a method is overridden.

    leaves: tensors, besides queries, keys and values, that need gradients. uses_hooks: each block computes it for all
    heads at once. needs_all_weights: it reads the weights of all heads at once.
    """

    leaves: Sequence[Tensor] = ()
    uses_hooks = False
    needs_all_weights = False

    def begin_backward(self) -> None:
        """Prepare for a backward pass."""

    def shift_queries(self, q: Float[Tensor, "B H Q E"]) -> Tensor:
        """The queries to multiply with the keys, before the scale; the gradient passes through unchanged."""
        return q

    def shift_values(self, v: Float[Tensor, "B H K W"]) -> Tensor:
        """The values to sum; the gradient passes through unchanged."""
        return v

    def block_term(
        self, block: Block, q: Tensor, k: Tensor, buffers: ScratchBuffers, *, needs_grad: bool
    ) -> BlockTerm:
        """The term of one block. needs_grad: a backward pass follows."""
        return BlockTerm()

    def gradients(self, d_v: Float[Tensor, "B H K W"]) -> list[Tensor | None]:
        """Gradients of `leaves`, after all blocks. d_v: gradient of the values."""
        return []


class DistanceBiasTerm(ScoreTerm):
    """A bias per head and distance."""

    def __init__(self, bias: DistanceBias, first_distance: int):
        self.bias = bias
        self.leaves = (bias.values,)
        self.offset = first_distance - bias.first

    def begin_backward(self) -> None:
        values = self.bias.values
        self.d_values = torch.zeros_like(values) if values.requires_grad else None

    def block_term(
        self, block: Block, q: Tensor, k: Tensor, buffers: ScratchBuffers, *, needs_grad: bool
    ) -> BlockTerm:
        rows, keys = block.size
        first = self.offset + block.keys.start - block.rows.stop + 1
        distances = slice(first, first + rows + keys - 1)
        values = self.bias.values.detach()[:, distances].to(q.dtype)
        has_grad = needs_grad and self.d_values is not None
        d_values = self.d_values[:, distances] if has_grad else None  # type: ignore[index]
        return DistanceBiasBlock(values, d_values, rows, keys)

    def gradients(self, d_v: Tensor) -> list[Tensor | None]:
        return [self.d_values]


@dataclass
class DistanceBiasBlock(BlockTerm):
    """A `DistanceBiasTerm` within one block.

    values: at the R distances of the block. d_values: sum of their gradients, None if not needed.
    """

    values: Float[Tensor, "H R"]
    d_values: Float[Tensor, "H R"] | None
    rows: int
    keys: int

    def initial_scores(self, group: HeadGroup) -> Tensor | None:
        values_HQR = self.values[group.heads].unsqueeze(1).expand(-1, self.rows, -1)
        return group.repeat_for_rows(skew(values_HQR, self.keys))

    def scores_backward(
        self, block: BlockScores, d_scores: Tensor, d_q: Tensor, d_k: Tensor
    ) -> None:
        if self.d_values is not None:
            group = block.group
            d_values_NR = unskew(d_scores).sum(1, dtype=self.d_values.dtype)
            self.d_values[group.heads] += group.split(d_values_NR).sum(0)


class TermSum(ScoreTerm):
    """Sum of several terms."""

    def __init__(self, terms: Sequence[ScoreTerm]):
        self.terms = terms
        self.leaves = [leaf for term in terms for leaf in term.leaves]
        self.uses_hooks = any(term.uses_hooks for term in terms)
        self.needs_all_weights = any(term.needs_all_weights for term in terms)

    def begin_backward(self) -> None:
        for term in self.terms:
            term.begin_backward()

    def shift_queries(self, q: Tensor) -> Tensor:
        shifted_BHQE = q
        for term in self.terms:
            shifted_BHQE = term.shift_queries(shifted_BHQE)
        return shifted_BHQE

    def shift_values(self, v: Tensor) -> Tensor:
        shifted_BHKW = v
        for term in self.terms:
            shifted_BHKW = term.shift_values(shifted_BHKW)
        return shifted_BHKW

    def block_term(
        self, block: Block, q: Tensor, k: Tensor, buffers: ScratchBuffers, *, needs_grad: bool
    ) -> BlockTerm:
        terms = [
            term.block_term(block, q, k, buffers, needs_grad=needs_grad) for term in self.terms
        ]
        return BlockTermSum(terms)

    def gradients(self, d_v: Tensor) -> list[Tensor | None]:
        return [gradient for term in self.terms for gradient in term.gradients(d_v)]


@dataclass
class BlockTermSum(BlockTerm):
    """Sum of the terms of one block."""

    terms: Sequence[BlockTerm]

    def initial_scores(self, group: HeadGroup) -> Tensor | None:
        return _sum([term.initial_scores(group) for term in self.terms])

    def add_to_scores(self, block: BlockScores, scores: Tensor) -> None:
        for term in self.terms:
            term.add_to_scores(block, scores)

    def scores_backward(
        self, block: BlockScores, d_scores: Tensor, d_q: Tensor, d_k: Tensor
    ) -> None:
        for term in self.terms:
            term.scores_backward(block, d_scores, d_q, d_k)

    def output(self, group: HeadGroup, weights: Tensor) -> Tensor | None:
        return _sum([term.output(group, weights) for term in self.terms])

    def output_backward(
        self, group: HeadGroup, weights: Tensor, d_output: Tensor, d_weights: Tensor
    ) -> None:
        for term in self.terms:
            term.output_backward(group, weights, d_output, d_weights)

    def finish_backward(self, d_q: Tensor, d_k: Tensor) -> None:
        for term in self.terms:
            term.finish_backward(d_q, d_k)


def _sum(tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return sum(present[1:], present[0]) if present else None


def add_gradients(
    totals: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Elementwise sums of two lists of gradients, of which some may be None."""
    return [_sum(pair) for pair in zip(totals, gradients, strict=True)]


def trainable_parameters(encoding: Encoding) -> list[Tensor]:
    """Parameters that an encoding reads and that need gradients, each once."""
    parameters = [each for owner in encoding.parameter_modules for each in owner.parameters()]
    return list(dict.fromkeys(each for each in parameters if each.requires_grad))
