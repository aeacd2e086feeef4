"""Positions of tokens in a swapped model of transformers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor
from jarilab.positions.coordinates import Positions


@dataclass(frozen=True, eq=False)
class KeyPositions:
    """The positions that keys may have. A cache stores none.

    in_order: 0, 1, 2, ... counted: of visible tokens alone, from 0 on. visible: False for keys that no query sees.
    by_distance: the encoding depends on distances alone, so that padding on the left changes nothing.
    """

    in_order: Positions
    counted: Positions
    visible: Bool[Tensor, "#B K"]
    by_distance: bool

    @property
    def default(self) -> Positions:
        """Without `position_ids`, for which transformers counts padding, too."""
        return self.in_order if self.by_distance else self.counted

    def of(self, ids_BQ: Int[Tensor, "#B Q"], window: int | None, *, caches: bool) -> Positions:
        """By the `position_ids` of queries.

        window: of a layer whose cache keeps the keys in it. caches: later queries may see these keys.
        """
        older = self.in_order.length - ids_BQ.shape[1]
        candidates = [(self.in_order, self.default), (self.counted, self.counted)]
        if older and window is not None and older >= window - 1:
            candidates = self._from_last(ids_BQ)
        elif window is not None and not self.by_distance:
            # As the keys leave the cache, the padding among them is forgotten: the last position must not count it.
            candidates = candidates[1:]
        if not older and (window is None or not caches):
            return self._at_once(ids_BQ)
        for like, positions in candidates:
            is_equal = ids_BQ == like.index()[..., older:]
            if bool((is_equal | ~self.visible[:, older:]).all()):
                return positions
        raise UserError(
            "a swapped model stores no positions in its cache: expected position_ids that count the tokens that "
            f"attention_mask shows, got {ids_BQ[0].tolist()!s:.80}; pass position_ids=(attention_mask.cumsum(-1) - "
            "1).clamp(min=0), or use_cache=False"
        )

    def _at_once(self, ids_BK: Int[Tensor, "#B K"]) -> Positions:
        """Of queries that are all the keys."""
        is_default_B1 = (ids_BK == self.in_order.index()).all(-1, keepdim=True)
        if not torch.compiler.is_compiling() and bool(is_default_B1.all()):
            return self.default
        index_BK = torch.where(is_default_B1, self.default.index(), ids_BK)
        return Positions(index_BK.unsqueeze(-1), self.in_order.order)

    def _from_last(self, ids_BQ: Int[Tensor, "#B Q"]) -> list[tuple[Positions, Positions]]:
        """Counted back from the last query. Nothing if a hidden token between others may or may not count."""
        before_BK = self.visible.cumsum(-1)
        later_BK = before_BK[:, -1:] - before_BK
        is_between_BK = ~self.visible & (before_BK > 0) & (later_BK > 0)
        if self.by_distance and bool(is_between_BK.any()):
            return []
        index_BK = (ids_BQ[:, -1:] - later_BK).clamp_min(0)
        positions = Positions(index_BK.unsqueeze(-1), self.in_order.order)
        return [(positions, positions)]
