"""T5's scalar bias: *Exploring the Limits of Transfer Learning* (Raffel et al. 2020), section 2.1, and its code."""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import precise_on, whole_numbers
from jarilab.positions.coordinates import Positions, distance, unrelated


@final
@registry.register("t5")
class T5(Encoding):
    """Adds to the score one learned number per head and bucket of distance; near distances have a bucket each, far ones
    share buckets that grow like the logarithm, and all beyond `distance` share the last. One table for all layers.

    The bias is added to the score after scaling. Where the site is causal all buckets look back; else half of them look
    each way. Not in cross-attention by default.

    buckets: rows of the table. distance: from here on all distances share a bucket. scaled: false leaves q.k undivided,
        as T5 was trained; queries then have to begin smaller, by 1 / sqrt(E).
    """

    integer_only = True

    def __init__(
        self,
        site: Site,
        *,
        buckets: Annotated[int, Ge(2)] = 32,
        distance: Annotated[int, Ge(2)] = 128,
        scaled: bool = True,
    ):
        super().__init__(site)
        one_way = buckets if site.causal else buckets // 2
        if not site.causal and buckets % 2:
            raise UserError(
                f"t5 shares its buckets between both directions: expected an even number, got {buckets}"
            )
        if one_way < 2 or distance <= one_way // 2:
            raise UserError(
                f"t5 counts {one_way // 2} distances one by one before its logarithmic buckets: expected at least 2 "
                f"buckets each way and a distance above that, got buckets={buckets}, distance={distance}"
            )
        self.buckets, self.distance, self.scaled = buckets, distance, scaled
        self.scale_factor = 1.0 if scaled else math.sqrt(site.head_width)
        self.table = nn.Parameter(torch.empty(buckets, site.heads))
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        nn.init.normal_(parameter, std=0.3, generator=generator)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        ahead = whole_numbers("t5", distance(q_pos, k_pos))
        # Beyond `distance` all share a bucket: look up those up to there, 2 distance + 1 rows, and pick from them. The
        # gradient of picking whole columns is cheap, that of a lookup for every pair is not.
        end, heads = self.distance, self.site.heads
        near_R = torch.arange(-end, end + 1, device=ahead.device)
        row_RH = nn.functional.embedding(self.bucket(near_R), self.table)
        row_HR = row_RH.t().contiguous()
        picked = (ahead.clamp(-end, end) + end).flatten()
        bias_H = row_HR.index_select(1, picked).view(heads, *ahead.shape)
        bias = bias_H.movedim(0, -3)
        apart = unrelated(q_pos, k_pos)
        return bias if apart is None else bias.masked_fill(apart.unsqueeze(-3), 0.0)

    def bucket(self, ahead: Int[Tensor, "*P"]) -> Int[Tensor, "*P"]:
        """The bucket of each distance key - query. The logarithm is taken in float64, whatever the model's precision:
        bfloat16 puts up to 17 distances into the wrong bucket."""
        if self.site.causal:
            buckets = self.buckets
            first, away = torch.zeros_like(ahead), (-ahead).clamp_min(0)
        else:
            buckets = self.buckets // 2
            first, away = (ahead > 0).long() * buckets, ahead.abs()
        exact = buckets // 2
        logarithmic = buckets - exact
        precise_away = away.clamp_min(1).to(precise_on(ahead.device))
        ratio = (precise_away / exact).log() / math.log(self.distance / exact)
        far = exact + (ratio * logarithmic).long()
        far = far.clamp_max(buckets - 1)
        return first + torch.where(away < exact, away, far)
