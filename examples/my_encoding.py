"""An encoding of one's own, in one file, without touching the package.

    jarilab laws examples/my_encoding.py:Kerple
    jarilab train arithmetic --encoding examples/my_encoding.py:Kerple:slope=0.5 --out runs/kerple

The logarithmic bias of KERPLE (Chi et al. 2022, equation 4, with p and a fixed instead of learnt): a query minds far
keys less, but ever more slowly. One hook is overridden; everything else (caches, padding, kernels, capture, the report)
follows from it.
"""

import math
from typing import Any, final

from jarilab import Encoding, Oracle, Positions, Site
from jarilab.core.shapes import Float, Tensor
from jarilab.positions.coordinates import distance


def _score(
    encoding: Any, q: Any, k: Any, i: int | float, j: int | float, head: int, scale: float
) -> float:
    """The same formula once more, by hand, for a single query and key: the laws compare the two."""
    return scale * float(q @ k) - encoding.slope * math.log(1 + abs(i - j))


@final
class Kerple(Encoding):
    """Adds `-slope * log(1 + |i - j|)` to the score of every head.

    Source: KERPLE (Chi et al. 2022), equation 4.

    slope: how fast the bias falls.
    """

    oracle = Oracle(score=_score)

    def __init__(self, site: Site, *, slope: float = 1.0):
        super().__init__(site)
        self.slope = slope

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        away = distance(q_pos, k_pos).abs().double()
        # In float64 and then float32, like everything that follows from positions alone.
        bias = (-self.slope * away.log1p()).float().unsqueeze(-3)
        return bias.expand(*bias.shape[:-3], self.site.n_heads, -1, -1)
