"""Keys and values of what was read before, *with their positions*, for decoding one token at a time."""

from __future__ import annotations

from jari.errors import UserError
from jari.positions import Positions
from jari.shapes import Float, Tensor


class LayerCache:
    """Keys (rotated already) and values of one attention. Room is doubled when it runs out, so appending is cheap."""

    def __init__(self) -> None:
        self.length = 0
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def append(self, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L W"]) -> tuple[Tensor, Tensor]:
        """Add the new ones and give all so far, `(B, H, K, E)` and `(B, H, K, E')`."""
        end = self.length + k.shape[2]
        self._k, self._v = _room(self._k, k, self.length, end), _room(self._v, v, self.length, end)
        self._k[:, :, self.length : end] = k
        self._v[:, :, self.length : end] = v
        self.length = end
        return self.filled()

    def filled(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far."""
        assert self._k is not None, "nothing was appended yet"
        assert self._v is not None
        return self._k[:, :, : self.length], self._v[:, :, : self.length]


def _room(held: Tensor | None, new: Tensor, length: int, end: int) -> Tensor:
    if held is not None and held.shape[2] >= end:
        return held
    larger = new.new_empty(*new.shape[:2], max(end, 2 * length), new.shape[3])
    if held is not None:
        larger[:, :, :length] = held[:, :, :length]
    return larger


class KVCache:
    """The caches of a stack: `own[i]` for layer i's self-attention, `source[i]` for its cross-attention, filled once.

    positions: where the keys in `own` are, None as long as there are none.
    """

    def __init__(self, layers: int):
        self.positions: Positions | None = None
        self._memory: Tensor | None = None
        self.own = [LayerCache() for _ in range(layers)]
        self.source = [LayerCache() for _ in range(layers)]

    def belong_to(self, memory: Tensor) -> None:
        """Note which source it is for. Raises UserError for another: the keys it holds would be those of the first."""
        if self._memory is not None and self._memory is not memory:
            raise UserError("this cache holds the keys of another source; make a new one for each source")
        self._memory = memory

    def extend(self, new: Positions) -> Positions:
        """Note the positions of the tokens about to be read, and give those of all keys."""
        self.positions = new if self.positions is None else self.positions.concat(new)
        return self.positions

    def memory(self) -> int:
        """Bytes held by keys and values."""
        tensors = [t for c in (*self.own, *self.source) for t in (c._k, c._v) if t is not None]
        return sum(t.numel() * t.element_size() for t in tensors)
