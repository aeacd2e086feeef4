"""Steps of writing on a GPU, replayed as a CUDA graph.

Starting the kernels of a step takes the CPU longer than the GPU needs to compute them. A graph starts all of them at
once. It reads and writes the same tensors at each replay, so its cache has a fixed capacity. Keys that are not written
yet have an order after all queries, so the causal mask hides them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from jarilab.attention.cache import KVCache, LayerCache
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.encodings.base import Encoding
from jarilab.models.base import Generates
from jarilab.models.one_token import hooks_of_modules
from jarilab.positions.coordinates import Positions

MIN_STEPS = 16
"""With fewer steps left, capturing a graph takes longer than it saves."""
MIN_CAPACITY = 512
NEVER = torch.iinfo(torch.int64).max // 2
"""The order of keys that are not written yet."""
GRAPHED_HOOKS = {"embed", "inject", "rotate", "bias"}


class Steps:
    """The steps of a model that writes token by token.

    On a GPU, those of a model with a `KVCache` are replayed where that gives the same answer.

    longest: the number of steps. cached: with a cache of what was read; else each step reads all tokens.
    """

    def __init__(self, model: Generates, longest: int, cached: bool = True):
        self.cache: Any = model.new_cache() if cached else None
        self._model, self._left = model, longest
        self._graph: Callable[[Tensor, Positions], Tensor] | None = None
        self._conditions: tuple[Any, ...] = ()  # of the graph
        self._can_replay = False
        if isinstance(self.cache, KVCache) and isinstance(model, nn.Module):
            self._can_replay = _is_graphable(model)
        if self._can_replay:
            self._modules = list(cast(nn.Module, model).modules())
            self._hooks = hooks_of_modules([cast(nn.Module, model)])
            limits = cast(Any, model).max_positions().values()
            self._end = min((limit for limit in limits if limit is not None), default=NEVER)

    @property
    def replays(self) -> bool:
        """Whether the last step was a replay. Then, selecting rows is expensive."""
        return self._graph is not None

    def __call__(
        self, state: Any, ids: Int[Tensor, "R L"], positions: Positions
    ) -> Float[Tensor, "R L V"]:
        """Return the scores after each of `ids`, those that the cache lacks. The next step may overwrite them."""
        self._left -= 1
        if not self._can_replay or not self._fits(ids, positions):
            return self._model.step(state, ids, positions, self._grown())
        if self._graph is None:
            self.cache = FixedCache(self._grown(), positions, self._left + 1, self._end)
            self._graph = _captured(self._model, state, self.cache, ids, positions)
            self._conditions = self._conditions_of(ids, positions)
        return self._graph(ids, positions)

    def select(self, rows: Int[Tensor, " R"], sources: Int[Tensor, " S"] | None = None) -> None:
        """Keep these rows, in this order, as `KVCache.select`."""
        cache = self._grown()
        if cache is not None:
            cache.select(rows, sources)

    def _grown(self) -> Any:
        """The cache that grows, with what the graph wrote."""
        if isinstance(self.cache, FixedCache):
            self.cache, self._graph = self.cache.grown(), None
        return self.cache

    def _fits(self, ids: Tensor, positions: Positions) -> bool:
        """Whether the step can be a replay, of the graph if there is one."""
        held, known = self.cache.positions, positions.known_bounds
        if ids.shape[1] != 1 or held is None or known is None or not _on_gpu(ids):
            return False
        plain = all(
            each.unplaced is None
            and each.relations is None
            and each.extent is None
            and each.coordinates.dtype is torch.int64
            for each in (held, positions)
        )
        # A function mode sees calls of PyTorch, a dispatch mode its kernels; a replay has neither.
        modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
        watched = modes > 0 or any(self._hooks)
        trains = any(module.training for module in self._modules)
        if not plain or watched or trains or known[0] < 0 or known[1] >= self._end:
            return False
        if self._graph is None:
            return self._left + 1 >= MIN_STEPS
        # Else a step without the graph, in which a stack may drop keys outside its window. The next captures a new one.
        fits = not self.cache.is_full and known[1] <= self.cache.most
        return fits and self._conditions_of(ids, positions) == self._conditions

    def _conditions_of(self, ids: Tensor, positions: Positions) -> tuple[Any, ...]:
        """What a graph does not read again at each replay."""
        addresses = [
            weight.data_ptr()
            for module in self._modules
            for weight in module._parameters.values()
            if weight is not None
        ]
        device = ids.device.type
        precision = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        return addresses, precision, positions.coordinates.shape


class FixedLayerCache(LayerCache):
    """Keys, values and states of a fixed number of tokens. index: where the next token is written, `(1,)`."""

    def __init__(self, grown: LayerCache, capacity: int, index: Int[Tensor, "1"]):
        super().__init__()
        self.index = index
        for filled in grown.filled():
            batch, heads, length, width = filled.shape
            # Zeros, since a hidden key with a weight of 0 still multiplies its value.
            buffer = filled.new_zeros(batch, heads, capacity, width)
            buffer[:, :, :length] = filled
            self._buffers.append(buffer)
        self.length = capacity

    def append(self, k: Tensor, v: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        for buffer, added in zip(self._buffers, (k, v, *states), strict=True):
            buffer.index_copy_(2, self.index, added.to(buffer.dtype))
        return tuple(self._buffers)

    def grown(self, length: int) -> LayerCache:
        """A cache that grows, with the first `length` tokens."""
        cache = LayerCache()
        k_BHLE, v_BHLE, *states = (buffer[:, :, :length] for buffer in self._buffers)
        cache.append(k_BHLE, v_BHLE, *states)
        return cache


class FixedCache(KVCache):
    """A KVCache of a fixed capacity. written: the number of tokens in it. most: the greatest position that fits."""

    # A tensor created under `inference_mode` cannot be written to outside it.
    @torch.inference_mode(False)
    def __init__(self, grown: KVCache, new: Positions, steps: int, end: int):
        super().__init__(0)
        held = cast(Positions, grown.positions)
        self.written = held.length
        self.capacity = self.written + min(steps, max(MIN_CAPACITY, self.written))
        first = cast("tuple[int, int]", new.known_bounds)[1]
        self.most = min(first + self.capacity - self.written, end - 1)
        self.index = torch.full((1,), self.written, device=held.order.device)
        self.target = [FixedLayerCache(layer, self.capacity, self.index) for layer in grown.target]
        self.source, self._origin = grown.source, grown._origin
        self.last_ids = None if grown.last_ids is None else grown.last_ids.clone()
        rows = torch.broadcast_shapes(*(each.coordinates.shape[:-2] for each in (held, new)))
        # Until they are written, at the position of a key, so that the first and the last position are those of keys.
        coordinates = held.coordinates[..., -1:, :].expand(*rows, self.capacity, -1).clone()
        coordinates[..., : self.written, :] = held.coordinates
        order = torch.full((self.capacity,), NEVER, device=self.index.device)
        order[: self.written] = held.order
        least, most = held.bounds()
        self.positions = _fixed(held, coordinates, order, min(least, 0), max(most, self.most))

    @property
    def is_full(self) -> bool:
        return self.written == self.capacity

    def drop_before(self, first: int) -> None:
        """Keep all: tensors of a graph keep their sizes, and the mask hides what is outside the window."""

    def extend(self, new: Positions) -> Positions:
        held = cast(Positions, self.positions)
        held.order.index_copy_(0, self.index, new.order)
        added = new.coordinates.expand(*held.coordinates.shape[:-2], 1, -1)
        held.coordinates.index_copy_(-2, self.index, added)
        return held

    def orders(self, new: Positions) -> list[Tensor]:
        return [self.extend(new).order]

    def grown(self) -> KVCache:
        """A cache that grows, with the same tokens."""
        cache = KVCache(0)
        cache.target = [cast(FixedLayerCache, layer).grown(self.written) for layer in self.target]
        cache.source, cache._origin, cache.last_ids = self.source, self._origin, self.last_ids
        cache.positions = cast(Positions, self.positions).slice(0, self.written)
        return cache


def _fixed(like: Positions, coordinates: Tensor, order: Tensor, *bounds: int) -> Positions:
    least, most = bounds
    return replace(
        like, coordinates=coordinates, order=order, cached_bounds=(least, most, coordinates)
    )


def _captured(
    model: Generates, state: Any, cache: FixedCache, ids_R1: Tensor, positions: Positions
) -> Callable[[Tensor, Positions], Tensor]:
    """Return a function that takes the next step by replaying the graph of one."""
    with torch.inference_mode(False):  # as the cache
        ids, coordinates = ids_R1.clone(), positions.coordinates.clone()
        at = _fixed(positions, coordinates, positions.order.clone(), 0, cache.most)
    last_ids = cache.last_ids
    device = ids.device.type

    def step() -> Tensor:
        # What autocast keeps may be freed before the graph is.
        with torch.autocast(
            device,
            torch.get_autocast_dtype(device),
            torch.is_autocast_enabled(device),
            cache_enabled=False,
        ):
            return model.step(state, ids, at, cache)

    def step_and_advance() -> Tensor:
        scores_R1V = step()
        if last_ids is not None:
            last_ids.copy_(cast(Tensor, cache.last_ids))
            cache.last_ids = last_ids
        cache.index.add_(1)
        return scores_R1V

    def warm_up() -> None:
        step()  # writes where the first replay writes the same
        cache.last_ids = last_ids

    with torch.cuda.device_of(ids):  # a graph is captured on the current device
        replay = _graph(warm_up, step_and_advance)

    def run(new_ids: Tensor, new: Positions) -> Tensor:
        ids.copy_(new_ids)
        at.coordinates.copy_(new.coordinates)
        at.order.copy_(new.order)
        cache.written += 1
        return replay()

    return run


def _graph(warm_up: Callable[[], None], step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Capture a step; return a function that replays it and returns its scores."""
    # On a stream of its own, as PyTorch asks of what comes before a capture.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores_R1V = step()

    def replay() -> Tensor:
        graph.replay()
        return scores_R1V

    return replay


def _is_graphable(model: nn.Module) -> bool:
    """Whether a step on hidden keys and fixed tensors computes the same: nothing depends on the number of keys.

    Modules from elsewhere and replaced `forward`s may read what a graph cannot.
    """
    parts = list(model.modules())
    known = all(
        type(part).__module__.partition(".")[0] in ("jarilab", "torch")
        and "forward" not in vars(part)
        for part in parts
    )
    encodings = [part for part in parts if isinstance(part, Encoding)]
    # A bias between sequences may read the bounds of the source's positions.
    return known and all(
        each.hooks <= GRAPHED_HOOKS
        and not (each.site.cross and "bias" in each.hooks)
        and not each.n_states
        and not each.depends_on_length
        for each in encodings
    )


def _on_gpu(ids: Tensor) -> bool:
    return ids.device.type == "cuda"
