"""The recurrent decoder with one attention to the source (Luong et al. 2015, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from jarilab.attention.cache import OfOneSource
from jarilab.attention.heads import site_of
from jarilab.attention.kernels import Kernel
from jarilab.attention.module import check_positions
from jarilab.attention.recurrent_attention import LuongAttention, SourceMemory
from jarilab.attention.scores import ScoreName
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.encodings.compose import LayerEncodings
from jarilab.models.recurrent_encoder import Cell, Recurrence, State
from jarilab.nn.sublayers import Dropout
from jarilab.positions.coordinates import Positions


@dataclass(frozen=True, eq=False)
class DecoderState:
    """The state between two tokens: the state of each layer, and h~ `(B, 1, D)` with input feeding."""

    states: tuple[State, ...]
    fed: Float[Tensor, "B 1 D"] | None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.states[0][0].shape[0]

    def select(self, rows: Int[Tensor, " R"]) -> DecoderState:
        """Return these rows in this order, repeats allowed."""
        fed = None if self.fed is None else self.fed.index_select(0, rows)
        return DecoderState(tuple(_selected(state, rows) for state in self.states), fed)


def _selected(state: State, rows: Int[Tensor, " R"]) -> State:
    return tuple(part.index_select(0, rows) for part in state)


class RecurrentDecoderLayer(nn.Module):
    """One recurrence over the target. Its first state is a map of the encoder layer's last state.

    cross_attention: of the last layer only.
    """

    def __init__(
        self,
        inputs: int,
        d_model: int,
        cell: Cell,
        dropout: float,
        cross_attention: LuongAttention | None,
    ):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.recurrence = Recurrence(cell, inputs, d_model)
        self.start = nn.Linear(d_model, self.recurrence.parts * d_model)
        self.cross_attention = cross_attention

    def first(self, last: Float[Tensor, "B D"]) -> State:
        """Return `tanh(W_s h + b)` (Bahdanau et al. 2015, appendix A.2.2). An LSTM's c is computed in the same way."""
        return self.start(last).tanh().chunk(self.recurrence.parts, -1)

    def forward(
        self, x: Float[Tensor, "B Q I"], state: State
    ) -> tuple[Float[Tensor, "B Q D"], State]:
        return self.recurrence(self.dropout(x), state)


class RecurrentDecoder(nn.Module):
    """A stack of recurrent layers over the target. The last layer attends to the source.

    input_feeding: h~ of a token is part of the next token's input (Luong et al. 2015, section 3.3). Tokens are then
    read one at a time, otherwise all at once.
    """

    def __init__(
        self,
        d_model: int,
        n_layers: int,
        *,
        encoding: str,
        cross_encoding: str,
        cell: Cell,
        score: ScoreName,
        input_feeding: bool,
        dropout: float,
        kernel: Kernel,
    ):
        super().__init__()
        self.encoding = LayerEncodings(encoding, site_of(d_model, 1, causal=True), 1)
        self.input_feeding = input_feeding
        attention = LuongAttention(d_model, score, encoding=cross_encoding, kernel=kernel)
        first_input = 2 * d_model if input_feeding else d_model
        self.layers = nn.ModuleList(
            RecurrentDecoderLayer(
                first_input if layer == 0 else d_model,
                d_model,
                cell,
                dropout,
                attention if layer == n_layers - 1 else None,
            )
            for layer in range(n_layers)
        )
        self.dropout = Dropout(dropout)

    @property
    def attention(self) -> LuongAttention:
        """The attention of the last layer."""
        return self.layers[-1].cross_attention  # type: ignore[return-value]

    def first(self, outputs: Float[Tensor, "B K D"], lasts: Sequence[Tensor]) -> DecoderState:
        """Return the state before the first token."""
        pairs = zip(self.layers, lasts, strict=True)
        states = tuple(layer.first(last) for layer, last in pairs)  # type: ignore
        fed = torch.zeros_like(outputs[:, :1]) if self.input_feeding else None
        return DecoderState(states, fed)

    def forward(
        self,
        x: Float[Tensor, "B Q D"],
        source: SourceMemory,
        carried: DecoderState,
        positions: Positions,
    ) -> tuple[Float[Tensor, "B Q D"], DecoderState]:
        """Return h~ of each token, and the state after the last."""
        check_positions(positions, x)
        outputs = []
        x_BQD = self.encoding.embed(x, positions)
        at_once = 1 if self.input_feeding else x.shape[1]
        for start in range(0, x.shape[1], at_once):
            stop = start + at_once
            place = positions.slice(start, stop)
            y_BLD, carried = self._read(x_BQD[:, start:stop], source, carried, place)
            outputs.append(y_BLD)
        return self.dropout(torch.cat(outputs, 1)), carried

    def _read(
        self, x_BLD: Tensor, source: SourceMemory, carried: DecoderState, positions: Positions
    ) -> tuple[Tensor, DecoderState]:
        """Return h~ of the next tokens, and the state after the last of them."""
        states = []
        y_BLD = x_BLD
        if carried.fed is not None:
            y_BLD = torch.cat((y_BLD, carried.fed.to(y_BLD.dtype)), -1)
        for layer, before in zip(self.layers, carried.states, strict=True):
            y_BLD, after = layer(y_BLD, before)
            states.append(after)
        y_BLD = self.attention(y_BLD, source, positions)
        fed = y_BLD if self.input_feeding else None
        return y_BLD, DecoderState(tuple(states), fed)


class RecurrentCache(OfOneSource):
    """The recurrent decoder's state in each answer."""

    def __init__(self) -> None:
        self.carried: DecoderState | None = None

    def select(self, rows: Int[Tensor, " R"], sources: Int[Tensor, " S"] | None = None) -> None:
        """Keep these rows of hypotheses in this order, repeats allowed. The cache contains nothing of the sources."""
        if self.carried is not None:
            self.carried = self.carried.select(rows)
