"""Scores that grow with the logarithm of the length."""

from __future__ import annotations

import math
from typing import Annotated, final

from annotated_types import Ge

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Side, Site, registry
from jarilab.encodings.numbers import best_float_dtype, current_length
from jarilab.positions.coordinates import Positions


@final
@registry.register("log_length", "logn", "log_n")
class LogLength(Encoding):
    """Multiplies queries by log n, so that a softmax over more keys stays as sharp.

    If queries never see later keys, n is the position of the query, counted from 1. Otherwise n is the number of keys,
    which is the position of the last, and the outputs do not depend on the order of tokens. Use it in a sum, such as
    `rotary+log_length`.

    Source: Scores that grow with the logarithm of the length: *Overcoming a Theoretical Limitation of Self-Attention*
    (Chiang and Cholak 2022), section 5.3; Su's log-n scaling of 2021, which Qwen-7B has.

    trained_length: divide by its logarithm, so that texts of that length have the scores of training. only_beyond: do
        not change the scores of shorter texts either, as Qwen does.
    """

    shift_invariant = False
    keeps_norms = False
    depends_on_length = True

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
                "log_length: only_beyond=true changes texts beyond the trained length: expected trained_length, got "
                "none; write log_length:trained_length=512,only_beyond=true"
            )
        self.trained_length, self.only_beyond = trained_length, only_beyond
        self.uses_order = site.causal

    def rotation(
        self, pos: Positions, *, side: Side = PROVIDED, keys: Positions = PROVIDED
    ) -> Float[Tensor, "#B 1 #L 1"] | None:
        """The factor of each query; None for keys."""
        if side == "key":
            return None
        if self.site.causal:
            length = pos.index().to(best_float_dtype(pos.coordinates.device)) + 1
        else:
            length = current_length(keys).squeeze(-1)
        factor = length.clamp_min(1).log()
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
        # In float32, since an error of the factor is in all scores of a query.
        scaled_BHLE = x * rotation
        return scaled_BHLE.to(x.dtype)
