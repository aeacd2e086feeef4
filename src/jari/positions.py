"""Where tokens are. Made at the edge, by tasks and models; nothing below ever takes a length or an offset.

Left padding, packed documents, key-value caches, digit places, pixel grids and graphs are then the same case: the
queries have Positions, the keys have theirs, and an encoding sees only those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from jari.errors import UserError
from jari.shapes import Bool, Int, Tensor


@dataclass(frozen=True, eq=False)
class Positions:
    """The places of L tokens, for one sequence or shared by a batch of them.

    coordinates: `(L, A)`, shared by the batch, or `(B, L, A)`; int64, float32 or float64. Half precision is refused: it
        cannot count (bfloat16 repeats at 257).
    order: `(L,)` int64, the order in which tokens follow each other. The causal mask goes by it, since coordinates may
        repeat or restart (digit places, packed documents).
    axes: the name of each coordinate.
    frame: what the coordinates belong to (`source`, `target`, `image`). Distances between frames mean nothing unless
        an encoding for cross-attention was asked for.
    placeless: `(L,)` or `(B, L)`, True for tokens without a place (class token, registers), or None.
    relations: `(L, L)` or `(B, L, L)` int64 labels of arbitrary relations between the nodes that the one coordinate
        numbers, or None. Slices keep the whole table.
    """

    coordinates: Tensor
    order: Int[Tensor, " L"]
    axes: tuple[str, ...] = ("index",)
    frame: str = "sequence"
    placeless: Bool[Tensor, "*B L"] | None = None
    relations: Int[Tensor, "*B N N"] | None = None

    def __post_init__(self) -> None:
        if self.coordinates.dtype not in (torch.int64, torch.float32, torch.float64):
            raise UserError(
                f"positions must be int64, float32 or float64, got {self.coordinates.dtype}; "
                "half precision repeats positions (bfloat16 from 257 on): convert with .long() or .float()"
            )
        if self.coordinates.ndim not in (2, 3) or self.coordinates.shape[-1] != len(self.axes):
            raise UserError(
                f"positions must be (L, A) or (B, L, A) with A = {len(self.axes)} for the axes {self.axes}, "
                f"got {tuple(self.coordinates.shape)}; add the last axis with unsqueeze(-1)"
            )

    @staticmethod
    def sequence(
        length: int, start: int = 0, *, frame: str = "sequence", device: torch.device | str | None = None
    ) -> Positions:
        """`start, start + 1, ...`: the places of `length` tokens that follow each other."""
        order_L = torch.arange(start, start + length, device=device)
        return Positions(order_L.unsqueeze(-1), order_L, frame=frame)

    @staticmethod
    def from_mask(keep_BL: Bool[Tensor, "B L"], *, frame: str = "sequence") -> Positions:
        """Number the real tokens of each row from 0, wherever the padding is. Padding gets 0, and must be masked."""
        index_BL = (keep_BL.long().cumsum(-1) - 1).clamp_min(0) * keep_BL
        return Positions(index_BL.unsqueeze(-1), torch.arange(keep_BL.shape[1], device=keep_BL.device), frame=frame)

    @staticmethod
    def grid(height: int, width: int, *, frame: str = "image", device: torch.device | str | None = None) -> Positions:
        """Rows and columns of a picture's patches in row-major order."""
        rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
        coordinates_LA = torch.cartesian_prod(rows, columns)
        return Positions(coordinates_LA, torch.arange(height * width, device=device), ("row", "column"), frame)

    @staticmethod
    def graph(relations: Int[Tensor, "*B N N"], *, frame: str = "graph") -> Positions:
        """The nodes of a graph; `relations[i, j]` is the label of what node j is to node i."""
        nodes_L = torch.arange(relations.shape[-1], device=relations.device)
        return Positions(nodes_L.unsqueeze(-1), nodes_L, ("node",), frame, relations=relations)

    @property
    def length(self) -> int:
        return self.coordinates.shape[-2]

    def index(self) -> Tensor:
        """The only coordinate, `(L,)` or `(B, L)`. Raises UserError where there are several."""
        if len(self.axes) != 1:
            raise UserError(f"one coordinate expected, got {self.axes}; choose an encoding for {len(self.axes)} axes")
        return self.coordinates[..., 0]

    def slice(self, start: int, stop: int) -> Positions:
        """Tokens `start` to `stop` (excluded)."""
        return replace(
            self,
            coordinates=self.coordinates[..., start:stop, :],
            order=self.order[start:stop],
            placeless=None if self.placeless is None else self.placeless[..., start:stop],
        )

    def concat(self, later: Positions) -> Positions:
        """These tokens, then the `later` ones. Both must have the same axes, frame and relations."""
        if (self.axes, self.frame) != (later.axes, later.frame) or self.relations is not later.relations:
            raise UserError(
                f"cannot join positions of frame {self.frame!r} {self.axes} with {later.frame!r} {later.axes}; "
                "tokens of one sequence share frame, axes and relations"
            )
        first, second = _alike(self.coordinates, later.coordinates)
        placeless = None
        if self.placeless is not None or later.placeless is not None:
            parts = [_no_place(p) for p in (self, later)]
            placeless = torch.cat(_alike(*parts), -1)
        return replace(
            self,
            coordinates=torch.cat((first, second), -2),
            order=torch.cat((self.order, later.order)),
            placeless=placeless,
        )


def _no_place(positions: Positions) -> Tensor:
    if positions.placeless is not None:
        return positions.placeless
    return torch.zeros(positions.coordinates.shape[:-1], dtype=torch.bool, device=positions.coordinates.device)


def _alike(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Give the one without a batch axis the other's."""
    if first.ndim < second.ndim:
        first = first.expand(second.shape[0], *first.shape)
    elif second.ndim < first.ndim:
        second = second.expand(first.shape[0], *second.shape)
    return first, second


def distance(q_pos: Positions, k_pos: Positions) -> Tensor:
    """How far each key lies ahead of each query, key minus query: `(Q, K)`, or `(B, Q, K)` where rows differ.

    0 where either has no place. Shaw writes it j - i, T5 memory_position - query_position.
    """
    q, k = q_pos.index(), k_pos.index()
    ahead = k.unsqueeze(-2) - q.unsqueeze(-1)
    if q_pos.placeless is not None or k_pos.placeless is not None:
        ahead = ahead.masked_fill(_no_place(q_pos).unsqueeze(-1) | _no_place(k_pos).unsqueeze(-2), 0)
    return ahead


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token numbers with their places: what a model of text reads.

    ids: `(B, L)`; keep: `(B, L)`, False on padding, or None where there is none.
    documents: `(B, L)`, the number of the document each token is of, so that documents packed into one row do not see
        each other, or None where each row is a single one. Positions should restart with each document.
    """

    ids: Int[Tensor, "B L"]
    positions: Positions
    keep: Bool[Tensor, "B L"] | None = None
    documents: Int[Tensor, "B L"] | None = None

    @staticmethod
    def of(ids: Int[Tensor, "B L"] | Tokens, frame: str = "sequence") -> Tokens:
        """Plain token numbers get the places 0, 1, 2, ... and no padding; Tokens stay what they are."""
        if isinstance(ids, Tokens):
            return ids
        return Tokens(ids, Positions.sequence(ids.shape[1], frame=frame, device=ids.device))
