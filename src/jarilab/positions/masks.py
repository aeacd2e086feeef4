"""Who may attend to whom. True always means: may attend.

A Mask is a set of rules, kept symbolic so that a kernel can use its own flag for them; `dense` writes it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor
from jarilab.positions.coordinates import Positions

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of the numbers of a row, a query and a key: whether the query may attend to the key."""


@dataclass(frozen=True, eq=False)
class Mask:
    """Rules that must all hold for a query to attend to a key.

    causal: only to itself and what came before, by `Positions.order`, so one query at the end sees every key.
    window: only to keys fewer than this many steps away in order.
    keys: `(B, K)`, False on padding.
    documents: ids of the queries' and the keys' documents, `(B, Q)` and `(B, K)`: only within the same one.
    pairs: `(Q, K)` or `(B, Q, K)`, any rule of one's own.
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

    @property
    def plain_causal(self) -> bool:
        """Nothing but the causal rule."""
        others = (self.window, self.keys, self.documents, self.pairs)
        return self.causal and all(rule is None for rule in others)

    @property
    def of_keys(self) -> bool:
        """Nothing but padding, which hides the same keys from all queries."""
        others = (self.causal or None, self.window, self.documents, self.pairs)
        return all(rule is None for rule in others)

    @property
    def rows(self) -> int | None:
        """How many rows of a batch the rules tell apart; None where they are the same for all."""
        documents = None if self.documents is None else self.documents[0]
        of_rows = (self.keys, documents, self._pairs())
        counts = [rule.shape[0] for rule in of_rows if rule is not None]
        count = max([1, *counts])
        return count if count > 1 else None

    def hides_nothing(self, q_pos: Positions, k_pos: Positions) -> bool:
        """Whether it is one query behind all keys, as where tokens are written, which sees them all. Asks where the
        numbers are, so it is for those on a CPU. False where it would take longer to find out."""
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

    def rule(self, q_pos: Positions, k_pos: Positions) -> Rule | None:
        """All rules as one function of the numbers of a row, a query and a key, which compares a few numbers for each
        pair and keeps none; None if nothing is hidden. Raises UserError for padding of another number of keys."""
        rules: list[Rule] = []
        # Views: a compiled kernel is compiled anew, and complains, where two of its tensors are one at times.
        q_order, k_order = q_pos.order[:], k_pos.order[:]
        if self.causal:
            rules.append(lambda b, q, k: q_order[q] >= k_order[k])
        if self.window is not None:
            window = self.window
            rules.append(lambda b, q, k: (q_order[q] - k_order[k]).abs() < window)
        if self.keys is not None:
            keys = self.keys
            if keys.shape[-1] != k_pos.length:
                raise UserError(
                    f"the padding mask covers {keys.shape[-1]} keys, but there are {k_pos.length}"
                )
            rules.append(lambda b, q, k: keys[_own(keys, b), k])
        if self.documents is not None:
            of_q, of_k = (ids[:] for ids in self.documents)
            rules.append(lambda b, q, k: of_q[_own(of_q, b), q] == of_k[_own(of_k, b), k])
        pairs = self._pairs()
        if pairs is not None:
            rules.append(lambda b, q, k: pairs[_own(pairs, b), q, k])
        if not rules:
            return None

        def all_of_them(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
            allowed = rules[0](b, q, k)
            for one in rules[1:]:
                allowed = allowed & one(b, q, k)
            return allowed

        return all_of_them

    def dense(self, q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "B 1 Q K"] | None:
        """All rules as one tensor whose first and third axis may be 1 for broadcasting; None if nothing is hidden."""
        return self.part(q_pos, k_pos, slice(0, q_pos.length), slice(0, k_pos.length))

    def part(
        self, q_pos: Positions, k_pos: Positions, rows: slice, keys: slice
    ) -> Bool[Tensor, "B 1 Q K"] | None:
        """The same for some queries and keys that follow each other."""
        if self.plain_causal:  # without the numbers of rows, queries and keys
            return (q_pos.order[rows].unsqueeze(-1) >= k_pos.order[keys])[None, None]
        allows = self.rule(q_pos, k_pos)
        if allows is None:
            return None
        device = q_pos.order.device
        b_B111 = torch.arange(self.rows or 1, device=device).view(-1, 1, 1, 1)
        q_Q1 = torch.arange(rows.start, rows.stop, device=device).unsqueeze(-1)
        k_K = torch.arange(keys.start, keys.stop, device=device)
        allowed = allows(b_B111, q_Q1, k_K)
        missing_axes = 4 - allowed.ndim
        return allowed[(None,) * missing_axes]


def _own(of_rows: Tensor, b: Tensor) -> Tensor:
    """The row that row b of a batch reads: its own, or the one that all share."""
    return b if of_rows.shape[0] > 1 else torch.zeros_like(b)
