"""An encoding of one's own for images, in one file, without touching the package.

    jarilab laws examples/my_encoding2d.py:Rings
    jarilab train digits --encoding examples/my_encoding2d.py:Rings --out runs/rings

One learned number for each head and ring of distance around a patch: `table2d` with everything at the same distance put
together, so that an image may be turned by right angles or mirrored and no score changes.
"""

import math
from typing import Annotated, Any, final

import torch
from annotated_types import Ge
from torch import nn

from jarilab import Encoding, Oracle, Positions, Site
from jarilab.core.shapes import Float, Tensor
from jarilab.positions.coordinates import offsets, undefined_pairs


def _score(encoding: Any, q: Any, k: Any, i: Any, j: Any, head: int, scale: float) -> float:
    """The same formula once more, by hand, for a single query and key: the laws compare the two."""
    ring = round(math.hypot(i.row - j.row, i.column - j.column))
    return scale * float(q @ k) + float(
        encoding.table.detach()[min(ring, encoding.rings - 1), head]
    )


@final
class Rings(Encoding):
    """Adds a learned bias `b[head, round(distance)]` to the score; patches beyond the last ring share it.

    rings: number of distances with a bias of their own.
    """

    oracle = Oracle(score=_score)
    axes = (2,)

    def __init__(self, site: Site, *, rings: Annotated[int, Ge(1)] = 8):
        super().__init__(site)
        self.rings = rings
        self.table = nn.Parameter(torch.empty(rings, site.n_heads))
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        nn.init.normal_(parameter, std=0.3, generator=generator)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        down, right = (ahead.double() for ahead in offsets(q_pos, k_pos))
        ring = torch.hypot(down, right).round().long().clamp_max(self.rings - 1)
        bias = nn.functional.embedding(ring, self.table).movedim(-1, -3)
        apart = undefined_pairs(q_pos, k_pos)
        return bias if apart is None else bias.masked_fill(apart.unsqueeze(-3), 0.0)
