"""Keys and values of earlier tokens, with their positions, for decoding token by token."""

from __future__ import annotations

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.positions.coordinates import Positions


class LayerCache:
    """Keys, values and encoding states of one attention.

    Keys are stored rotated, unless their rotation depends on the number of keys.
    """

    def __init__(self) -> None:
        self.length = 0
        self._buffers: list[Tensor] = []
        self._selected: Tensor | None = None  # rows of the buffers that remain, if not yet copied

    @property
    def rows(self) -> int | None:
        """The number of sequences; None if the cache is empty."""
        if self._selected is not None:
            return len(self._selected)
        return self._buffers[0].shape[0] if self._buffers else None

    def append(
        self, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L W"], *states: Tensor
    ) -> tuple[Tensor, ...]:
        """Append and return all keys `(B, H, K, E)`, values `(B, H, K, W)` and states so far."""
        start, end = self.length, self.length + k.shape[2]
        new = (k, v, *states)
        if not self._buffers:
            self._buffers = [_allocated(added, end) for added in new]
        elif self._selected is not None:
            # Not larger than needed: the next selection copies again, and bfloat16 products copy keys with gaps.
            self._buffers = self._copied(end)
        elif self._buffers[0].shape[2] < end:
            # Doubled, so that appending tokens one by one copies each key about once on average.
            self._buffers = self._copied(max(end, 2 * start))
        for buffer, added in zip(self._buffers, new, strict=True):
            buffer[:, :, start:end] = added
        self.length = end
        return self.filled()

    def filled(self) -> tuple[Tensor, ...]:
        """All keys, values and states so far."""
        assert self._buffers, "nothing was appended yet"
        if self._selected is not None:
            self._buffers = self._copied(self.length)
        return tuple([buffer.narrow(2, 0, self.length) for buffer in self._buffers])

    def since(self, first: int) -> LayerCache:
        """A new cache without the keys before `first`."""
        shorter = LayerCache()
        k_BHKE, v_BHKE, *states = (tensor[:, :, first:] for tensor in self.filled())
        shorter.append(k_BHKE, v_BHKE, *states)
        return shorter

    def select(self, rows: Int[Tensor, " R"]) -> None:
        """Keep these rows, in this order. Tensors returned earlier do not change."""
        # Copied with the next key, in one pass.
        self._selected = rows if self._selected is None else self._selected.index_select(0, rows)

    def _copied(self, capacity: int) -> list[Tensor]:
        """The selected rows in new buffers for `capacity` keys."""
        rows, self._selected = self._selected, None
        return [_copy(buffer[:, :, : self.length], rows, capacity) for buffer in self._buffers]


def _copy(kept: Tensor, rows: Tensor | None, capacity: int) -> Tensor:
    larger = _allocated(kept if rows is None else kept[:1].expand(len(rows), -1, -1, -1), capacity)
    start = larger[:, :, : kept.shape[2]]
    if rows is None or kept.requires_grad:
        start[:] = kept if rows is None else kept.index_select(0, rows)
    else:
        torch.index_select(kept, 0, rows, out=start)
    return larger


def _allocated(like: Tensor, capacity: int) -> Tensor:
    """An uninitialized buffer for `capacity` keys."""
    batch, heads, _, width = like.shape
    # A tensor created under `inference_mode` could not be written to outside it.
    with torch.inference_mode(False):
        return like.new_empty(batch, heads, capacity, width)


class OfOneSource:
    """A cache that is valid for one source only."""

    _origin: object = None

    def belong_to(self, origin: object) -> None:
        """Bind the cache to a source. Raises UserError if it belongs to another one."""
        if self._origin is not None and self._origin is not origin:
            raise UserError(
                "expected the source that this cache was used with, got another one; make a new cache for each source"
            )
        self._origin = origin


class KVCache(OfOneSource):
    """The caches of a stack: `target[i]` for self-attention of layer i, `source[i]` for its cross-attention.

    positions: of the keys in `target`; None if there are none. last_ids: the last two tokens `(R, 2)`, of a model that
    reads them. writes: the stack that used the cache, and its fast path
    for one more token (`models/one_token.py`).
    """

    def __init__(self, n_layers: int):
        self.writes: tuple[object, object] | None = None
        self.positions: Positions | None = None
        self.last_ids: Int[Tensor, "R 2"] | None = None
        self.target = [LayerCache() for _ in range(n_layers)]
        self.source = [LayerCache() for _ in range(n_layers)]

    def check_sources(self, sources: int) -> None:
        """Raises UserError if the cache holds keys of another number of sources."""
        rows = self.source[0].rows if self.source else None
        if rows not in (None, sources):
            raise UserError(
                f"expected a cache with the keys of {sources} sources, as the state has, got {rows}; select the same "
                "ones in both, state.select(sources) and cache.select(rows, sources)"
            )

    def extend(self, new: Positions) -> Positions:
        """Append the positions of the next tokens and return those of all keys."""
        self.positions = new if self.positions is None else self.positions.concat(new)
        return self.positions

    def drop_before(self, first: int) -> None:
        """Forget the keys before `first`, which a window hides from all later tokens."""
        assert self.positions is not None
        self.positions = self.positions.slice(first, self.positions.length)
        self.target = [layer.since(first) for layer in self.target]

    def orders(self, new: Positions) -> list[Tensor]:
        """The orders of all keys with the next tokens."""
        return [new.order] if self.positions is None else [self.positions.order, new.order]

    def select(self, rows: Int[Tensor, " R"], sources: Int[Tensor, " S"] | None = None) -> None:
        """Keep these rows of hypotheses and these sources, in this order; repeats are allowed.

        sources: None keeps all.
        """
        for cache in self.target:
            cache.select(rows)
        if sources is not None:
            for cache in self.source:
                cache.select(sources)
        if self.positions is not None:
            self.positions = self.positions.select_rows(rows)
        if self.last_ids is not None:
            self.last_ids = self.last_ids.index_select(0, rows)
