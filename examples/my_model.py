"""A model of one's own, on the tasks of the package.

    jarilab train arithmetic --model examples/my_model.py:Parallel --maximum 99 --out runs/mine
    jarilab predict runs/mine 21+11 --trust-code
    jarilab explore runs/mine --input 21+11 --trust-code
    jarilab compare arithmetic --model examples/my_model.py:Parallel --encodings none,rotary --out runs/two
    jarilab train translation --model examples/my_model.py:Parallel --train train.de train.en --out runs/deen
    jarilab train text --model examples/my_model.py:ParallelLM --train input.txt --out runs/lm

In each block attention and feed-forward stand side by side and read the same input (GPT-J, Wang and Komatsuzaki 2021),
where the Transformer has one after the other. What a task asks of a model is the protocol `jarilab.Generates`: `start`,
`step` and `new_cache`. What is seen into are its `jarilab.Attention`s. Nothing of the package is edited or registered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import jarilab
from jarilab import Mask, Positions, Tokens


class Block(nn.Module):
    """Attention to the own sequence, to a source where there is one, and a feed-forward layer, side by side."""

    def __init__(
        self, d_model: int, n_heads: int, encoding: str, *, causal: bool, reads_source: bool
    ):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        own = {"encoding": encoding, "causal": causal}
        self.self_attention = jarilab.Attention(d_model, n_heads, **own)
        self.cross_attention = None
        if reads_source:
            self.cross_attention = jarilab.Attention(d_model, n_heads, cross=True)
        self.hidden = nn.Linear(d_model, 4 * d_model)
        self.out = nn.Linear(4 * d_model, d_model)

    def forward(
        self, x_BLD: Tensor, positions: Positions, mask: Mask, source: Source | None
    ) -> Tensor:
        y_BLD = self.norm(x_BLD)
        change_BLD = self.out(self.hidden(y_BLD).relu())
        change_BLD = change_BLD + self.self_attention(y_BLD, positions=positions, mask=mask)
        if self.cross_attention is not None and source is not None:
            places = {"positions": positions, "source_positions": source.positions}
            change_BLD = change_BLD + self.cross_attention(
                y_BLD, source.vectors, **places, mask=source.mask
            )
        return x_BLD + change_BLD


@dataclass(frozen=True)
class Source:
    """What a model made of B sources. vectors: `(B, K, D)`. keep: `(B, K)`, False on padding, None without any."""

    vectors: Tensor
    positions: Positions
    keep: Tensor | None

    @property
    def mask(self) -> Mask:
        return Mask(keys=self.keep)

    def select(self, rows: Tensor) -> Source:
        keep_RK = None if self.keep is None else self.keep[rows]
        return Source(self.vectors[rows], self.positions, keep_RK)


class ReadSoFar:
    """The tokens that each row has read, as a cache: they are read again at each step, which is slow and short."""

    def __init__(self) -> None:
        self.ids_RL: Tensor | None = None

    def append(self, ids_RL: Tensor) -> Tensor:
        self.ids_RL = ids_RL if self.ids_RL is None else torch.cat((self.ids_RL, ids_RL), 1)
        return self.ids_RL

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        assert self.ids_RL is not None
        self.ids_RL = self.ids_RL[rows]


class Parallel(nn.Module):
    """For tasks of a source and a target: `arithmetic`, `translation`, `reverse`, ...

    d_model: model dimension. n_heads: heads of each attention. n_layers: of the encoder and of the decoder.
    encoding: of self-attention in both, one that works inside attention.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        d_model: int = 64,
        n_heads: int = 4,
        n_layers: int = 2,
        encoding: str = "rotary",
    ):
        super().__init__()
        self.source = nn.Embedding(source_vocab_size, d_model)
        self.target = nn.Embedding(target_vocab_size, d_model)
        block = (d_model, n_heads, encoding)
        self.encoder = nn.ModuleList(
            Block(*block, causal=False, reads_source=False) for _ in range(n_layers)
        )
        self.decoder = nn.ModuleList(
            Block(*block, causal=True, reads_source=True) for _ in range(n_layers)
        )
        self.scores = nn.Linear(d_model, target_vocab_size)

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        """Scores `(B, L, V)` of what comes after each token of the target."""
        return self._scores(self.start(source), target.ids, target.positions)

    def start(self, source: Tokens) -> Source:
        x_BKD = self.source(source.ids)
        for block in self.encoder:
            x_BKD = block(x_BKD, source.positions, Mask(keys=source.keep), None)
        return Source(x_BKD, source.positions, source.keep)

    def step(self, state: Source, ids: Tensor, positions: Positions, cache: ReadSoFar) -> Tensor:
        """Scores after each of `ids`; row r is a hypothesis about source r // W."""
        read_RL = ids if cache is None else cache.append(ids)
        hypotheses = len(read_RL) // len(state.vectors)
        rows = torch.arange(len(state.vectors)).repeat_interleave(hypotheses)
        places = Positions.sequence(read_RL.shape[1], frame="target")
        scores_RLV = self._scores(state.select(rows), read_RL, places)
        return scores_RLV[:, -ids.shape[1] :]

    def new_cache(self) -> ReadSoFar:
        return ReadSoFar()

    def _scores(self, source: Source, ids_BL: Tensor, positions: Positions) -> Tensor:
        x_BLD = self.target(ids_BL)
        for block in self.decoder:
            x_BLD = block(x_BLD, positions, Mask(causal=True), source)
        return self.scores(x_BLD)


class ParallelLM(nn.Module):
    """For text that goes on: the task `text`. Its options are those of `Parallel`.

    d_model: model dimension. n_heads: heads of each attention. n_layers: number of layers.
    encoding: one that works inside attention.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        d_model: int = 64,
        n_heads: int = 4,
        n_layers: int = 2,
        encoding: str = "rotary",
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.decoder = nn.ModuleList(
            Block(d_model, n_heads, encoding, causal=True, reads_source=False)
            for _ in range(n_layers)
        )
        self.scores = nn.Linear(d_model, vocab_size)

    def forward(self, tokens: Tokens) -> Tensor:
        """Scores `(B, L, V)` of what comes after each token. Packed documents do not see each other."""
        documents = None if tokens.documents is None else (tokens.documents, tokens.documents)
        mask = Mask(causal=True, keys=tokens.keep, documents=documents)
        x_BLD = self.embedding(tokens.ids)
        for block in self.decoder:
            x_BLD = block(x_BLD, tokens.positions, mask, None)
        return self.scores(x_BLD)

    def start(self, source: Tokens | None) -> None:
        return None

    def step(self, state: None, ids: Tensor, positions: Positions, cache: ReadSoFar) -> Tensor:
        read_RL = ids if cache is None else cache.append(ids)
        return self(Tokens.of(read_RL, "target"))[:, -ids.shape[1] :]

    def new_cache(self) -> ReadSoFar:
        return ReadSoFar()
