"""The attention of a recurrent decoder (Luong et al. 2015, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.attention.kernels import Kernel, check
from jarilab.attention.module import AttentionKernel
from jarilab.attention.scores import build_score
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.compose import LayerEncodings
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


@dataclass(frozen=True, eq=False)
class SourceMemory:
    """Keys and values of the encoder's outputs, computed once for all steps of the decoder.

    k: `(B, 1, K, E)`, mapped and rotated. v: `(B, 1, K, D)`, the outputs themselves. keep: `(B, K)`, False on padding.
    states: the encoding's states of the keys.
    """

    k: Float[Tensor, "B 1 K E"]
    v: Float[Tensor, "B 1 K D"]
    positions: Positions
    keep: Bool[Tensor, "B K"] | None = None
    states: tuple[Float[Tensor, "B _ K _"], ...] = ()

    def select(self, rows: Int[Tensor, " R"]) -> SourceMemory:
        """Select rows of the batch, in this order; repeats are allowed."""
        k_BHKE = self.k.index_select(0, rows)
        v_BHKD = self.v.index_select(0, rows)
        positions = self.positions.select_rows(rows)
        keep_BK = None if self.keep is None else self.keep.index_select(0, rows)
        states = tuple(state.index_select(0, rows) for state in self.states)
        return SourceMemory(k_BHKE, v_BHKD, positions, keep_BK, states)


class LuongAttention(nn.Module):
    """`w = softmax(score(h, h_1:m))`, `c = w h_1:m`, `h~ = tanh([h; c] W_concat)` (Luong et al. 2015, equations 5, 7).

    d_model: D of the decoder's states h and of the encoder's outputs h_1:m. score: see `jarilab.attention.scores`.
    encoding: of distances between decoder and source; it acts on the queries and keys that the score has mapped.

    Raises UserError for an unknown score, or an encoding or kernel that does not support it.
    """

    def __init__(
        self, d_model: int, score: str, *, encoding: str = "none", kernel: Kernel = "auto"
    ):
        super().__init__()
        self.score = build_score(score, d_model, d_model)
        self.site = site_of(d_model, 1, cross=True)
        self.encoding = LayerEncodings(encoding, self.site, 1)
        hooks = self.encoding.by_layer[0].hooks
        check(kernel, self.encoding.by_layer, self.score.compare)
        if "rotate" in hooks and self.score.compare is not None:
            raise UserError(
                f"{encoding} rotates queries and keys and expected a score that is their product, got score={score}; "
                "use score=dot or score=general, or another cross_encoding"
            )
        self.attend = AttentionKernel(kernel)
        self.combine = nn.Linear(2 * d_model, d_model, bias=False)

    def read(
        self,
        outputs: Float[Tensor, "B K D"],
        positions: Positions,
        keep: Bool[Tensor, "B K"] | None = None,
    ) -> SourceMemory:
        """Compute the keys and values of a source, for all later steps."""
        encoding = self.encoding.by_layer[0]
        k_BKE = self.score.keys(encoding.inject(outputs, positions))
        k_BHKE = k_BKE.unsqueeze(1)
        k_BHKE = encoding.rotate(k_BHKE, encoding.rotation_for(positions, "key", positions))
        v_BHKD = outputs.unsqueeze(1)
        return SourceMemory(k_BHKE, v_BHKD, positions, keep, encoding.key_states(outputs))

    def forward(
        self, h: Float[Tensor, "B Q D"], source: SourceMemory, positions: Positions
    ) -> Float[Tensor, "B Q D"]:
        """h~ for each decoder state. positions: of the states."""
        mask = None if source.keep is None else Mask(keys=source.keep)
        geometry = geometry_of(self.encoding.by_layer[0], positions, source.positions, mask)
        encoding = geometry.encoding
        q_BQE = self.score.queries(encoding.inject(h, positions))
        q_BHQE = q_BQE.unsqueeze(1)
        q_BHQE = encoding.rotate(q_BHQE, geometry.q_rotation)
        compare = self.score.compare
        # Luong et al. do not divide by sqrt(E).
        scale = encoding.scale_factor
        call = AttentionCall(
            q_BHQE, source.k, source.v, geometry, scale, score=compare, states=source.states
        )
        context_BHQD = self.attend(call)
        context_BQD = context_BHQD.squeeze(1).to(h.dtype)
        joined = torch.cat((h, context_BQD), -1)
        return self.combine(joined).tanh()
