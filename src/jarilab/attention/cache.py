"""Keys and values of earlier tokens, *with their positions*, for decoding one token at a time."""

from __future__ import annotations

from dataclasses import replace

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.positions.coordinates import Positions


class LayerCache:
    """Keys, values, and what an encoding remembers of each key, of one attention. Room is doubled when it runs out, so
    appending is cheap. Keys are rotated already, unless their rotation depends on how many there will be."""

    def __init__(self) -> None:
        self.length = 0
        self._held: list[Tensor] = []

    @property
    def rows(self) -> int | None:
        """How many sequences it holds, None as long as nothing was appended."""
        return self._held[0].shape[0] if self._held else None

    def append(
        self, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L W"], *states: Tensor
    ) -> tuple[Tensor, ...]:
        """Add the new ones and give all so far, `(B, H, K, E)`, `(B, H, K, E')` and those of each state."""
        start, end = self.length, self.length + k.shape[2]
        new = (k, v, *states)
        if not self._held or self._held[0].shape[2] < end:
            held = self._held or [None] * len(new)
            self._held = [_room(old, own, start, end) for old, own in zip(held, new, strict=True)]
        for tensor, own in zip(self._held, new, strict=True):
            tensor[:, :, start:end] = own
        self.length = end
        return self.filled()

    def filled(self) -> tuple[Tensor, ...]:
        """All keys, values and states so far."""
        assert self._held, "nothing was appended yet"
        return tuple([tensor.narrow(2, 0, self.length) for tensor in self._held])

    def since(self, first: int) -> LayerCache:
        """A cache without the keys before `first`."""
        shorter = LayerCache()
        k_BHKE, v_BHKE, *states = (tensor[:, :, first:] for tensor in self.filled())
        shorter.append(k_BHKE, v_BHKE, *states)
        return shorter

    def select(self, rows: Int[Tensor, " R"]) -> None:
        """Keep these rows, in this order; the tensors handed out before stay as they are."""
        self._held = [tensor.index_select(0, rows) for tensor in self._held]


def _room(held: Tensor | None, new: Tensor, length: int, end: int) -> Tensor:
    """A tensor with the same beginning as `held`, if any, that `end` keys fit into."""
    batch, heads, _, width = new.shape
    # An ordinary tensor wherever it is made, since what is made under `inference_mode` is never written to outside it.
    with torch.inference_mode(False):
        larger = new.new_empty(batch, heads, max(end, 2 * length), width)
    if held is not None:
        larger[:, :, :length] = held[:, :, :length]
    return larger


class OfOneSource:
    """A cache that holds for one source alone."""

    _origin: object = None

    def belong_to(self, origin: object) -> None:
        """Remember which source it is for. Raises UserError for another, whose keys or states it does not hold."""
        if self._origin is not None and self._origin is not origin:
            raise UserError("this cache is of another source; make a new one for each source")
        self._origin = origin


class KVCache(OfOneSource):
    """The caches of a stack: `own[i]` for layer i's self-attention, `source[i]` for its cross-attention, filled once.

    positions: where the keys in `own` are, None as long as there are none. writes: the stack that it was used by, and
    how that reads one token more (`models/one_token.py`).
    """

    def __init__(self, n_layers: int):
        self.writes: tuple[object, object] | None = None
        self.positions: Positions | None = None
        self.own = [LayerCache() for _ in range(n_layers)]
        self.source = [LayerCache() for _ in range(n_layers)]

    def check_sources(self, sources: int) -> None:
        """Raises UserError where a state of so many sources is not what was selected here."""
        held = self.source[0].rows if self.source else None
        if held not in (None, sources):
            raise UserError(
                f"this cache holds the keys of {held} sources, but the state has {sources}: "
                "select the same ones in both, state.select(sources) and cache.select(rows, sources)"
            )

    def extend(self, new: Positions) -> Positions:
        """Add the positions of the tokens about to be read, and give those of all keys."""
        self.positions = new if self.positions is None else self.positions.concat(new)
        return self.positions

    def select(self, rows: Int[Tensor, " R"], sources: Int[Tensor, " S"] | None = None) -> None:
        """Keep these rows of hypotheses, in this order, as often as they are named, and these sources (all if None)."""
        for cache in self.own:
            cache.select(rows)
        if sources is not None:
            for cache in self.source:
                cache.select(sources)
        if self.positions is not None:
            self.positions = positions_of(self.positions, rows)


def positions_of(positions: Positions, rows: Int[Tensor, " R"]) -> Positions:
    """The places of these rows of a batch, in this order; places that the rows share stay as they are."""

    shared = positions.coordinates.ndim == 2 and positions.unplaced is None
    if shared and positions.extent is None and positions.relations is None:
        return positions

    def picked(held: Tensor, axes: int) -> Tensor:
        shared = held.ndim < axes or held.shape[0] == 1
        return held if shared else held.index_select(0, rows)

    def picked_if_any(held: Tensor | None, axes: int) -> Tensor | None:
        return None if held is None else picked(held, axes)

    return replace(
        positions,
        coordinates=picked(positions.coordinates, 3),
        unplaced=picked_if_any(positions.unplaced, 2),
        extent=picked_if_any(positions.extent, 2),
        relations=picked_if_any(positions.relations, 3),
    )
