"""Change the positions of tokens or patches, to measure what a model knows of order.

The causal mask follows the order of tokens, which stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.patches import Images

MAX_AMOUNT = 2**40  # positions that are moved by this stay exact integers
KINDS = ("off", "shift", "stretch", "shuffle")


@final
@dataclass(frozen=True)
class PositionEdit:
    """A change of positions.

    how: `off` sets all to 0; `shift` adds `amount`; `stretch` multiplies by `amount`; `shuffle` permutes the positions
    of tokens that are no padding, by `seed`.
    """

    how: Literal["off", "shift", "stretch", "shuffle"]
    amount: int | float = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.how not in KINDS:
            raise unknown("way to move places", self.how, KINDS)
        if not abs(self.amount) <= MAX_AMOUNT:
            raise UserError(
                f"places are moved by {MAX_AMOUNT} at most, got {self.amount}; choose a smaller amount"
            )

    def moved_coordinates(self, positions: Positions) -> Tensor:
        """The changed coordinates: int64 if the amount is whole, else float64.

        Marks of absent positions stay. Raises UserError if a position would be read as absent.
        """
        moved, absent = self._move(positions.coordinates), positions.absent
        if absent is None:
            return moved
        if bool(((moved <= -1) & ~absent).any()):
            raise UserError(
                f"-1 and less is no place in a sequence of the parts {', '.join(positions.parts)}, and {self.how} by "
                f"{self.amount} would move places there; choose an amount that keeps them at 0 or above"
            )
        return torch.where(absent, positions.coordinates.to(moved.dtype), moved)

    def _move(self, coordinates: Tensor) -> Tensor:
        if self.how == "off":
            return torch.zeros_like(coordinates)
        is_whole = float(self.amount).is_integer()
        if not is_whole and not coordinates.is_floating_point():
            coordinates = coordinates.double()
        amount = int(self.amount) if is_whole else self.amount
        return coordinates * amount if self.how == "stretch" else coordinates + amount


def move_tokens(tokens: Tokens, edit: PositionEdit) -> Tokens:
    """The same tokens at changed positions."""
    # An encoding raises in the next forward if it cannot use them.
    keep = tokens.keep
    if keep is None:
        keep = torch.ones_like(tokens.ids[:1], dtype=torch.bool)
    return replace(tokens, positions=move_positions(tokens.positions, edit, keep))


def move_positions(
    positions: Positions, edit: PositionEdit, keep_RL: Bool[Tensor, "R L"]
) -> Positions:
    """The changed positions. keep: False on padding, which is not shuffled."""
    if edit.how == "shuffle":
        return _shuffle(positions, edit.seed, keep_RL)
    if positions.relations is not None:
        raise UserError(
            f"the nodes of a graph have names, not places: cannot {edit.how} them; use shuffle"
        )
    return replace(positions, coordinates=edit.moved_coordinates(positions))


def _shuffle(positions: Positions, seed: int, keep_RL: Bool[Tensor, "R L"]) -> Positions:
    # Each part of a sequence is shuffled by itself: a word has no position in the image. All axes of a part have the
    # same tokens, so they get the same permutation.
    columns, absent = [], positions.absent
    for axis, column in enumerate(positions.coordinates.split(1, -1)):
        movable_RL = keep_RL
        if absent is not None:
            movable_RL = keep_RL & ~absent[..., axis].reshape(-1, positions.length)
        index_RL = permutations(movable_RL, seed)
        if len(index_RL) == 1:
            columns.append(column[..., index_RL[0], :])
        else:
            rows = column.expand(len(index_RL), -1, -1)
            columns.append(rows.gather(1, index_RL.unsqueeze(-1)))
    return replace(positions, coordinates=torch.cat(columns, -1))


@contextmanager
def move_patches(model: Any, edit: PositionEdit) -> Iterator[None]:
    """Change the positions of the patches of a model of images, in every forward inside the block.

    Raises UserError for a model that does not place its inputs itself.
    """
    places = getattr(model, "places", None)
    if places is None:
        raise UserError(
            "this model takes places with its tokens; move them there, with move_tokens(tokens, edit)"
        )

    def moved_places(images: Images) -> Positions:
        positions = places(images)
        return move_positions(positions, edit, has_position(positions))

    model.places = moved_places
    try:
        yield
    finally:
        del model.places


def has_position(positions: Positions) -> Bool[Tensor, "R L"]:
    """True for tokens that have a position."""
    if positions.unplaced is None:
        return torch.ones_like(positions.order, dtype=torch.bool).unsqueeze(0)
    return ~positions.unplaced.reshape(-1, positions.length)


def permutations(keep_RL: Bool[Tensor, "R L"], seed: int) -> Int[Tensor, "R L"]:
    """A permutation of the kept tokens of each row; never the identity if there are two or more."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for keep_L in keep_RL.cpu():
        index_L = torch.arange(len(keep_L))
        kept_indices = keep_L.nonzero().squeeze(1)
        drawn = torch.randperm(len(kept_indices), generator=generator)
        if torch.equal(drawn, drawn.sort().values):
            drawn = drawn.roll(1)
        index_L[kept_indices] = kept_indices[drawn]
        rows.append(index_L)
    return torch.stack(rows).to(keep_RL.device)


@final
class MovedModel:
    """A model that generates its tokens at changed positions, for the searches in `jarilab.models.decoding`.

    Positions of the source are not changed here. `shuffle` permutes the first `length` positions as `move_tokens` does
    for an answer of this length; a longer answer continues in order.
    """

    def __init__(self, model: Any, edit: PositionEdit, length: int):
        self._model, self._edit = model, edit
        keep = torch.ones(1, max(1, length), dtype=torch.bool)
        self._permutation = permutations(keep, edit.seed)[0] if edit.how == "shuffle" else None

    def parameters(self) -> Iterator[Tensor]:
        """The parameters of the model, from which a search reads the device."""
        return self._model.parameters()

    def start(self, source: Tokens | None) -> Any:
        return self._model.start(source)

    def step(
        self, state: Any, ids: Int[Tensor, "R L"], positions: Positions, cache: Any
    ) -> Float[Tensor, "R L V"]:
        return self._model.step(state, ids, self._move(positions), cache)

    def new_cache(self) -> Any:
        return self._model.new_cache()

    def _move(self, positions: Positions) -> Positions:
        coordinates = positions.coordinates
        if self._permutation is None:
            return replace(positions, coordinates=self._edit.moved_coordinates(positions))
        permutation = self._permutation.to(coordinates.device)
        order_L1 = positions.order.unsqueeze(1)
        permuted = permutation[order_L1.clamp_max(len(permutation) - 1)]
        in_range = order_L1 < len(permutation)
        return replace(positions, coordinates=torch.where(in_range, permuted, coordinates))
