"""Attention masks. True always means: may attend.

A Mask is a set of rules, kept symbolic so that kernels can use flags for them. `dense` materializes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor
from jarilab.positions.coordinates import Positions

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the indices of batch row, query and key: whether the query may attend to the key."""


@dataclass(frozen=True, eq=False)
class Mask:
    """Rules for attention; a query may attend to a key if all of them hold.

    causal: only to itself and earlier tokens, by `Positions.order`.
    window: only to keys fewer than this many steps away, by `Positions.order`.
    keys: `(B, K)`, False on padding.
    documents: document IDs of queries and keys, `(B, Q)` and `(B, K)`: only within one document.
    pairs: `(Q, K)` or `(B, Q, K)`, any other rule.

    Raises UserError for a window below 1, for `keys` or `pairs` that are not boolean, and for rules of another shape.
    """

    causal: bool = False
    window: int | None = None
    keys: Bool[Tensor, "B K"] | None = None
    documents: tuple[Int[Tensor, "B Q"], Int[Tensor, "B K"]] | None = None
    pairs: Bool[Tensor, "*B Q K"] | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UserError(
                f"a window holds at least the query itself: expected 1 or more, got {self.window}"
            )
        for name in ("keys", "pairs"):
            rule = getattr(self, name)
            if rule is not None and rule.dtype is not torch.bool:
                raise UserError(
                    f"mask {name} must be boolean, True = may attend; got {rule.dtype}: convert with .bool()"
                )
        self._check_axes()

    def _check_axes(self) -> None:
        """Raises UserError for rules with a wrong number of axes, or of different numbers of rows."""
        rules = [("keys", self.keys, "(B, K)"), ("pairs", self.pairs, "(Q, K) or (B, Q, K)")]
        rules += [("documents", ids, "(B, Q) and (B, K)") for ids in self.documents or ()]
        for name, rule, axes in rules:
            if rule is not None and rule.ndim not in ((2, 3) if name == "pairs" else (2,)):
                raise UserError(
                    f"mask {name} must be {axes}, got {tuple(rule.shape)}; all heads share a mask: remove their axis, "
                    "or add a missing axis of rows with unsqueeze(0)"
                )
        counts = self._row_counts()
        if any(count not in (1, max(counts)) for count in counts):
            raise UserError(
                f"the rules of a mask must be of 1 row or of equally many, got {counts}; select the same rows of each"
            )

    @property
    def plain_causal(self) -> bool:
        """Whether only the causal rule is set."""
        others = (self.window, self.keys, self.documents, self.pairs)
        return self.causal and all(rule is None for rule in others)

    @property
    def of_keys(self) -> bool:
        """Whether no rule but `keys` is set."""
        others = (self.causal or None, self.window, self.documents, self.pairs)
        return all(rule is None for rule in others)

    @property
    def rows(self) -> int | None:
        """The number of batch rows with rules of their own; None if all rows share them."""
        count = max([1, *self._row_counts()])
        return count if count > 1 else None

    def _row_counts(self) -> list[int]:
        """The number of batch rows of each rule that has rows."""
        rules = (self.keys, *(self.documents or ()), self._pairs())
        return [rule.shape[0] for rule in rules if rule is not None]

    def hides_nothing(self, q_pos: Positions, k_pos: Positions) -> bool:
        """Whether the only query may attend to every key, as in generation.

        False, without a check, for several queries or for rules other than causal and window. Synchronizes an
        accelerator.
        """
        others = (self.keys, self.documents, self.pairs)
        if q_pos.length != 1 or not k_pos.length or any(rule is not None for rule in others):
            return False
        query = int(q_pos.order)
        if self.window is None:
            return not self.causal or int(k_pos.order.max()) <= query
        least, most = map(int, k_pos.order.aminmax())
        last = query if self.causal else query + self.window - 1
        return most <= last and query - least < self.window

    def _pairs(self) -> Bool[Tensor, "#B Q K"] | None:
        if self.pairs is None or self.pairs.ndim == 3:
            return self.pairs
        return self.pairs[None]

    def _check_sizes(self, queries: int, keys: int) -> None:
        """Raises UserError for rules of another number of queries or keys."""
        if self.keys is not None and self.keys.shape[-1] != keys:
            raise UserError(
                f"expected a padding mask of {keys} keys, got {self.keys.shape[-1]}; pass one value per key"
            )
        sizes = {}
        if self.documents is not None:
            sizes["documents"] = [ids.shape[-1] for ids in self.documents]
        if self.pairs is not None:
            sizes["pairs"] = list(self.pairs.shape[-2:])
        for name, size in sizes.items():
            if size != [queries, keys]:
                raise UserError(
                    f"expected mask {name} of {queries} queries and {keys} keys, got {size[0]} and {size[1]}; select "
                    "those of these queries and keys"
                )

    def rule(self, q_pos: Positions, k_pos: Positions) -> Rule | None:
        """All rules as one function of the indices of batch row, query and key; None if there are no rules.

        Raises UserError if a rule covers another number of queries or keys.
        """
        self._check_sizes(q_pos.length, k_pos.length)
        rules: list[Rule] = []
        # Views, since a compiled kernel is recompiled if two of its tensors are sometimes the same object.
        q_order, k_order = q_pos.order[:], k_pos.order[:]
        if self.causal:
            rules.append(lambda b, q, k: q_order[q] >= k_order[k])
        if self.window is not None:
            window = self.window
            rules.append(lambda b, q, k: (q_order[q] - k_order[k]).abs() < window)
        if self.keys is not None:
            keys = self.keys
            rules.append(lambda b, q, k: keys[_row(keys, b), k])
        if self.documents is not None:
            q_ids, k_ids = (ids[:] for ids in self.documents)
            rules.append(lambda b, q, k: q_ids[_row(q_ids, b), q] == k_ids[_row(k_ids, b), k])
        pairs = self._pairs()
        if pairs is not None:
            rules.append(lambda b, q, k: pairs[_row(pairs, b), q, k])
        if not rules:
            return None

        def conjunction(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
            allowed = rules[0](b, q, k)
            for rule in rules[1:]:
                allowed = allowed & rule(b, q, k)
            return allowed

        return conjunction

    def of_blocks(
        self, q_pos: Positions, k_pos: Positions, size: int
    ) -> tuple[Bool[Tensor, "#B Q K"], Bool[Tensor, "#B Q K"]] | None:
        """Whether any pair of a block of `size` queries and keys may be allowed, and whether all pairs are.

        Computed from the least and greatest order, document ID and so on of each block. The first answer may be True
        where no pair is allowed. None for the rule `pairs`, which needs every pair.
        """
        if self.pairs is not None:
            return None
        (q_least, q_most), (k_least, k_most) = (
            _blocks(pos.order[None], size) for pos in (q_pos, k_pos)
        )
        q_least, q_most = q_least.unsqueeze(-1), q_most.unsqueeze(-1)
        k_least, k_most = k_least.unsqueeze(-2), k_most.unsqueeze(-2)
        some = every = torch.ones_like(q_least >= k_least)
        if self.causal:
            some, every = some & (q_most >= k_least), every & (q_least >= k_most)
        if self.window is not None:
            apart = torch.maximum(q_least - k_most, k_least - q_most)
            farthest = torch.maximum(q_most - k_least, k_most - q_least)
            some, every = some & (apart < self.window), every & (farthest < self.window)
        if self.keys is not None:
            none, all_kept = _blocks(self.keys.long(), size)
            some, every = some & (all_kept > 0).unsqueeze(-2), every & (none > 0).unsqueeze(-2)
        if self.documents is not None:
            (q_first, q_last), (k_first, k_last) = (_blocks(ids, size) for ids in self.documents)
            q_first, q_last = q_first.unsqueeze(-1), q_last.unsqueeze(-1)
            k_first, k_last = k_first.unsqueeze(-2), k_last.unsqueeze(-2)
            some = some & (q_first <= k_last) & (k_first <= q_last)
            every = every & (q_first == k_last) & (k_first == q_last)
        return some, every

    def dense(self, q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "B 1 Q K"] | None:
        """The mask as a tensor; its first and third axis may be 1. None if there are no rules."""
        return self.part(q_pos, k_pos, slice(0, q_pos.length), slice(0, k_pos.length))

    def part(
        self, q_pos: Positions, k_pos: Positions, rows: slice, keys: slice
    ) -> Bool[Tensor, "B 1 Q K"] | None:
        """`dense` for consecutive queries `rows` and keys."""
        if self.plain_causal:  # needs no indices
            return (q_pos.order[rows].unsqueeze(-1) >= k_pos.order[keys])[None, None]
        rule = self.rule(q_pos, k_pos)
        if rule is None:
            return None
        device = q_pos.order.device
        b_B111 = torch.arange(self.rows or 1, device=device).view(-1, 1, 1, 1)
        q_Q1 = torch.arange(rows.start, rows.stop, device=device).unsqueeze(-1)
        k_K = torch.arange(keys.start, keys.stop, device=device)
        allowed = rule(b_B111, q_Q1, k_K)
        missing_axes = 4 - allowed.ndim
        return allowed[(None,) * missing_axes]


def _row(rows: Tensor, b: Tensor) -> Tensor:
    """Index of batch row b in `rows`, whose first axis may be 1."""
    return b if rows.shape[0] > 1 else torch.zeros_like(b)


def _blocks(x: Int[Tensor, "B L"], size: int) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B N"]]:
    """The least and the greatest of each block of `size` numbers; the last block may be shorter."""
    missing = -x.shape[1] % size
    if missing:
        x = torch.cat((x, x[:, -1:].expand(-1, missing)), 1)
    least, most = x.unflatten(1, (-1, size)).aminmax(dim=-1)
    return least, most
