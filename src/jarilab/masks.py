"""Who may attend to whom. True always means: may attend.

A Mask is a set of rules, kept symbolic so that a kernel can use its own flag for them; `dense` writes it out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.errors import UserError
from jarilab.positions import Positions
from jarilab.shapes import Bool, Int, Tensor


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

    def dense(self, q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "B 1 Q K"] | None:
        """All rules as one tensor whose first and third axis may be 1 for broadcasting; None if nothing is hidden."""
        rules: list[Tensor] = []
        steps_QK = q_pos.order.unsqueeze(-1) - k_pos.order.unsqueeze(-2)
        if self.causal:
            rules.append((steps_QK >= 0)[None, None])
        if self.window is not None:
            rules.append((steps_QK.abs() < self.window)[None, None])
        if self.keys is not None:
            if self.keys.shape[-1] != k_pos.length:
                raise UserError(
                    f"the padding mask covers {self.keys.shape[-1]} keys, but there are {k_pos.length}"
                )
            rules.append(self.keys[:, None, None, :])
        if self.documents is not None:
            q_BQ, k_BK = self.documents
            rules.append((q_BQ.unsqueeze(-1) == k_BK.unsqueeze(-2))[:, None])
        if self.pairs is not None:
            shared = self.pairs.ndim == 2
            rules.append(self.pairs[None, None] if shared else self.pairs[:, None])
        if not rules:
            return None
        allowed = rules[0]
        for rule in rules[1:]:
            allowed = allowed & rule
        return allowed
