"""Open and ended hypotheses of a beam search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from jarilab.core.shapes import Float, Int, Tensor

NEVER = float("-inf")


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One answer to one source.

    ids: `(L,)`, the written tokens after the first, with the end if it came. log_probabilities: `(L,)`. total: their
    sum. score: `total / L ** length_penalty`, by which answers are ranked.
    """

    ids: Int[Tensor, " L"]
    log_probabilities: Float[Tensor, " L"]
    total: float
    score: float


def rank(totals: Tensor, lengths: Tensor, length_penalty: float) -> Tensor:
    """Minus the logarithm of minus the score `total / length ** length_penalty`, of which a power may overflow."""
    return length_penalty * lengths.double().log() - totals.double().neg().log()


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """N hypotheses of each of B sources: sums and lengths `(B, N)`, tokens and log-probabilities `(B, N, L)`.

    A sum of minus infinity marks an unused slot.
    """

    totals: Tensor
    lengths: Tensor
    ids: Tensor
    logs: Tensor

    @staticmethod
    def empty(batch: int, number: int, total: float, device: torch.device) -> Hypotheses:
        totals_BN = torch.full((batch, number), total, device=device)
        ids_BN0 = torch.empty(batch, number, 0, dtype=torch.long, device=device)
        return Hypotheses(totals_BN, torch.ones_like(totals_BN), ids_BN0, ids_BN0.float())

    def ranks(self, length_penalty: float) -> Tensor:
        """Numbers in the order of the scores."""
        return rank(self.totals, self.lengths, length_penalty)

    def pick(self, index_BM: Tensor) -> Hypotheses:
        """Select hypotheses of each source."""
        index_BML = index_BM.unsqueeze(-1).expand(-1, -1, self.ids.shape[2])
        return Hypotheses(
            self.totals.gather(1, index_BM),
            self.lengths.gather(1, index_BM),
            self.ids.gather(1, index_BML),
            self.logs.gather(1, index_BML),
        )

    def of(self, sources: Tensor) -> Hypotheses:
        """Select sources."""
        totals, lengths = self.totals[sources], self.lengths[sources]
        return Hypotheses(totals, lengths, self.ids[sources], self.logs[sources])

    def extended(
        self, totals_BN: Tensor, ids_BN: Tensor, logs_BN: Tensor, length: int
    ) -> Hypotheses:
        """Extend each hypothesis by one token."""
        return Hypotheses(
            totals_BN,
            torch.full_like(totals_BN, length),
            torch.cat((self.ids, ids_BN.unsqueeze(-1)), -1),
            torch.cat((self.logs, logs_BN.unsqueeze(-1)), -1),
        )

    def beside(self, longer: Hypotheses) -> Hypotheses:
        """Concatenate with hypotheses of at least as many tokens, padding these."""
        padding = (0, longer.ids.shape[2] - self.ids.shape[2])
        ids, logs = functional.pad(self.ids, padding), functional.pad(self.logs, padding)
        return Hypotheses(
            torch.cat((self.totals, longer.totals), 1),
            torch.cat((self.lengths, longer.lengths), 1),
            torch.cat((ids, longer.ids), 1),
            torch.cat((logs, longer.logs), 1),
        )

    def listed(self, length_penalty: float) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source as a list."""
        totals, lengths = self.totals.tolist(), self.lengths.tolist()
        penalized = (-self.ranks(length_penalty).neg().exp()).tolist()
        listed: list[list[Hypothesis]] = []
        for b, of_source in enumerate(totals):
            hypotheses = []
            for n, total in enumerate(of_source):
                if total > NEVER:
                    end = int(lengths[b][n])
                    ids, logs = self.ids[b, n, :end], self.logs[b, n, :end]
                    hypotheses.append(Hypothesis(ids, logs, total, penalized[b][n]))
            listed.append(hypotheses)
        return listed
