"""The recurrent model with attention: Bahdanau et al. 2015; Luong et al. 2015 (global attention, input feeding)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from jarilab.attention.kernels import Kernel
from jarilab.attention.recurrent_attention import SourceMemory
from jarilab.attention.scores import ScoreName
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.encodings.base import hooks_of
from jarilab.encodings.base import registry as encodings
from jarilab.encodings.compose import LayerEncodings
from jarilab.models.base import check_layers, one_a_row, read_from_start, registry
from jarilab.models.layers import Layers, Share, Width
from jarilab.models.recurrent_decoder import DecoderState, RecurrentCache, RecurrentDecoder
from jarilab.models.recurrent_encoder import Cell, RecurrentEncoder
from jarilab.nn.sublayers import TokenEmbedding
from jarilab.positions.coordinates import Positions, Tokens


@dataclass(frozen=True, eq=False)
class RecurrentMemory:
    """The encoded sources: keys and values of the attention, and the decoder's first state.

    origin: the source Tokens; selecting rows does not change it.
    """

    source: SourceMemory
    first: DecoderState
    origin: Tokens

    def select(self, rows: Int[Tensor, " R"]) -> RecurrentMemory:
        """Return these sources in this order, repeats allowed."""
        return RecurrentMemory(self.source.select(rows), self.first.select(rows), self.origin)


@registry.register("recurrent")
class Recurrent(nn.Module):
    """Recurrent encoder and decoder with attention: source and target tokens in, scores of the next target token out.

        model = jarilab.Recurrent(source_vocab_size=100, target_vocab_size=100, d_model=64, score="general")
        scores_BQV = model(source_ids_BK, target_ids_BQ)

    n_layers: layers of the encoder, and of the decoder.
    score: how a query is compared with a key, see `jarilab.attention.scores`.
    input_feeding: the decoder also reads the last attention output, so that its steps are sequential.
    bidirectional: half of the encoder's dimension reads the source from the end.
    encoding: positional encoding added to the input; a recurrent model knows the order without it.
    cross_encoding: encoding between decoder and source; one that rotates needs score dot or general.
    dropout: dropout probability, on the input of each layer and on h~.
    tied: share the weights of the output layer and the target embedding.
    d_model: model dimension, of tokens and of states.
    cell: kind of recurrent layer.
    kernel: attention kernel; all give the same result, and auto takes the fastest.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        d_model: Width = 64,
        n_layers: Layers = 1,
        cell: Cell = "gru",
        score: ScoreName = "general",
        input_feeding: bool = False,
        bidirectional: bool = True,
        encoding: str = "none",
        cross_encoding: str = "none",
        dropout: Share = 0.0,
        tied: bool = False,
        kernel: Kernel = "auto",
    ):
        super().__init__()
        check_layers(n_layers)
        self.source_embedding = TokenEmbedding(source_vocab_size, d_model)
        self.target_embedding = TokenEmbedding(target_vocab_size, d_model)
        self.encoder = RecurrentEncoder(
            d_model,
            n_layers,
            encoding=encoding,
            cell=cell,
            bidirectional=bidirectional,
            dropout=dropout,
        )
        self.decoder = RecurrentDecoder(
            d_model,
            n_layers,
            encoding=encoding,
            cross_encoding=cross_encoding,
            cell=cell,
            score=score,
            input_feeding=input_feeding,
            dropout=dropout,
            kernel=kernel,
        )
        _check_added(self.encoder.encoding)
        self.generator = None if tied else nn.Linear(d_model, target_vocab_size, bias=False)

    def forward(
        self, source: Int[Tensor, "B K"] | Tokens, target: Int[Tensor, "B Q"] | Tokens
    ) -> Float[Tensor, "B Q V"]:
        """Return the scores of the token after each target token, given the source and the target up to it.

        Raises UserError for padding before a token of the target.
        """
        state = self.start(Tokens.of(source, "source"))
        target = read_from_start(Tokens.of(target, "target"))
        return self.step(state, target.ids, target.positions, None)

    def start(self, source: Tokens | None) -> RecurrentMemory:
        """Encode the source. Raises UserError without a source, and for several documents in a row."""
        source = one_a_row(source)
        x_BKD = self.source_embedding(source.ids)
        outputs_BKD, lasts = self.encoder(x_BKD, source.positions, source.keep)
        attended = self.decoder.attention.read(outputs_BKD, source.positions, source.keep)
        first = self.decoder.first(outputs_BKD, lasts)
        return RecurrentMemory(attended, first, source)

    def step(
        self,
        state: RecurrentMemory,
        ids: Int[Tensor, "R L"],
        positions: Positions,
        cache: RecurrentCache | None,
    ) -> Float[Tensor, "R L V"]:
        """Return the scores after each of `ids`. With a cache, `ids` are only the tokens that were not read yet.

        ids: `(B W, L)` for the B sources in `state`; row r belongs to source r // W. Raises UserError if the rows are
        not a multiple of the sources, and for a cache of other rows or another source.
        """
        state = _for_each_hypothesis(state, ids.shape[0])
        carried = state.first
        if cache is not None:
            cache.belong_to(state.origin)
            carried = cache.carried or carried
        held, rows = carried.rows, ids.shape[0]
        if held != rows:
            raise UserError(
                f"this cache holds {held} hypotheses, but {rows} are to be read; "
                "select the same ones in it, cache.select(rows, sources)"
            )
        x_RLD = self.target_embedding(ids)
        y_RLD, carried = self.decoder(x_RLD, state.source, carried, positions)
        if cache is not None:
            cache.carried = carried
        return functional.linear(y_RLD, self.readout)

    def new_cache(self) -> RecurrentCache:
        return RecurrentCache()

    @property
    def readout(self) -> Float[Tensor, "V D"]:
        """The weights that score h~ for each token of the target vocabulary."""
        return self.target_embedding.weight if self.generator is None else self.generator.weight

    def max_positions(self) -> dict[str, int | None]:
        """Return the number of positions that each side supports, None for no limit."""
        return {
            "source": self.encoder.encoding.max_positions,
            "target": self.decoder.encoding.max_positions,
        }


def _check_added(encoding: LayerEncodings) -> None:
    """Raises UserError for an encoding that does more than add to the input."""
    if encoding.by_layer[0].hooks <= {"embed"}:
        return
    classes = {name: encodings.spec(name).target for name in encodings.names()}
    added = [name for name, cls in classes.items() if hooks_of(cls) <= {"embed"}]
    raise UserError(
        f"{encoding.spec} works inside self-attention, and a recurrent model has none: it knows the order of tokens "
        f"from reading them one after another; use {', '.join(added[:-1])} or {added[-1]}, which only add to the "
        "input, or give it as cross_encoding, for the attention to the source"
    )


def _for_each_hypothesis(state: RecurrentMemory, rows: int) -> RecurrentMemory:
    sources, device = state.source.k.shape[0], state.source.k.device
    if rows == sources:
        return state
    if sources == 0 or rows % sources:
        raise UserError(
            f"each source has as many hypotheses as the others: {rows} rows are no multiple of {sources}"
        )
    index_R = torch.arange(sources, device=device).repeat_interleave(rows // sources)
    return state.select(index_R)
