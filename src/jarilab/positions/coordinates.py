"""Where tokens are. Made at the edge, by tasks and models; nothing below ever takes a length or an offset.

Left padding, packed documents, key-value caches, digit places, pixel grids and graphs are then the same case: the
queries have Positions, the keys have theirs, and an encoding sees only those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor


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
    unplaced: `(L,)` or `(B, L)`, True for tokens without a place (class token, registers), or None.
    relations: `(L, L)` or `(B, L, L)` int64 labels of arbitrary relations between the nodes that the one coordinate
        numbers, or None. Slices keep the whole table.
    extent: `(A,)` or `(B, A)`, the size of the frame along each axis (an image of h x w patches has h, w; where
        images are padded each has its own), or None where the frame has none.
    within: two numbers that the one coordinate lies between, where they are known without asking the device; and the
        coordinates that they are of, since others may have others.
    """

    coordinates: Tensor
    order: Int[Tensor, " L"]
    axes: tuple[str, ...] = ("index",)
    frame: str = "sequence"
    unplaced: Bool[Tensor, "*B L"] | None = None
    relations: Int[Tensor, "*B N N"] | None = None
    extent: Tensor | None = None
    within: tuple[int, int, Tensor] | None = None

    def __post_init__(self) -> None:
        coordinates, extent = self.coordinates, self.extent
        count, axes = len(self.axes), f"A = {len(self.axes)} for the axes {self.axes}"
        if coordinates.dtype not in (torch.int64, torch.float32, torch.float64):
            raise UserError(
                f"positions must be int64, float32 or float64, got {coordinates.dtype}; "
                "half precision repeats positions (bfloat16 from 257 on): convert with .long() or .float()"
            )
        if coordinates.ndim not in (2, 3) or coordinates.shape[-1] != count:
            raise UserError(
                f"positions must be (L, A) or (B, L, A) with {axes}, got {tuple(coordinates.shape)}; add the last "
                "axis with unsqueeze(-1)"
            )
        if extent is not None and (extent.ndim not in (1, 2) or extent.shape[-1] != count):
            raise UserError(
                f"the extent must be (A,) or (B, A) with {axes}, got {tuple(extent.shape)}; give the frame's size "
                "along each axis"
            )

    @staticmethod
    def sequence(
        length: int,
        start: int = 0,
        *,
        frame: str = "sequence",
        device: torch.device | str | None = None,
    ) -> Positions:
        """`start, start + 1, ...`: the places of `length` tokens that follow each other."""
        order_L = torch.arange(start, start + length, device=device)
        index_L1 = order_L.unsqueeze(-1)
        within = start, start + max(length, 1) - 1, index_L1
        return Positions(index_L1, order_L, frame=frame, within=within)

    @staticmethod
    def from_mask(keep_BL: Bool[Tensor, "B L"], *, frame: str = "sequence") -> Positions:
        """Number the real tokens of each row from 0, wherever the padding is. Padding gets 0, and must be masked."""
        number_BL = keep_BL.long().cumsum(-1) - 1
        index_BL = number_BL.clamp_min(0) * keep_BL
        order_L = torch.arange(keep_BL.shape[1], device=keep_BL.device)
        index_BL1 = index_BL.unsqueeze(-1)
        within = 0, max(keep_BL.shape[1], 1) - 1, index_BL1
        return Positions(index_BL1, order_L, frame=frame, within=within)

    @staticmethod
    def grid(
        height: int, width: int, *, frame: str = "image", device: torch.device | str | None = None
    ) -> Positions:
        """Rows and columns of an image's patches in row-major order, in a frame of height x width."""
        rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
        coordinates_LA = torch.cartesian_prod(rows, columns)
        order_L = torch.arange(height * width, device=device)
        extent_A = torch.tensor((height, width), device=device)
        return Positions(coordinates_LA, order_L, ("row", "column"), frame, extent=extent_A)

    @staticmethod
    def nowhere(count: int, like: Positions) -> Positions:
        """`count` tokens without a place in the frame of `like`, to stand before it: `nowhere(1, like).concat(like)`.

        Class token and registers: their order comes before that of `like`.
        """
        device = like.coordinates.device
        first = like.order[:1] if like.length else torch.zeros(1, dtype=torch.int64, device=device)
        return replace(
            like,
            coordinates=like.coordinates.new_zeros(count, len(like.axes)),
            order=torch.arange(-count, 0, device=device) + first,
            unplaced=torch.ones(count, dtype=torch.bool, device=device),
        )

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
            raise UserError(
                f"one coordinate expected, got {self.axes}; choose an encoding for {len(self.axes)} axes"
            )
        return self.coordinates[..., 0]

    def bounds(self) -> tuple[int, int]:
        """Numbers that the one coordinate lies between, both included. Where nobody knows them the device is asked."""
        known = self.known_bounds
        if known is not None:
            return known
        index = self.index()
        if not index.numel():
            return 0, 0
        least, most = torch.stack(index.aminmax()).tolist()
        return least, most

    @property
    def known_bounds(self) -> tuple[int, int] | None:
        """`bounds`, where they are known already."""
        if self.within is None or self.within[2] is not self.coordinates:
            return None
        return self.within[:2]

    def picked(self, coordinates: Tensor) -> tuple[int, int, Tensor] | None:
        """`within` of coordinates that are some of these."""
        known = self.known_bounds
        return None if known is None else (*known, coordinates)

    def plane(self) -> Tensor:
        """Row and column, `(L, 2)` or `(B, L, 2)`. Raises UserError where there are not two coordinates."""
        if len(self.axes) != 2:
            count = f"{len(self.axes)} axis" if len(self.axes) == 1 else f"{len(self.axes)} axes"
            raise UserError(
                f"two coordinates expected, got {self.axes}; choose an encoding for {count}"
            )
        return self.coordinates

    @property
    def placeless(self) -> Bool[Tensor, "*B L"]:
        """True for tokens without a place."""
        if self.unplaced is not None:
            return self.unplaced
        return self.coordinates.new_zeros(self.coordinates.shape[:-1], dtype=torch.bool)

    @property
    def parts(self) -> list[str]:
        """What a sequence of several parts is made of: `text` and `image` of the axes `text`, `image.row`,
        `image.column`. Nothing where no axis names by a dot what it is of: `row` and `column` are one image's."""
        names = list(dict.fromkeys(map(_part_of, self.axes)))
        dotted = any("." in axis for axis in self.axes)
        return names if dotted and len(names) > 1 else []

    @property
    def absent(self) -> Bool[Tensor, "*B L A"] | None:
        """True for the coordinates of tokens that have no place in the part these are of, as `only` has it; None where
        there are no parts."""
        if not self.parts:
            return None
        of_axes = [self.only(_part_of(axis)).unplaced for axis in self.axes]
        return torch.stack(of_axes, -1)  # type: ignore[arg-type]

    def only(self, part: str) -> Positions:
        """What an encoding for `part` sees: the axes named `part` or `part.something`. Tokens that have none, marked by
        -1 there, have no place. Raises UserError where no axis is of that part.

        A caption and its image in one sequence have the axes `text`, `image.row`, `image.column`.
        """
        inside = f"{part}."
        chosen = [i for i, axis in enumerate(self.axes) if axis == part or axis.startswith(inside)]
        if not chosen:
            parts = ", ".join(dict.fromkeys(map(_part_of, self.axes)))
            raise UserError(
                f"these positions have no part {part!r}, got the axes {self.axes}; choose one of {parts}"
            )
        index = torch.tensor(chosen, device=self.coordinates.device)
        coordinates = self.coordinates.index_select(-1, index)
        # Between -1 and 0 lies what a rescaled grid has above its first row.
        without = (coordinates <= -1).any(-1)
        if self.unplaced is not None:
            without = without | self.unplaced
        return replace(
            self,
            coordinates=coordinates.masked_fill(without.unsqueeze(-1), 0),
            axes=tuple(self.axes[i] for i in chosen),
            unplaced=without,
            extent=None if self.extent is None else self.extent.index_select(-1, index),
        )

    def slice(self, start: int, stop: int) -> Positions:
        """Tokens `start` to `stop` (excluded)."""
        coordinates = self.coordinates[..., start:stop, :]
        return replace(
            self,
            coordinates=coordinates,
            within=self.picked(coordinates),
            order=self.order[start:stop],
            unplaced=None if self.unplaced is None else self.unplaced[..., start:stop],
        )

    def concat(self, later: Positions) -> Positions:
        """These tokens, then the `later` ones. Both must have the same axes, frame and relations."""
        alike = self.axes == later.axes and self.frame == later.frame
        if not alike or self.relations is not later.relations:
            raise UserError(
                f"cannot join positions of frame {self.frame!r} {self.axes} with {later.frame!r} {later.axes}; "
                "tokens of one sequence share frame, axes and relations"
            )
        coordinates = _alike(self.coordinates, later.coordinates, 3)
        unplaced = None
        if self.unplaced is not None or later.unplaced is not None:
            unplaced = torch.cat(_alike(self.placeless, later.placeless, 2), -1)
        _check_same_extent(self.extent, later.extent)
        joined = torch.cat(coordinates, -2)
        return replace(
            self,
            coordinates=joined,
            within=_around(self.known_bounds, later.known_bounds, joined),
            order=torch.cat((self.order, later.order)),
            unplaced=unplaced,
            extent=later.extent if self.extent is None else self.extent,
        )


def _around(
    first: tuple[int, int] | None, second: tuple[int, int] | None, joined: Tensor
) -> tuple[int, int, Tensor] | None:
    """`within` of the coordinates of both, joined."""
    if first is None or second is None:
        return None
    return min(first[0], second[0]), max(first[1], second[1]), joined


def _check_same_extent(first: Tensor | None, second: Tensor | None) -> None:
    """Raises UserError for positions of two frames. Who knows no extent takes the other's."""
    if first is None or second is None or first is second or torch.compiler.is_compiling():
        return
    if not bool((first == second).all()):
        raise UserError(
            f"cannot join positions of the extents {first.tolist()} and {second.tolist()}: "
            "tokens of one sequence share a frame; give both its extent"
        )


def _part_of(axis: str) -> str:
    """`image` for `image.row`."""
    return axis.partition(".")[0]


def _alike(first: Tensor, second: Tensor, axes: int) -> list[Tensor]:
    """Both with as many rows, where either has any: those of one row are of all. axes: of what has rows."""
    rows = [held.shape[0] for held in (first, second) if held.ndim == axes]
    if not rows:
        return [first, second]
    return [held.expand(max(rows), *held.shape[1 - axes :]) for held in (first, second)]


def distance(q_pos: Positions, k_pos: Positions) -> Tensor:
    """How far each key lies ahead of each query, key minus query: `(Q, K)`, or `(B, Q, K)` where rows differ.

    0 where either has no place. Shaw writes it j - i, T5 memory_position - query_position.
    """
    ahead = k_pos.index().unsqueeze(-2) - q_pos.index().unsqueeze(-1)
    apart = unrelated(q_pos, k_pos)
    return ahead if apart is None else ahead.masked_fill(apart, 0)


def offsets(q_pos: Positions, k_pos: Positions) -> tuple[Tensor, Tensor]:
    """How many rows each key lies below each query and how many columns to its right: two of what `distance` is."""
    q_place, k_place = q_pos.plane(), k_pos.plane()
    ahead = k_place.unsqueeze(-3) - q_place.unsqueeze(-2)
    apart = unrelated(q_pos, k_pos)
    if apart is not None:
        ahead = ahead.masked_fill(apart.unsqueeze(-1), 0)
    return ahead[..., 0], ahead[..., 1]


def unrelated(q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"] | None:
    """True for pairs of which one has no place, or that have none in the same part, so that no distance lies between
    them; None where there are no such pairs."""
    if q_pos.parts:
        of_parts = [_either(q_pos.only(part), k_pos.only(part)) for part in q_pos.parts]
        return torch.stack(of_parts).all(0)
    if q_pos.unplaced is None and k_pos.unplaced is None:
        return None
    return _either(q_pos, k_pos)


def _either(q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"]:
    """True for pairs of which one has no place."""
    return q_pos.placeless.unsqueeze(-1) | k_pos.placeless.unsqueeze(-2)


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
