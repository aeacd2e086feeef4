"""Scores that grow with the logarithm of the length: *Overcoming a Theoretical Limitation of Self-Attention* (Chiang
and Cholak 2022), section 5.3; Su's log-n scaling of 2021, which Qwen-7B has."""

from __future__ import annotations

import math
from typing import Annotated, final

from annotated_types import Ge

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import ASKED, Encoding, Side, Site, registry
from jarilab.encodings.numbers import length_read, precise_on
from jarilab.positions.coordinates import Positions


@final
@registry.register("log_length", "logn", "log_n")
class LogLength(Encoding):
    """Multiplies queries by log n, so that a softmax over more keys stays as sharp: n is the query's own place, counted
    from 1, where it never sees later keys, and else the number of keys, which is the place of the last. In an encoder
    it says nothing of order: use it in a sum, `rotary+log_length`.

    trained_length: divide by its logarithm, so that texts of that length have the scores they had. only_beyond: leave
        shorter ones as they are, too; Qwen's.
    """

    shift_invariant = False
    keeps_norms = False
    length_decides = True

    def __init__(
        self,
        site: Site,
        *,
        trained_length: Annotated[int, Ge(2)] | None = None,
        only_beyond: bool = False,
    ):
        super().__init__(site)
        if only_beyond and trained_length is None:
            raise UserError(
                "log_length: only_beyond=true leaves texts up to the trained length as they are, and no length was "
                "given; write log_length:trained_length=512,only_beyond=true"
            )
        self.trained_length, self.only_beyond = trained_length, only_beyond
        self.hears_order = site.causal

    def rotation(
        self, pos: Positions, *, side: Side = ASKED, keys: Positions = ASKED
    ) -> Float[Tensor, "#B 1 #L 1"] | None:
        """What queries are multiplied by; nothing for keys."""
        if side == "key":
            return None
        if self.site.causal:
            places = pos.index().to(precise_on(pos.coordinates.device)) + 1
        else:
            places = length_read(keys).squeeze(-1)
        factor = places.clamp_min(1).log()
        if self.trained_length is not None:
            factor = factor / math.log(self.trained_length)
        if self.only_beyond:
            factor = factor.clamp_min(1)
        if pos.unplaced is not None:
            factor = factor.masked_fill(pos.unplaced, 1.0)
        factor_BL = factor if factor.ndim == 2 else factor.unsqueeze(0)
        return factor_BL[:, None, :, None].float()

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: Float[Tensor, "#B 1 #L 1"] | None
    ) -> Float[Tensor, "B H L E"]:
        if rotation is None:
            return x
        scaled_BHLE = (
            x * rotation
        )  # in float32, since all scores of a query have the factor's error
        return scaled_BHLE.to(x.dtype)
