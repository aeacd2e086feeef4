"""Positions of tokens, created by tasks and models and passed down to attention.

Left padding, packed documents, key-value caches, digit positions, pixel grids and graphs are all the same case. Queries
and keys each have Positions, and encodings see nothing else: no length, no offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from jarilab.core.devices import constant
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions of L tokens, shared by a batch or per row.

    coordinates: `(L, A)` or `(B, L, A)`; int64, float32 or float64. Half precision is refused, since it cannot count
        (bfloat16 repeats at 257).
    order: `(L,)` int64, the order of the tokens. The causal mask uses it, since coordinates may repeat or restart
        (digit positions, packed documents).
    axes: the name of each coordinate.
    frame: the space of the coordinates (`source`, `target`, `image`). Distances between frames have no meaning, except
        for encodings of cross-attention.
    unplaced: `(L,)` or `(B, L)`, True for tokens without a position (class token, registers), or None.
    relations: `(L, L)` or `(B, L, L)` int64 labels of relations between nodes, or None. The only coordinate is the
        index of the node. Slices keep the whole table.
    extent: `(A,)` or `(B, A)`, the size of the frame along each axis (h, w for an image of h x w patches, per row if
        images are padded), or None.
    cached_bounds: lower and upper bound of the only coordinate, known without synchronizing the device, and the
        coordinates that they belong to.
    rising_order: `order` itself if it is known to rise from each token to the next, so that a causal mask hides the
        tokens with a larger index; else None.
    """

    coordinates: Tensor
    order: Int[Tensor, " L"]
    axes: tuple[str, ...] = ("index",)
    frame: str = "sequence"
    unplaced: Bool[Tensor, "*B L"] | None = None
    relations: Int[Tensor, "*B N N"] | None = None
    extent: Tensor | None = None
    cached_bounds: tuple[int, int, Tensor] | None = None
    rising_order: Tensor | None = None

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
        """Positions `start, start + 1, ...` of `length` tokens."""
        order_L = torch.arange(start, start + length, device=device)
        index_L1 = order_L.unsqueeze(-1)
        cached_bounds = start, start + max(length, 1) - 1, index_L1
        return Positions(
            index_L1, order_L, frame=frame, cached_bounds=cached_bounds, rising_order=order_L
        )

    @staticmethod
    def from_mask(keep_BL: Bool[Tensor, "B L"], *, frame: str = "sequence") -> Positions:
        """Count the tokens of each row from 0, without padding. Padding has position 0 and must be masked."""
        number_BL = keep_BL.long().cumsum(-1) - 1
        index_BL = number_BL.clamp_min(0) * keep_BL
        order_L = torch.arange(keep_BL.shape[1], device=keep_BL.device)
        index_BL1 = index_BL.unsqueeze(-1)
        cached_bounds = 0, max(keep_BL.shape[1], 1) - 1, index_BL1
        return Positions(
            index_BL1, order_L, frame=frame, cached_bounds=cached_bounds, rising_order=order_L
        )

    @staticmethod
    def grid(
        height: int, width: int, *, frame: str = "image", device: torch.device | str | None = None
    ) -> Positions:
        """Rows and columns of `height` x `width` patches, in row-major order."""
        rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
        coordinates_LA = torch.cartesian_prod(rows, columns)
        order_L = torch.arange(height * width, device=device)
        extent_A = constant((height, width), order_L.device)
        return Positions(
            coordinates_LA,
            order_L,
            ("row", "column"),
            frame,
            extent=extent_A,
            rising_order=order_L,
        )

    @staticmethod
    def nowhere(count: int, like: Positions) -> Positions:
        """`count` tokens without a position, such as class tokens and registers, in the frame of `like`.

        Their order is before that of `like`: `nowhere(1, like).concat(like)`.
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
        """Nodes of a graph. `relations[i, j]`: label of the relation of node j to node i."""
        nodes_L = torch.arange(relations.shape[-1], device=relations.device)
        return Positions(nodes_L.unsqueeze(-1), nodes_L, ("node",), frame, relations=relations)

    @property
    def length(self) -> int:
        return self.coordinates.shape[-2]

    def index(self) -> Tensor:
        """The only coordinate, `(L,)` or `(B, L)`. Raises UserError if there are several."""
        if len(self.axes) != 1:
            raise UserError(
                f"one coordinate expected, got {self.axes}; choose an encoding for {len(self.axes)} axes"
            )
        return self.coordinates[..., 0]

    def bounds(self) -> tuple[int, int]:
        """Inclusive bounds of the only coordinate; 0 and 0 without tokens. Raises UserError for several coordinates.

        Synchronizes the device if the bounds are not known.
        """
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
        """`bounds` if they are known, else None."""
        # `dataclasses.replace` may have changed the coordinates and copied the bounds.
        if self.cached_bounds is None or self.cached_bounds[2] is not self.coordinates:
            return None
        return self.cached_bounds[:2]

    def bounds_for(self, coordinates: Tensor) -> tuple[int, int, Tensor] | None:
        """`cached_bounds` for a selection of these coordinates."""
        known = self.known_bounds
        return None if known is None else (*known, coordinates)

    @property
    def is_in_order(self) -> bool:
        """Whether `order` rises from each token to the next. Never synchronizes a device.

        On an accelerator and in a compiled graph it is False unless that is known.
        """
        # `dataclasses.replace` may have changed the order and copied `rising_order`.
        if self.rising_order is self.order:
            return True
        if self.order.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        return bool((self.order.diff() > 0).all())

    def plane(self) -> Tensor:
        """Row and column, `(L, 2)` or `(B, L, 2)`. Raises UserError if there are not two coordinates."""
        if len(self.axes) != 2:
            count = f"{len(self.axes)} axis" if len(self.axes) == 1 else f"{len(self.axes)} axes"
            raise UserError(
                f"two coordinates expected, got {self.axes}; choose an encoding for {count}"
            )
        return self.coordinates

    @property
    def unplaced_mask(self) -> Bool[Tensor, "*B L"]:
        """True for tokens without a position; never None."""
        if self.unplaced is not None:
            return self.unplaced
        return self.coordinates.new_zeros(self.coordinates.shape[:-1], dtype=torch.bool)

    @property
    def parts(self) -> list[str]:
        """Parts of a mixed sequence: `text` and `image` for the axes `text`, `image.row`, `image.column`.

        Empty if no axis name has a dot, such as `row` and `column` of a single image.
        """
        names = list(dict.fromkeys(map(_part_of, self.axes)))
        dotted = any("." in axis for axis in self.axes)
        return names if dotted and len(names) > 1 else []

    @property
    def absent(self) -> Bool[Tensor, "*B L A"] | None:
        """True for coordinates of tokens that have no position in that part; None if there are no parts."""
        if not self.parts:
            return None
        unplaced = [self.only(_part_of(axis)).unplaced for axis in self.axes]
        return torch.stack(unplaced, -1)  # type: ignore[arg-type]

    def only(self, part: str) -> Positions:
        """Positions with only the axes `part` or `part.something`.

        A caption and its image in one sequence have the axes `text`, `image.row`, `image.column`. Tokens of another
        part have -1 there and become unplaced. Raises UserError if no axis belongs to the part.
        """
        prefix = f"{part}."
        selected = [
            i for i, axis in enumerate(self.axes) if axis == part or axis.startswith(prefix)
        ]
        if not selected:
            parts = ", ".join(dict.fromkeys(map(_part_of, self.axes)))
            raise UserError(
                f"these positions have no part {part!r}, got the axes {self.axes}; choose one of {parts}"
            )
        index = constant(selected, self.coordinates.device)
        coordinates = self.coordinates.index_select(-1, index)
        # A rescaled grid has coordinates between -1 and 0 above its first row.
        unplaced = (coordinates <= -1).any(-1)
        if self.unplaced is not None:
            unplaced = unplaced | self.unplaced
        return replace(
            self,
            coordinates=coordinates.masked_fill(unplaced.unsqueeze(-1), 0),
            axes=tuple(self.axes[i] for i in selected),
            unplaced=unplaced,
            extent=None if self.extent is None else self.extent.index_select(-1, index),
        )

    def slice(self, start: int, stop: int) -> Positions:
        """Tokens `start` to `stop` (excluded)."""
        return self.select(slice(start, stop))

    def select(self, index: slice | Int[Tensor, " K"]) -> Positions:
        """Some of the tokens, in any order; each keeps its position and its place in the order."""
        coordinates, order = self.coordinates[..., index, :], self.order[index]
        # A slice keeps the order, since PyTorch has no negative steps.
        is_rising = isinstance(index, slice) and self.rising_order is self.order
        return replace(
            self,
            coordinates=coordinates,
            cached_bounds=self.bounds_for(coordinates),
            order=order,
            rising_order=order if is_rising else None,
            unplaced=None if self.unplaced is None else self.unplaced[..., index],
        )

    def select_rows(self, rows: Int[Tensor, " R"]) -> Positions:
        """These rows of the batch, in this order. A single row stands for all and stays."""
        return self.map_rows(lambda x: x if x.shape[0] == 1 else x.index_select(0, rows))

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> Positions:
        """Change each tensor that has an axis for the rows of the batch; what rows share stays."""

        def changed(tensor: Tensor | None, axes: int) -> Tensor | None:
            return tensor if tensor is None or tensor.ndim < axes else change(tensor)

        coordinates = self.coordinates if self.coordinates.ndim < 3 else change(self.coordinates)
        return replace(
            self,
            coordinates=coordinates,
            cached_bounds=self.bounds_for(coordinates),
            unplaced=changed(self.unplaced, 2),
            relations=changed(self.relations, 3),
            extent=changed(self.extent, 2),
        )

    def take(self, index_BK: Int[Tensor, "B K"]) -> Positions:
        """K tokens of each row, by index, in the order of the first K tokens. The positions have no relations."""
        coordinates_BLA = self.coordinates.expand(len(index_BK), -1, -1)
        unplaced = self.unplaced
        if unplaced is not None:
            unplaced = unplaced.expand(len(index_BK), -1).take_along_dim(index_BK, -1)
        return replace(
            self,
            coordinates=coordinates_BLA.take_along_dim(index_BK.unsqueeze(-1), 1),
            order=self.order[: index_BK.shape[1]],
            unplaced=unplaced,
        )

    def concat(self, later: Positions) -> Positions:
        """These tokens, then the `later` ones. Raises UserError if axes, frame or relations differ."""
        compatible = self.axes == later.axes and self.frame == later.frame
        if not compatible or self.relations is not later.relations:
            raise UserError(
                f"cannot join positions of frame {self.frame!r} {self.axes} with {later.frame!r} {later.axes}; "
                "tokens of one sequence share frame, axes and relations"
            )
        coordinates = _alike(self.coordinates, later.coordinates, 3)
        unplaced = None
        if self.unplaced is not None or later.unplaced is not None:
            unplaced = torch.cat(_alike(self.unplaced_mask, later.unplaced_mask, 2), -1)
        _check_same_extent(self.extent, later.extent)
        joined = torch.cat(coordinates, -2)
        return replace(
            self,
            coordinates=joined,
            cached_bounds=_around(self.known_bounds, later.known_bounds, joined),
            order=torch.cat((self.order, later.order)),
            unplaced=unplaced,
            extent=later.extent if self.extent is None else self.extent,
        )


def _around(
    first: tuple[int, int] | None, second: tuple[int, int] | None, joined: Tensor
) -> tuple[int, int, Tensor] | None:
    """`cached_bounds` of concatenated coordinates."""
    if first is None or second is None:
        return None
    return min(first[0], second[0]), max(first[1], second[1]), joined


def _check_same_extent(first: Tensor | None, second: Tensor | None) -> None:
    """Raises UserError if both extents are known and differ."""
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
    """Expand two tensors to the same number of batch rows. axes: number of axes with a batch axis."""
    rows = [each.shape[0] for each in (first, second) if each.ndim == axes]
    if not rows:
        return [first, second]
    return [each.expand(max(rows), *each.shape[1 - axes :]) for each in (first, second)]


def distance(q_pos: Positions, k_pos: Positions) -> Tensor:
    """Position of each key minus that of each query, `(Q, K)`, or `(B, Q, K)` if rows differ.

    0 if either has no position. Shaw writes j - i, T5 memory_position - query_position.
    """
    ahead = k_pos.index().unsqueeze(-2) - q_pos.index().unsqueeze(-1)
    undefined = undefined_pairs(q_pos, k_pos)
    return ahead if undefined is None else ahead.masked_fill(undefined, 0)


def offsets(q_pos: Positions, k_pos: Positions) -> tuple[Tensor, Tensor]:
    """`distance` in rows and in columns: how far each key is below and to the right of each query."""
    q_plane, k_plane = q_pos.plane(), k_pos.plane()
    ahead = k_plane.unsqueeze(-3) - q_plane.unsqueeze(-2)
    undefined = undefined_pairs(q_pos, k_pos)
    if undefined is not None:
        ahead = ahead.masked_fill(undefined.unsqueeze(-1), 0)
    return ahead[..., 0], ahead[..., 1]


def undefined_pairs(q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"] | None:
    """True for pairs without a distance, since one has no position or they share no part; None if there are none."""
    if q_pos.parts:
        unplaced = [_either(q_pos.only(part), k_pos.only(part)) for part in q_pos.parts]
        return torch.stack(unplaced).all(0)
    if q_pos.unplaced is None and k_pos.unplaced is None:
        return None
    return _either(q_pos, k_pos)


def _either(q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"]:
    """True for pairs of which either has no position."""
    return q_pos.unplaced_mask.unsqueeze(-1) | k_pos.unplaced_mask.unsqueeze(-2)


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token IDs with positions: the input of text models.

    ids: `(B, L)`. keep: `(B, L)`, False on padding, or None.
    documents: `(B, L)`, document IDs of packed rows, between which there is no attention, or None. Positions should
        restart with each document.
    """

    ids: Int[Tensor, "B L"]
    positions: Positions
    keep: Bool[Tensor, "B L"] | None = None
    documents: Int[Tensor, "B L"] | None = None

    @staticmethod
    def of(ids: Int[Tensor, "B L"] | Tokens, frame: str = "sequence") -> Tokens:
        """Convert token IDs to Tokens with positions 0, 1, 2, ... and no padding; returns Tokens unchanged."""
        if isinstance(ids, Tokens):
            return ids
        return Tokens(ids, Positions.sequence(ids.shape[1], frame=frame, device=ids.device))
