"""Encodings for the hooks that the package's own leave alone. Used as specs: toy_encodings.py:Wave."""

from typing import final

import torch

from jarilab import Encoding, Positions, Site


@final
class Wave(Encoding):
    """Like DETR: a wave of every coordinate, added to queries and keys in every attention."""

    axes = (1, 2)
    shift_invariant = False

    def __init__(self, site: Site):
        super().__init__(site)

    def inject(self, x: torch.Tensor, pos: Positions) -> torch.Tensor:
        speed_A = 3.0 ** torch.arange(len(pos.axes))
        phase_L1 = (pos.coordinates * speed_A).sum(-1, keepdim=True)
        return x + torch.sin(phase_L1 / (1 + torch.arange(x.shape[-1]))).to(x.dtype)


@final
class Steps(Encoding):
    """Minus the steps along the first coordinate and ten times those along the second, the same in all heads."""

    axes = (1, 2)

    def __init__(self, site: Site):
        super().__init__(site)

    def bias(self, q_pos: Positions, k_pos: Positions) -> torch.Tensor:
        away_QKA = (q_pos.coordinates.unsqueeze(-2) - k_pos.coordinates.unsqueeze(-3)).abs()
        cost_A = torch.tensor([1.0, 10.0])[: len(q_pos.axes)]
        bias_QK = -(away_QKA * cost_A).sum(-1)
        return bias_QK.unsqueeze(-3).repeat_interleave(self.site.n_heads, -3)
