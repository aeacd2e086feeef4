"""Models that write tokens, as parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from jarilab.core.shapes import Bool, Int, Tensor
from jarilab.data.text import FIRST
from jarilab.export.parts import Exportable, Input, Part, Run, by_definition
from jarilab.models.decoder import LanguageModel, Step
from jarilab.models.encoder_decoder import EncoderDecoder, Memory
from jarilab.positions.coordinates import Positions, Tokens


class GivenLayer:
    """What `LayerCache` is to one attention, without room for more: a graph has no loop to make use of it."""

    def __init__(self, held: Sequence[Tensor] = ()):
        self.held = tuple(held)

    @property
    def length(self) -> int:
        return self.held[0].shape[2] if self.held else 0

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        if self.held:
            pairs = zip(self.held, new, strict=True)
            new = tuple(torch.cat(pair, 2) for pair in pairs)
        self.held = new
        return new

    def filled(self) -> tuple[Tensor, ...]:
        return self.held


class GivenCache:
    """What `KVCache` is to a stack. k_pos: of all keys, those about to be read too."""

    positions: Any = None
    """A stack with a window drops keys by these; what a graph is given stays as long as it is."""
    writes: Any = None

    def __init__(self, own: Sequence[GivenLayer], source: Sequence[GivenLayer], k_pos: Positions):
        self.own, self.source, self.k_pos = list(own), list(source), k_pos

    def belong_to(self, origin: object) -> None:
        """To any source: whoever runs a graph gives it the keys."""

    def check_sources(self, sources: int) -> None:
        """As many as were given."""

    def extend(self, new: Positions) -> Positions:
        return self.k_pos


ROWS, SOURCE, BEFORE, STEP = 2, 5, 3, 2
"""Sizes of examples: sequences, source tokens, tokens read before, tokens of a step."""
COMPARED = ((1, 1), (3, 4), (2, 9))
"""Sequences and tokens of what programs are compared on, where the model knows as many positions."""


def counted(start: int, stop: int, frame: str) -> Positions:
    """The places from `start` to `stop` (excluded). Unlike `Positions.sequence`, no bounds that a graph would check."""
    index_L = torch.arange(start, stop)
    return Positions(index_L.unsqueeze(-1), index_L, frame=frame)


class SourceKeys(nn.Module):
    """Sources in; for each layer of the decoder, the keys and values that it looks at, out."""

    def __init__(self, model: EncoderDecoder):
        super().__init__()
        self.model = model

    def forward(self, ids: Int[Tensor, "B K"], keep: Bool[Tensor, "B K"]) -> list[Tensor]:
        source = Tokens(ids, counted(0, ids.shape[1], "source"), keep)
        memory = self.model.start(source)
        layers = self.model.decoder.layers
        places = counted(0, 1, "target")
        kept = [GivenLayer() for _ in layers]
        cache: Any = GivenCache([GivenLayer() for _ in layers], kept, places)
        # A step has each layer keep the keys of the source, whatever it reads itself, which no output needs.
        first_B1 = torch.full_like(ids[:, :1], FIRST)
        self.model.step(memory, first_B1, places, cache)
        return [tensor for layer in kept for tensor in layer.held]


class StepOnSource(nn.Module):
    """One step of a decoder with a source. In: tokens, which source tokens are no padding, keys and values of the
    tokens before, keys and values of the source. Out: scores, keys and values of the tokens so far."""

    def __init__(self, model: EncoderDecoder):
        super().__init__()
        self.model, self.width = model, model.target_embedding.weight.shape[1]

    def forward(
        self, ids: Int[Tensor, "B L"], keep: Bool[Tensor, "B K"], *held: Tensor
    ) -> list[Tensor]:
        layers = len(self.model.decoder.layers)
        given = _by_layer(held, 2 * layers)
        own, of_source = given[:layers], given[layers:]
        before, stop = own[0].length, own[0].length + ids.shape[1]
        cache: Any = GivenCache(own, of_source, counted(0, stop, "target"))
        # Nothing is read of it but its size, since the cache holds its keys.
        memory_BKD = torch.zeros(*keep.shape, self.width)
        memory = Memory(memory_BKD, counted(0, keep.shape[1], "source"), keep)
        scores_BLV = self.model.step(memory, ids, counted(before, stop, "target"), cache)
        return [scores_BLV, *(tensor for layer in own for tensor in layer.held)]


@dataclass(frozen=True, eq=False)
class Kept:
    """The state of a language model that is told which tokens so far are no padding."""

    keep: Bool[Tensor, "B K"]

    def reading(self, ids: Tensor, positions: Positions, cache: Any) -> Step:
        return Step(ids, positions, self.keep)


class StepAlone(nn.Module):
    """One step of a language model. In: tokens, which of them are no padding; of those before, which were none, keys
    and values. Out: scores, and the same of the tokens so far. Padding stands before the tokens of a row, which are
    counted from 0."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model = model

    def forward(
        self,
        ids: Int[Tensor, "B L"],
        keep: Bool[Tensor, "B L"],
        kept: Bool[Tensor, "B P"],
        *held: Tensor,
    ) -> list[Tensor]:
        own = _by_layer(held, len(self.model.decoder.layers))
        keep_BK = torch.cat((kept, keep), 1)
        places_BK = (keep_BK.long().cumsum(1) - 1).clamp_min(0)
        order_K = torch.arange(keep_BK.shape[1])
        k_pos = Positions(places_BK.unsqueeze(-1), order_K, frame="target")
        cache: Any = GivenCache(own, (), k_pos)
        state: Any = Kept(keep_BK)
        new = k_pos.slice(kept.shape[1], keep_BK.shape[1])
        scores_BLV = self.model.step(state, ids, new, cache)
        return [scores_BLV, keep_BK, *(tensor for layer in own for tensor in layer.held)]


@final
class EncoderDecoderParts(Exportable):
    """`encoder` and `decoder`."""

    def __init__(self, model: EncoderDecoder):
        self.model, self.plain = model, by_definition(model)

    def parts(self) -> list[Part]:
        ends = self.model.max_positions()
        source = _few(SOURCE, ends["source"])
        ids_BK, keep_BK = _drawn(self._sources, ROWS, source), torch.ones(ROWS, source).bool()
        ids_BL = _drawn(self._targets, ROWS, STEP)
        cache = self.plain.new_cache()
        memory = self.plain.start(Tokens(ids_BK, counted(0, source, "source"), keep_BK))
        self.plain.step(memory, ids_BL, counted(0, STEP, "target"), cache)
        keep = Input("keep", ("batch", "source"), keep_BK)
        read = [Input("ids", ("batch", "source"), ids_BK), keep]
        of_source = _held("source", [layer.filled() for layer in cache.source], "source")
        past = _held("past", [layer.filled() for layer in cache.own], "before")
        inputs = [Input("ids", ("batch", "step"), ids_BL), keep, *past, *of_source]
        encoder = Part("encoder", SourceKeys(self.plain), read, [one.name for one in of_source])
        decoder = Part("decoder", StepOnSource(self.plain), inputs, _written(past))
        return [encoder, decoder]

    def compared(self, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
        ends = self.model.max_positions()
        past = self._nothing_before()
        for rows, length in COMPARED:
            source, target = (_few(length, ends[side]) for side in ("source", "target"))
            ids_BK, keep_BK = _drawn(self._sources, rows, source), _kept(rows, source)
            target_BL = _drawn(self._targets, rows, target)
            memory = self.model.start(
                Tokens(ids_BK, Positions.sequence(source, frame="source"), keep_BK)
            )
            theirs, cache = run("encoder", [ids_BK, keep_BK]), self.model.new_cache()
            held = [one.expand(rows, *one.shape[1:]) for one in past]
            for start, stop in _steps(target):
                ids_BL = target_BL[:, start:stop]
                places = Positions.sequence(stop - start, start, frame="target")
                found, *held = run("decoder", [ids_BL, keep_BK, *held, *theirs])
                yield found, self.model.step(memory, ids_BL, places, cache)

    @property
    def _sources(self) -> int:
        own = self.model.source_embedding
        return self._targets if own is None else len(own.weight)

    @property
    def _targets(self) -> int:
        return len(self.model.target_embedding.weight)

    def _nothing_before(self) -> list[Tensor]:
        decoder = self.parts()[1]
        return [one.nothing for one in decoder.inputs if one.name.startswith("past")]


@final
class LanguageModelParts(Exportable):
    """`decoder`."""

    def __init__(self, model: LanguageModel):
        self.model, self.plain = model, by_definition(model)

    def parts(self) -> list[Part]:
        end = self.model.max_positions()["target"]
        before = _few(BEFORE, None if end is None else end - STEP)
        ids_BL = _drawn(self._vocabulary, ROWS, STEP)
        cache = self.plain.new_cache()
        before_BL = _drawn(self._vocabulary, ROWS, before)
        self.plain.step(self.plain.start(None), before_BL, counted(0, before, "target"), cache)
        past = _held("past", [layer.filled() for layer in cache.own], "before")
        kept = Input("past.keep", ("batch", "before"), torch.ones(ROWS, before).bool())
        keep = Input("keep", ("batch", "step"), torch.ones(ROWS, STEP).bool())
        past = [kept, *past]
        inputs = [Input("ids", ("batch", "step"), ids_BL), keep, *past]
        return [Part("decoder", StepAlone(self.plain), inputs, _written(past))]

    def compared(self, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
        end = self.model.max_positions()["target"]
        (part,) = self.parts()
        past = [one.nothing for one in part.inputs if one.name.startswith("past")]
        for rows, length in COMPARED:
            length = _few(length, end)
            ids_BL, keep_BL = _drawn(self._vocabulary, rows, length), _kept(rows, length).flip(1)
            held, cache = [one.expand(rows, *one.shape[1:]) for one in past], self.model.new_cache()
            places = Positions.from_mask(keep_BL, frame="target")
            for start, stop in _steps(length):
                ids, real_BL = ids_BL[:, start:stop], keep_BL[:, start:stop]
                found, *held = run("decoder", [ids, real_BL, *held])
                state: Any = Kept(keep_BL[:, :stop])
                own = self.model.step(state, ids, places.slice(start, stop), cache)
                # What is said at padding means nothing.
                yield found[real_BL], own[real_BL]

    @property
    def _vocabulary(self) -> int:
        return len(self.model.embedding.weight)


def _few(length: int, most: int | None) -> int:
    return length if most is None else min(length, most)


def _drawn(vocab_size: int, rows: int, length: int) -> Int[Tensor, "B L"]:
    generator = torch.Generator().manual_seed(rows + length)
    return torch.randint(vocab_size, (rows, length), generator=generator)


def _kept(rows: int, length: int) -> Bool[Tensor, "B K"]:
    """Each row one shorter than the one before, as long as there are tokens."""
    lengths_B1 = (length - torch.arange(rows)).clamp_min(1).unsqueeze(-1)
    return torch.arange(length) < lengths_B1


def _steps(length: int) -> Iterator[tuple[int, int]]:
    """One token, two, one, two, ..."""
    start, size = 0, 1
    while start < length:
        stop = min(start + size, length)
        yield start, stop
        start, size = stop, 3 - size


def _held(name: str, layers: Sequence[tuple[Tensor, ...]], axis: str) -> list[Input]:
    """What caches hold, as inputs: `past.0.key`, `past.0.value`, `past.0.state`, ... axis: the name of their third."""
    found = []
    for number, held in enumerate(layers):
        kinds = ["key", "value", *(f"state{i}" for i in range(len(held) - 2))]
        for kind, tensor in zip(kinds, held, strict=True):
            axes = ("batch", tensor.shape[1], axis, tensor.shape[3])
            found.append(Input(f"{name}.{number}.{kind}", axes, tensor.contiguous()))
    return found


def _written(past: Sequence[Input]) -> list[str]:
    return ["scores", *(one.name.replace("past", "present", 1) for one in past)]


def _by_layer(held: Sequence[Tensor], layers: int) -> list[GivenLayer]:
    each = len(held) // layers
    return [GivenLayer(held[i * each : (i + 1) * each]) for i in range(layers)]
