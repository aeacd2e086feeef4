"""Tokens at other places: what a model makes of them shows what it knows of order.

The causal mask goes by the order of tokens, which stays.
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

FARTHEST = 2**40  # places stay whole numbers when they are moved by this
WAYS = ("off", "shift", "stretch", "shuffle")


@final
@dataclass(frozen=True)
class Places:
    """Where tokens are said to be. The causal mask goes by their order, which stays.

    how: `off`, all at place 0; `shift`, all moved by `amount`; `stretch`, all `amount` times as far from 0;
    `shuffle`, places dealt out anew among the tokens that are no padding, by `seed`.
    """

    how: Literal["off", "shift", "stretch", "shuffle"]
    amount: int | float = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.how not in WAYS:
            raise unknown("way to move places", self.how, WAYS)
        if not abs(self.amount) <= FARTHEST:
            raise UserError(f"places are moved by {FARTHEST} at most, got {self.amount}")

    def of(self, positions: Positions) -> Tensor:
        """Each coordinate moved, whatever the others are: int64 stays int64 if the amount is whole, else becomes
        float64. What says that a token has no place in a part of the sequence stays. Raises UserError for a place that
        would be read as none."""
        moved, absent = self._of(positions.coordinates), positions.absent
        if absent is None:
            return moved
        if bool(((moved <= -1) & ~absent).any()):
            raise UserError(
                f"-1 and less is no place in a sequence of the parts {', '.join(positions.parts)}, and {self.how} by "
                f"{self.amount} would move places there; choose an amount that keeps them at 0 or above"
            )
        return torch.where(absent, positions.coordinates.to(moved.dtype), moved)

    def _of(self, coordinates: Tensor) -> Tensor:
        if self.how == "off":
            return torch.zeros_like(coordinates)
        whole = float(self.amount).is_integer()
        if not whole and not coordinates.is_floating_point():
            coordinates = coordinates.double()
        amount = int(self.amount) if whole else self.amount
        return coordinates * amount if self.how == "stretch" else coordinates + amount


def moved(tokens: Tokens, places: Places) -> Tokens:
    """The same tokens at other places. What an encoding cannot do with those it says in the next forward."""
    keep = tokens.keep
    if keep is None:
        keep = torch.ones_like(tokens.ids[:1], dtype=torch.bool)
    return replace(tokens, positions=moved_positions(tokens.positions, places, keep))


def moved_positions(
    positions: Positions, places: Places, keep_RL: Bool[Tensor, "R L"]
) -> Positions:
    """Other places for the same tokens. keep: False on padding, which is not shuffled. In a sequence of several parts
    each is shuffled by itself: a word has no place in the image."""
    if places.how == "shuffle":
        return _shuffled(positions, places.seed, keep_RL)
    if positions.relations is not None:
        raise UserError(
            f"the nodes of a graph have names, not places: cannot {places.how} them; use shuffle"
        )
    return replace(positions, coordinates=places.of(positions))


def _shuffled(positions: Positions, seed: int, keep_RL: Bool[Tensor, "R L"]) -> Positions:
    columns, absent = [], positions.absent
    for axis, column in enumerate(positions.coordinates.split(1, -1)):
        there_RL = keep_RL
        if absent is not None:
            there_RL = keep_RL & ~absent[..., axis].reshape(-1, positions.length)
        # The same for all axes of a part, which have the same tokens.
        index_RL = permutations(there_RL, seed)
        if len(index_RL) == 1:
            columns.append(column[..., index_RL[0], :])
        else:
            rows = column.expand(len(index_RL), -1, -1)
            columns.append(rows.gather(1, index_RL.unsqueeze(-1)))
    return replace(positions, coordinates=torch.cat(columns, -1))


@contextmanager
def displaced(model: Any, places: Places) -> Iterator[None]:
    """Every forward of a model of images inside the block has their patches at other places; tokens that have none
    stay without. Raises UserError for a model that does not place its inputs itself."""
    own = getattr(model, "places", None)
    if own is None:
        raise UserError(
            "this model takes places with its tokens; move them there, with moved(tokens, places)"
        )

    def elsewhere(images: Images) -> Positions:
        positions = own(images)
        return moved_positions(positions, places, placed(positions))

    model.places = elsewhere
    try:
        yield
    finally:
        del model.places


def placed(positions: Positions) -> Bool[Tensor, "R L"]:
    """Which tokens have a place."""
    if positions.unplaced is None:
        return torch.ones_like(positions.order, dtype=torch.bool).unsqueeze(0)
    return ~positions.unplaced.reshape(-1, positions.length)


def permutations(keep_RL: Bool[Tensor, "R L"], seed: int) -> Int[Tensor, "R L"]:
    """For each row, whose place or token comes to each place; those not kept stay, and no row of two or more others
    stays as it is."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for keep_L in keep_RL.cpu():
        index_L = torch.arange(len(keep_L))
        real = keep_L.nonzero().squeeze(1)
        drawn = torch.randperm(len(real), generator=generator)
        if torch.equal(drawn, drawn.sort().values):
            drawn = drawn.roll(1)
        index_L[real] = real[drawn]
        rows.append(index_L)
    return torch.stack(rows).to(keep_RL.device)


@final
class Displaced:
    """A model that writes with its own tokens at other places, for the searches in `jarilab.models.decoding`.

    The source is the caller's to move. With `shuffle`, the first `length` places are dealt out as `moved` deals out
    those of an answer of this length; a longer answer goes on in order.
    """

    def __init__(self, model: Any, places: Places, length: int):
        self._model, self._places = model, places
        real = torch.ones(1, max(1, length), dtype=torch.bool)
        self._deal = permutations(real, places.seed)[0] if places.how == "shuffle" else None

    def parameters(self) -> Iterator[Tensor]:
        """The model's, which tell where it computes."""
        return self._model.parameters()

    def start(self, source: Tokens | None) -> Any:
        return self._model.start(source)

    def step(
        self, state: Any, ids: Int[Tensor, "R L"], positions: Positions, cache: Any
    ) -> Float[Tensor, "R L V"]:
        return self._model.step(state, ids, self._placed(positions), cache)

    def new_cache(self) -> Any:
        return self._model.new_cache()

    def _placed(self, positions: Positions) -> Positions:
        coordinates = positions.coordinates
        if self._deal is None:
            return replace(positions, coordinates=self._places.of(positions))
        deal, order_L1 = self._deal.to(coordinates.device), positions.order.unsqueeze(1)
        dealt = deal[order_L1.clamp_max(len(deal) - 1)]
        return replace(positions, coordinates=torch.where(order_L1 < len(deal), dealt, coordinates))
