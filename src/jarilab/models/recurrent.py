"""The recurrent model with attention: Bahdanau et al. 2015; Luong et al. 2015 (global attention, input feeding)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le, Lt
from torch import nn
from torch.nn import functional

from jarilab.attention.cache import OfOneSource
from jarilab.attention.kernels import Kernel
from jarilab.attention.module import check_positions, site_of
from jarilab.attention.recurrent import LuongAttention, Source
from jarilab.attention.scores import ScoreName
from jarilab.encodings.base import hooks_of
from jarilab.encodings.base import registry as encodings
from jarilab.encodings.compose import LayerEncodings
from jarilab.errors import UserError, unknown
from jarilab.models.base import check_layers, one_a_row, registry
from jarilab.nn.layers import Dropout, TokenEmbedding
from jarilab.positions import Positions, Tokens
from jarilab.shapes import Bool, Float, Int, Tensor

Cell = Literal["gru", "lstm"]
CELLS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}

State = tuple[Tensor, ...]
"""What a recurrent layer carries from token to token, each `(B, D)`: h, and c of an LSTM."""


class Recurrence(nn.Module):
    """A GRU (Cho et al. 2014) or an LSTM (Hochreiter and Schmidhuber 1997) of one layer and one direction."""

    def __init__(self, cell: Cell, inputs: int, width: int):
        super().__init__()
        if cell not in CELLS:
            raise unknown("cell", cell, CELLS)
        self.parts = 2 if cell == "lstm" else 1
        self.rnn = CELLS[cell](inputs, width, batch_first=True)

    def forward(
        self, x: Float[Tensor, "B L I"], state: State | None = None
    ) -> tuple[Float[Tensor, "B L D"], State]:
        """The output at each token, and the state after the last. state: before the first, 0 by default."""
        given = None if state is None else tuple(part.unsqueeze(0) for part in state)
        y, last = self.rnn(x, given if given is None or self.parts == 2 else given[0])
        return y, tuple(part.squeeze(0) for part in (last if self.parts == 2 else (last,)))


# The encoder ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReadingOrder:
    """The order in which one direction reads the tokens of each row: the real ones first, padding after them.

    there, back: `(B, L)`, which token is read when, and when which was read; None where the order is the row's own.
    last: `(B,)`, when the last real token is read. empty: `(B, 1)`, True for rows without any.
    """

    there: Int[Tensor, "B L"] | None
    back: Int[Tensor, "B L"] | None
    last: Int[Tensor, " B"]
    empty: Bool[Tensor, "B 1"]

    @staticmethod
    def of(keep_BL: Bool[Tensor, "B L"], *, backwards: bool) -> ReadingOrder:
        count_B1 = keep_BL.sum(-1, keepdim=True)
        last_B, empty_B1 = (count_B1 - 1).clamp_min(0).squeeze(1), count_B1 == 0
        if not backwards and bool((keep_BL[:, 1:] <= keep_BL[:, :-1]).all()):
            return ReadingOrder(None, None, last_B, empty_B1)
        place_BL = keep_BL.cumsum(-1)
        when_BL = count_B1 - place_BL if backwards else place_BL
        there_BL = when_BL.masked_fill(~keep_BL, keep_BL.shape[1] + 1).argsort(dim=-1, stable=True)
        return ReadingOrder(there_BL, there_BL.argsort(-1), last_B, empty_B1)

    def last_of(self, y_BLD: Tensor) -> Tensor:
        """The output at the last real token, 0 for a row without any; `(B, D)`."""
        y_BD = y_BLD.gather(1, self.last[:, None, None].expand(-1, 1, y_BLD.shape[2])).squeeze(1)
        return y_BD.masked_fill(self.empty, 0.0)


def _in_order(x_BLD: Tensor, order_BL: Tensor | None) -> Tensor:
    return x_BLD if order_BL is None else x_BLD.gather(1, order_BL.unsqueeze(-1).expand_as(x_BLD))


class EncoderLayer(nn.Module):
    """One recurrence over the source, or two in opposite directions side by side, each of half the width."""

    def __init__(self, width: int, cell: Cell, bidirectional: bool, dropout: float):
        super().__init__()
        self.dropout = Dropout(dropout)
        names = ("forwards", "backwards") if bidirectional else ("forwards",)
        self.directions = nn.ModuleDict(
            {name: Recurrence(cell, width, width // len(names)) for name in names}
        )

    def forward(
        self, x: Float[Tensor, "B L D"], orders: Sequence[ReadingOrder]
    ) -> tuple[Tensor, Tensor]:
        """The output at each token, `(B, L, D)`, and at the last that each direction reads, `(B, D)`."""
        x, outputs, lasts = self.dropout(x), [], []
        for recurrence, order in zip(self.directions.values(), orders, strict=True):
            y, _ = recurrence(_in_order(x, order.there))
            outputs.append(_in_order(y, order.back))
            lasts.append(order.last_of(y))
        return torch.cat(outputs, -1), torch.cat(lasts, -1)


class RecurrentEncoder(nn.Module):
    """A stack of recurrent layers over the source. Padding is read after all that is real, whichever side it is on."""

    def __init__(
        self,
        width: int,
        layers: int,
        *,
        encoding: str,
        cell: Cell,
        bidirectional: bool,
        dropout: float,
    ):
        super().__init__()
        if bidirectional and width % 2:
            raise UserError(
                "a bidirectional encoder gives half of the width to each direction, so it expects an even width; "
                f"got {width}: use width={width + 1}, or bidirectional=false"
            )
        self.encoding = LayerEncodings(encoding, site_of(width, 1), 1)
        self.bidirectional = bidirectional
        self.layers = nn.ModuleList(
            EncoderLayer(width, cell, bidirectional, dropout) for _ in range(layers)
        )

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        positions: Positions,
        keep: Bool[Tensor, "B L"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], list[Tensor]]:
        """The outputs of the last layer, and what each layer knows at its end, `(B, D)` each."""
        check_positions(positions, x)
        if keep is None:
            keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        orders = [
            ReadingOrder.of(keep, backwards=backwards)
            for backwards in (False, True)[: 1 + self.bidirectional]
        ]
        x, lasts = self.encoding.embed(x, positions), []
        for layer in self.layers:
            x, last = layer(x, orders)
            lasts.append(last)
        return x, lasts


# The decoder ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DecoderState:
    """What the decoder knows between two tokens: the state of each layer, and h~ where it is fed back, `(B, 1, D)`."""

    states: tuple[State, ...]
    fed: Float[Tensor, "B 1 D"] | None

    def select(self, rows: Int[Tensor, " R"]) -> DecoderState:
        """These rows, in this order, repeats allowed."""
        states = tuple(tuple(part.index_select(0, rows) for part in state) for state in self.states)
        return DecoderState(states, None if self.fed is None else self.fed.index_select(0, rows))


class DecoderLayer(nn.Module):
    """One recurrence over the target, whose first state is a map of what the encoder's layer knew at its end.

    cross_attention: of the last layer only.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        cell: Cell,
        dropout: float,
        cross_attention: LuongAttention | None,
    ):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.recurrence = Recurrence(cell, inputs, width)
        self.start = nn.Linear(width, self.recurrence.parts * width)
        self.cross_attention = cross_attention

    def first(self, last: Float[Tensor, "B D"]) -> State:
        """`tanh(W_s h + b)` (Bahdanau et al. 2015, appendix A.2.2); an LSTM's c is made the same way."""
        return self.start(last).tanh().chunk(self.recurrence.parts, -1)

    def forward(
        self, x: Float[Tensor, "B Q I"], state: State
    ) -> tuple[Float[Tensor, "B Q D"], State]:
        return self.recurrence(self.dropout(x), state)


class RecurrentDecoder(nn.Module):
    """A stack of recurrent layers over the target whose last layer attends to the source.

    input_feeding: h~ of each token is part of the input at the next (Luong et al. 2015, section 3.3), so tokens are
    read one at a time; otherwise all at once.
    """

    def __init__(
        self,
        width: int,
        layers: int,
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
        self.encoding = LayerEncodings(encoding, site_of(width, 1, causal=True), 1)
        self.input_feeding = input_feeding
        attention = LuongAttention(width, score, encoding=cross_encoding, kernel=kernel)
        inputs = [2 * width if input_feeding else width] + [width] * (layers - 1)
        attentions = [None] * (layers - 1) + [attention]
        self.layers = nn.ModuleList(
            DecoderLayer(of_layer, width, cell, dropout, own)
            for of_layer, own in zip(inputs, attentions, strict=True)
        )
        self.dropout = Dropout(dropout)

    @property
    def attention(self) -> LuongAttention:
        """The one attention of the stack."""
        return self.layers[-1].cross_attention  # type: ignore[return-value]

    def first(self, outputs: Float[Tensor, "B K D"], lasts: Sequence[Tensor]) -> DecoderState:
        """What is known before the first token."""
        states = tuple(layer.first(last) for layer, last in zip(self.layers, lasts, strict=True))  # type: ignore
        return DecoderState(
            states, torch.zeros_like(outputs[:, :1]) if self.input_feeding else None
        )

    def forward(
        self, x: Float[Tensor, "B Q D"], source: Source, carried: DecoderState, positions: Positions
    ) -> tuple[Float[Tensor, "B Q D"], DecoderState]:
        """h~ of each token, and what is known after the last."""
        check_positions(positions, x)
        x, outputs = self.encoding.embed(x, positions), []
        at_once = 1 if self.input_feeding else x.shape[1]
        for start in range(0, x.shape[1], at_once):
            stop = start + at_once
            y, states = x[:, start:stop], []
            if carried.fed is not None:
                y = torch.cat((y, carried.fed.to(y.dtype)), -1)
            for layer, before in zip(self.layers, carried.states, strict=True):
                y, after = layer(y, before)
                states.append(after)
            y = self.attention(y, source, positions.slice(start, stop))
            carried = DecoderState(tuple(states), y if self.input_feeding else None)
            outputs.append(y)
        return self.dropout(torch.cat(outputs, 1)), carried


class RecurrentCache(OfOneSource):
    """Where a recurrent decoder stands in each answer: what it carries, whatever was read before."""

    def __init__(self) -> None:
        self.carried: DecoderState | None = None

    def select(self, rows: Int[Tensor, " R"], sources: Int[Tensor, " S"] | None = None) -> None:
        """Keep these rows of hypotheses, in this order, repeats allowed. Nothing of the sources is in here."""
        if self.carried is not None:
            self.carried = self.carried.select(rows)


# Both together -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RecurrentMemory:
    """What was read of the sources: what the decoder attends to, and what it knows before its first token.

    origin: the Tokens that were read; it stays the same when rows are selected.
    """

    source: Source
    first: DecoderState
    origin: Tokens

    def select(self, rows: Int[Tensor, " R"]) -> RecurrentMemory:
        """These sources, in this order, repeats allowed."""
        return RecurrentMemory(self.source.select(rows), self.first.select(rows), self.origin)


@registry.register("recurrent")
class Recurrent(nn.Module):
    """Source tokens in, scores of target tokens out, by recurrent layers and one attention between them.

        model = jarilab.Recurrent(source_vocabulary=100, target_vocabulary=100, width=64, score="general")
        scores_BQV = model(source_ids_BK, target_ids_BQ)

    layers: of the encoder and of the decoder. score: see `jarilab.attention.scores`. input_feeding: the decoder is told
    at each token what it attended to before; its steps then cannot be done at once. bidirectional: half of the
    encoder's width reads from the end. encoding: added to the input, if any; the order of tokens is known without.
    cross_encoding: between decoder and source; one that rotates needs score dot or general. dropout: on what goes into
    each layer and on h~, never on weights. tied: the generator's weights are the target embedding's.
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        width: Annotated[int, Ge(1), Le(65536)] = 64,
        layers: Annotated[int, Ge(1), Le(1000)] = 1,
        cell: Cell = "gru",
        score: ScoreName = "general",
        input_feeding: bool = False,
        bidirectional: bool = True,
        encoding: str = "none",
        cross_encoding: str = "none",
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        tied: bool = False,
        kernel: Kernel = "auto",
    ):
        super().__init__()
        check_layers(layers)
        self.source_embedding = TokenEmbedding(source_vocabulary, width)
        self.target_embedding = TokenEmbedding(target_vocabulary, width)
        self.encoder = RecurrentEncoder(
            width,
            layers,
            encoding=encoding,
            cell=cell,
            bidirectional=bidirectional,
            dropout=dropout,
        )
        self.decoder = RecurrentDecoder(
            width,
            layers,
            encoding=encoding,
            cross_encoding=cross_encoding,
            cell=cell,
            score=score,
            input_feeding=input_feeding,
            dropout=dropout,
            kernel=kernel,
        )
        _check_added(self.encoder.encoding)
        self.generator = None if tied else nn.Linear(width, target_vocabulary, bias=False)

    def forward(
        self, source: Int[Tensor, "B K"] | Tokens, target: Int[Tensor, "B Q"] | Tokens
    ) -> Float[Tensor, "B Q V"]:
        """Scores of the token after each target token, given the source and the target tokens up to it."""
        state = self.start(Tokens.of(source, "source"))
        target = one_a_row(Tokens.of(target, "target"))
        return self.step(state, target.ids, target.positions, None)

    def start(self, source: Tokens | None) -> RecurrentMemory:
        """Read the source once. Raises UserError where there is none, or several packed into a row."""
        source = one_a_row(source)
        outputs, lasts = self.encoder(
            self.source_embedding(source.ids), source.positions, source.keep
        )
        read = self.decoder.attention.read(outputs, source.positions, source.keep)
        return RecurrentMemory(read, self.decoder.first(outputs, lasts), source)

    def step(
        self,
        state: RecurrentMemory,
        ids: Int[Tensor, "R L"],
        positions: Positions,
        cache: RecurrentCache | None,
    ) -> Float[Tensor, "R L V"]:
        """Scores after each of `ids`; with a cache, `ids` are only the tokens that were not read yet.

        ids: `(B W, L)` for the B sources in `state`; row r is a hypothesis about source r // W.
        Raises UserError for rows that are no multiple of the sources, or a cache of other rows or another source.
        """
        state = _for_each_hypothesis(state, ids.shape[0])
        carried = state.first
        if cache is not None:
            cache.belong_to(state.origin)
            carried = cache.carried or carried
        if carried.states[0][0].shape[0] != ids.shape[0]:
            raise UserError(
                f"this cache holds {carried.states[0][0].shape[0]} hypotheses, but {ids.shape[0]} are to be read; "
                "select the same ones in it, cache.select(rows, sources)"
            )
        y, carried = self.decoder(self.target_embedding(ids), state.source, carried, positions)
        if cache is not None:
            cache.carried = carried
        return functional.linear(y, self.readout)

    def new_cache(self) -> RecurrentCache:
        return RecurrentCache()

    @property
    def readout(self) -> Float[Tensor, "V D"]:
        """What h~ is compared with to score each token of the target vocabulary."""
        return self.target_embedding.weight if self.generator is None else self.generator.weight

    def max_positions(self) -> dict[str, int | None]:
        """How many positions each side can tell apart, None for no end."""
        return {
            "source": self.encoder.encoding.max_positions,
            "target": self.decoder.encoding.max_positions,
        }


def _check_added(encoding: LayerEncodings) -> None:
    """Raises UserError for an encoding that does more than add to the input."""
    if encoding.of_layer[0].hooks <= {"embed"}:
        return
    added = [
        name for name in encodings.names() if hooks_of(encodings.spec(name).target) <= {"embed"}
    ]
    raise UserError(
        f"{encoding.spec} works inside self-attention, and a recurrent model has none: it knows the order of tokens "
        f"from reading them one after another; use {', '.join(added[:-1])} or {added[-1]}, which only add to the "
        "input, or give it as cross_encoding, for the attention to the source"
    )


def _for_each_hypothesis(state: RecurrentMemory, rows: int) -> RecurrentMemory:
    """The state with as many rows as there are hypotheses."""
    sources = state.source.k.shape[0]
    if rows == sources:
        return state
    if sources == 0 or rows % sources:
        raise UserError(
            f"each source has as many hypotheses as the others: {rows} rows are no multiple of {sources}"
        )
    index_R = torch.arange(sources, device=state.source.k.device).repeat_interleave(rows // sources)
    return state.select(index_R)
