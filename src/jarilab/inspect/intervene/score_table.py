"""The scores of one attention call while edits change them: what an edit of a forward acts on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.record.calls import allowed_links


@dataclass(eq=False)
class ScoreTable:
    """Scores of one call, and which keys each query may look at, while edits change them.

    scores, allowed: `(B, H, Q, K)`. changed: `(B, H, Q)`, True where an edit did something. queries, keys: their order.
    """

    site: str
    scores: Float[Tensor, "B H Q K"]
    allowed: Bool[Tensor, "B H Q K"]
    changed: Bool[Tensor, "B H Q"]
    queries: Int[Tensor, " Q"]
    keys: Int[Tensor, " K"]
    causal: bool

    @staticmethod
    def of(site: str, call: AttentionCall) -> ScoreTable:
        geometry = call.geometry
        scores = definition.scores(call)
        allowed = allowed_links(call).expand_as(scores).clone()
        return ScoreTable(
            site=site,
            scores=scores,
            allowed=allowed,
            changed=torch.zeros_like(allowed[..., 0]),
            queries=geometry.q_pos.order,
            keys=geometry.k_pos.order,
            causal=geometry.encoding.site.causal,
        )

    def copies(self, count: int) -> list[ScoreTable]:
        """The same table, its batch cut into so many copies: what changes in one of them changes here."""
        of_copies = zip(
            self.scores.chunk(count),
            self.allowed.chunk(count),
            self.changed.chunk(count),
            strict=True,
        )
        rest = self.queries, self.keys, self.causal
        return [ScoreTable(self.site, *of_copy, *rest) for of_copy in of_copies]

    def head(self, head: int | None) -> slice:
        """Its row of the tables, all of them for None. Raises UserError where there is no such head."""
        heads = self.scores.shape[1]
        if head is None:
            return slice(None)
        if not 0 <= head < heads:
            raise UserError(f"{self.site} has the heads 0 to {heads - 1}, got {head}")
        return slice(head, head + 1)

    def weights(self) -> Float[Tensor, "B H Q K"]:
        """As the definition has it: rows sum to 1, hidden keys have 0, a row without any key is 0 throughout."""
        empty_BHQ1 = ~self._has_key()
        hidden = ~self.allowed & ~empty_BHQ1
        weights = self.scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return weights.masked_fill(empty_BHQ1, 0.0)

    def output(self, call: AttentionCall, before: Float[Tensor, "B H Q W"]) -> Tensor:
        """The attention's output: from these weights where something has changed, `before` elsewhere."""
        if not bool(self.changed.any()):
            return before
        after = definition.weighted(call, self.weights())
        after = after.masked_fill(~self._has_key(), 0.0).to(before.dtype)
        return torch.where(self.changed.unsqueeze(-1), after, before)

    def _has_key(self) -> Bool[Tensor, "B H Q 1"]:
        return self.allowed.any(-1, keepdim=True)
