"""The recurrent layers that read a source: Bahdanau et al. 2015, section 3.2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from jarilab.attention.heads import site_of
from jarilab.attention.module import check_positions
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.compose import LayerEncodings
from jarilab.nn.sublayers import Dropout
from jarilab.positions.coordinates import Positions

Cell = Literal["gru", "lstm"]
CELLS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}

State = tuple[Tensor, ...]
"""The state that a recurrent layer passes from token to token, `(B, D)` each: h, and c of an LSTM."""


class Recurrence(nn.Module):
    """A GRU (Cho et al. 2014) or an LSTM (Hochreiter and Schmidhuber 1997) of one layer and one direction."""

    def __init__(self, cell: Cell, inputs: int, d_model: int):
        super().__init__()
        if cell not in CELLS:
            raise unknown("cell", cell, CELLS)
        self.parts = 2 if cell == "lstm" else 1
        self.rnn = CELLS[cell](inputs, d_model, batch_first=True)

    def forward(
        self, x: Float[Tensor, "B L I"], state: State | None = None
    ) -> tuple[Float[Tensor, "B L D"], State]:
        """Return the output at each token and the state after the last. state: before the first token, 0 by default."""
        if state is None:
            y_BLD, last = self.rnn(x)
        else:
            parts = tuple(part.unsqueeze(0) for part in state)
            y_BLD, last = self.rnn(x, parts if self.parts == 2 else parts[0])
        lasts = last if self.parts == 2 else (last,)
        return y_BLD, tuple(part.squeeze(0) for part in lasts)


@dataclass(frozen=True, eq=False)
class ReadingOrder:
    """The order in which one direction reads each row: real tokens first, then padding.

    there, back: `(B, L)`, the permutation and its inverse; None for the row's own order. last: `(B,)`, the step of the
    last real token. empty: `(B, 1)`, True for rows without real tokens.
    """

    there: Int[Tensor, "B L"] | None
    back: Int[Tensor, "B L"] | None
    last: Int[Tensor, " B"]
    empty: Bool[Tensor, "B 1"]

    @staticmethod
    def of(keep_BL: Bool[Tensor, "B L"], *, backwards: bool) -> ReadingOrder:
        count_B1 = keep_BL.sum(-1, keepdim=True)
        last_B = (count_B1 - 1).clamp_min(0).squeeze(1)
        empty_B1 = count_B1 == 0
        # Rows with all padding at the end need no permutation to be read forwards.
        padded_behind = keep_BL[:, 1:] <= keep_BL[:, :-1]
        if not backwards and bool(padded_behind.all()):
            return ReadingOrder(None, None, last_B, empty_B1)
        place_BL = keep_BL.cumsum(-1)
        when_BL = count_B1 - place_BL if backwards else place_BL
        # Padding is read last, so that it changes no state of a real token.
        when_BL = when_BL.masked_fill(~keep_BL, keep_BL.shape[1] + 1)
        there_BL = when_BL.argsort(dim=-1, stable=True)
        # Sorting a permutation inverts it.
        return ReadingOrder(there_BL, there_BL.argsort(-1), last_B, empty_B1)

    def last_of(self, y_BLD: Tensor) -> Tensor:
        """Return the output at the last real token, `(B, D)`; 0 for a row without any."""
        index_B1D = self.last[:, None, None].expand(-1, 1, y_BLD.shape[2])
        y_BD = y_BLD.gather(1, index_B1D).squeeze(1)
        return y_BD.masked_fill(self.empty, 0.0)


def _in_order(x_BLD: Tensor, order_BL: Tensor | None) -> Tensor:
    if order_BL is None:
        return x_BLD
    return x_BLD.gather(1, order_BL.unsqueeze(-1).expand_as(x_BLD))


class RecurrentEncoderLayer(nn.Module):
    """One recurrence over the source, or two in opposite directions with half of the state each."""

    def __init__(self, d_model: int, cell: Cell, bidirectional: bool, dropout: float):
        super().__init__()
        self.dropout = Dropout(dropout)
        names = ("forwards", "backwards") if bidirectional else ("forwards",)
        part = d_model // len(names)
        self.directions = nn.ModuleDict({name: Recurrence(cell, d_model, part) for name in names})

    def forward(
        self, x: Float[Tensor, "B L D"], orders: Sequence[ReadingOrder]
    ) -> tuple[Tensor, Tensor]:
        """Return the output at each token, `(B, L, D)`, and the last output of each direction, `(B, D)`."""
        outputs, lasts = [], []
        x_BLD = self.dropout(x)
        for recurrence, order in zip(self.directions.values(), orders, strict=True):
            y_BLD, _ = recurrence(_in_order(x_BLD, order.there))
            outputs.append(_in_order(y_BLD, order.back))
            lasts.append(order.last_of(y_BLD))
        return torch.cat(outputs, -1), torch.cat(lasts, -1)


class RecurrentEncoder(nn.Module):
    """A stack of recurrent layers over the source. It reads padding after all real tokens.

    Raises UserError for an odd d_model if the stack is bidirectional.
    """

    def __init__(
        self,
        d_model: int,
        n_layers: int,
        *,
        encoding: str,
        cell: Cell,
        bidirectional: bool,
        dropout: float,
    ):
        super().__init__()
        if bidirectional and d_model % 2:
            raise UserError(
                "a bidirectional encoder gives half of the width to each direction, so it expects an even width; "
                f"got {d_model}: use d_model={d_model + 1}, or bidirectional=false"
            )
        self.encoding = LayerEncodings(encoding, site_of(d_model, 1), 1)
        self.bidirectional = bidirectional
        self.layers = nn.ModuleList(
            RecurrentEncoderLayer(d_model, cell, bidirectional, dropout) for _ in range(n_layers)
        )

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        positions: Positions,
        keep: Bool[Tensor, "B L"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], list[Tensor]]:
        """Return the outputs of the last layer, and each layer's last state, `(B, D)`."""
        check_positions(positions, x)
        if keep is None:
            keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        orders = [ReadingOrder.of(keep, backwards=False)]
        if self.bidirectional:
            orders.append(ReadingOrder.of(keep, backwards=True))
        lasts = []
        x_BLD = self.encoding.embed(x, positions)
        for layer in self.layers:
            x_BLD, last_BD = layer(x_BLD, orders)
            lasts.append(last_BD)
        return x_BLD, lasts
