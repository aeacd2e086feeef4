"""What the rest of the package asks of a model, and the registry of models."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jari.attention.cache import KVCache
from jari.positions import Positions, Tokens
from jari.registry import Registry
from jari.shapes import Float, Int, Tensor

registry = Registry("model", "jari.models")


@runtime_checkable
class Generates(Protocol):
    """A model that can write an answer token by token."""

    def start(self, source: Tokens) -> Any:
        """Read the source; what comes back is handed to every `step`."""
        ...

    def step(
        self, state: Any, ids: Int[Tensor, "B L"], positions: Positions, cache: KVCache | None
    ) -> Float[Tensor, "B L V"]:
        """Scores of the next token after each of `ids`, which stand at `positions`; earlier ones are in the cache."""
        ...

    def new_cache(self) -> KVCache: ...
