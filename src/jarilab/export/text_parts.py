"""Models that generate tokens, as parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor
from jarilab.data.text import FIRST
from jarilab.export.parts import LONG, Exportable, Input, Pairs, Part, Run, by_definition
from jarilab.models.decoder import DecodingStep, LanguageModel
from jarilab.models.encoder_decoder import EncoderDecoder, Memory
from jarilab.positions.coordinates import Positions, Tokens


class GraphLayerCache:
    """A `LayerCache` whose tensors are inputs and outputs of a graph, without preallocated memory."""

    def __init__(self, tensors: Sequence[Tensor] = ()):
        self.tensors = tuple(tensors)

    @property
    def length(self) -> int:
        return self.tensors[0].shape[2] if self.tensors else 0

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        if self.tensors:
            pairs = zip(self.tensors, new, strict=True)
            new = tuple(torch.cat(pair, 2) for pair in pairs)
        self.tensors = new
        return new

    def filled(self) -> tuple[Tensor, ...]:
        return self.tensors


class GraphCache:
    """A `KVCache` whose tensors are inputs and outputs of a graph. k_pos: positions of all keys, with the new ones."""

    positions: Any = None
    """None: positions by which a window drops keys; a graph drops none."""
    writes: Any = None

    def __init__(
        self, target: Sequence[GraphLayerCache], source: Sequence[GraphLayerCache], k_pos: Positions
    ):
        self.target, self.source, self.k_pos = list(target), list(source), k_pos

    def belong_to(self, origin: object) -> None:
        """Accept any source: the caller of the graph passes its keys."""

    def check_sources(self, sources: int) -> None:
        """Accept any number of sources."""

    def extend(self, new: Positions) -> Positions:
        return self.k_pos


ROWS, SOURCE, BEFORE, STEP = 2, 5, 3, 2
"""Sizes of examples: sequences, source tokens, tokens read before, tokens of a step."""
COMPARED = ((1, 1), (3, 4), (2, 9))
"""Sequences and tokens of the comparison, within the limits of the model. The longest of the run follow."""


def counted(start: int, stop: int, frame: str) -> Positions:
    """Positions from `start` to `stop` (excluded)."""
    # Without the bounds checks of `Positions.sequence`, which would make a dynamic size constant.
    index_L = torch.arange(start, stop)
    return Positions(index_L.unsqueeze(-1), index_L, frame=frame)


class SourceKeys(nn.Module):
    """The keys and values of sources in each decoder layer. Inputs: tokens, and which of them are no padding."""

    def __init__(self, model: EncoderDecoder):
        super().__init__()
        self.model = model

    def forward(self, ids: Int[Tensor, "B K"], keep: Bool[Tensor, "B K"]) -> list[Tensor]:
        source = Tokens(ids, counted(0, ids.shape[1], "source"), keep)
        memory = self.model.start(source)
        layers = self.model.decoder.layers
        places = counted(0, 1, "target")
        source_layers = [GraphLayerCache() for _ in layers]
        cache: Any = GraphCache([GraphLayerCache() for _ in layers], source_layers, places)
        # A step computes the keys of the source in each layer; its own outputs are not needed.
        first_B1 = torch.full_like(ids[:, :1], FIRST)
        self.model.step(memory, first_B1, places, cache)
        return [tensor for layer in source_layers for tensor in layer.tensors]


class StepOnSource(nn.Module):
    """One step of a decoder with source.

    Inputs: tokens, which source tokens are no padding, cached keys and values, keys and values of the source. Outputs:
    scores, and the new cache.
    """

    def __init__(self, model: EncoderDecoder):
        super().__init__()
        self.model, self.width = model, model.target_embedding.weight.shape[1]

    def forward(
        self, ids: Int[Tensor, "B L"], keep: Bool[Tensor, "B K"], *cached: Tensor
    ) -> list[Tensor]:
        layers = len(self.model.decoder.layers)
        caches = _by_layer(cached, 2 * layers)
        own_layers, source_layers = caches[:layers], caches[layers:]
        before, stop = own_layers[0].length, own_layers[0].length + ids.shape[1]
        cache: Any = GraphCache(own_layers, source_layers, counted(0, stop, "target"))
        # Only its size is read: the cache has its keys.
        memory_BKD = torch.zeros(*keep.shape, self.width)
        memory = Memory(memory_BKD, counted(0, keep.shape[1], "source"), keep)
        scores_BLV = self.model.step(memory, ids, counted(before, stop, "target"), cache)
        return [scores_BLV, *(tensor for layer in own_layers for tensor in layer.tensors)]


@dataclass(frozen=True, eq=False)
class PaddingState:
    """The decoding state of a language model with a mask of padding. keep: False at padding."""

    keep: Bool[Tensor, "B K"]

    def reading(self, ids: Tensor, positions: Positions, cache: Any) -> DecodingStep:
        return ids, positions, self.keep


class StepAlone(nn.Module):
    """One step of a language model.

    Inputs: tokens, which of them are no padding, the same of cached tokens, cached keys and values. Outputs: scores,
    the mask, and the new cache. Padding is on the left, and position IDs count from 0 after it.
    """

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model = model

    def forward(
        self,
        ids: Int[Tensor, "B L"],
        keep: Bool[Tensor, "B L"],
        cached_keep: Bool[Tensor, "B P"],
        *cached: Tensor,
    ) -> list[Tensor]:
        own_layers = _by_layer(cached, len(self.model.decoder.layers))
        keep_BK = torch.cat((cached_keep, keep), 1)
        places_BK = (keep_BK.long().cumsum(1) - 1).clamp_min(0)
        order_K = torch.arange(keep_BK.shape[1])
        k_pos = Positions(places_BK.unsqueeze(-1), order_K, frame="target")
        cache: Any = GraphCache(own_layers, (), k_pos)
        state: Any = PaddingState(keep_BK)
        new = k_pos.slice(cached_keep.shape[1], keep_BK.shape[1])
        scores_BLV = self.model.step(state, ids, new, cache)
        return [scores_BLV, keep_BK, *(tensor for layer in own_layers for tensor in layer.tensors)]


@final
class EncoderDecoderParts(Exportable):
    """The parts `encoder` and `decoder`."""

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
        of_source = _cache_inputs("source", [layer.filled() for layer in cache.source], "source")
        past = _cache_inputs("past", [layer.filled() for layer in cache.target], "before")
        inputs = [Input("ids", ("batch", "step"), ids_BL), keep, *past, *of_source]
        encoder = Part("encoder", SourceKeys(self.plain), read, [one.name for one in of_source])
        decoder = Part("decoder", StepOnSource(self.plain), inputs, _written(past))
        return [encoder, decoder]

    def compared(self, run: Run, longest: Mapping[str, int] = LONG) -> Pairs:
        ends = self.model.max_positions()
        inputs = self.parts()[1].inputs
        past = [one.nothing for one in inputs if one.name.startswith("past")]
        for rows, length in (*COMPARED, (2, max(longest.values()))):
            source, target = (_few(min(length, longest[side]), ends[side]) for side in ends)
            ids_BK, keep_BK = _drawn(self._sources, rows, source), _keep_mask(rows, source)
            target_BL = _drawn(self._targets, rows, target)
            memory = self.model.start(
                Tokens(ids_BK, Positions.sequence(source, frame="source"), keep_BK)
            )
            source_keys, cache = run("encoder", [ids_BK, keep_BK]), self.model.new_cache()
            cached = [one.expand(rows, *one.shape[1:]) for one in past]
            for start, stop in _steps(target):
                ids_BL = target_BL[:, start:stop]
                places = Positions.sequence(stop - start, start, frame="target")
                scores, *cached = run("decoder", [ids_BL, keep_BK, *cached, *source_keys])
                yield scores, self.model.step(memory, ids_BL, places, cache)

    @property
    def _sources(self) -> int:
        return len(self.model.embeddings[0].weight)

    @property
    def _targets(self) -> int:
        return len(self.model.target_embedding.weight)


@final
class LanguageModelParts(Exportable):
    """The part `decoder`. Raises UserError for a model that reads tokens before those it is given."""

    def __init__(self, model: LanguageModel):
        if model.token_before is not None:
            raise UserError(
                "a graph has keys and values of earlier tokens, and a model with model.token_before=true needs the "
                "tokens too; train one without it, or answer with `jarilab predict` or `jarilab serve`"
            )
        self.model, self.plain = model, by_definition(model)

    def parts(self) -> list[Part]:
        end = self.model.max_positions()["target"]
        before = _few(BEFORE, None if end is None else end - STEP)
        ids_BL = _drawn(self._vocabulary, ROWS, STEP)
        cache = self.plain.new_cache()
        before_BL = _drawn(self._vocabulary, ROWS, before)
        self.plain.step(self.plain.start(None), before_BL, counted(0, before, "target"), cache)
        past = _cache_inputs("past", [layer.filled() for layer in cache.target], "before")
        past_keep = Input("past.keep", ("batch", "before"), torch.ones(ROWS, before).bool())
        keep = Input("keep", ("batch", "step"), torch.ones(ROWS, STEP).bool())
        past = [past_keep, *past]
        inputs = [Input("ids", ("batch", "step"), ids_BL), keep, *past]
        return [Part("decoder", StepAlone(self.plain), inputs, _written(past))]

    def compared(self, run: Run, longest: Mapping[str, int] = LONG) -> Pairs:
        end = self.model.max_positions()["target"]
        (part,) = self.parts()
        past = [one.nothing for one in part.inputs if one.name.startswith("past")]
        for rows, length in (*COMPARED, (2, longest["target"])):
            length = _few(min(length, longest["target"]), end)
            ids_BL = _drawn(self._vocabulary, rows, length)
            keep_BL = _keep_mask(rows, length).flip(1)
            cached = [tensor.expand(rows, *tensor.shape[1:]) for tensor in past]
            cache = self.model.new_cache()
            places = Positions.from_mask(keep_BL, frame="target")
            for start, stop in _steps(length):
                ids, real_BL = ids_BL[:, start:stop], keep_BL[:, start:stop]
                scores, *cached = run("decoder", [ids, real_BL, *cached])
                state: Any = PaddingState(keep_BL[:, :stop])
                expected = self.model.step(state, ids, places.slice(start, stop), cache)
                # Scores at padding are arbitrary.
                yield scores[real_BL], expected[real_BL]

    @property
    def _vocabulary(self) -> int:
        return len(self.model.embedding.weight)


def _few(length: int, most: int | None) -> int:
    return length if most is None else min(length, most)


def _drawn(vocab_size: int, rows: int, length: int) -> Int[Tensor, "B L"]:
    generator = torch.Generator().manual_seed(rows + length)
    return torch.randint(vocab_size, (rows, length), generator=generator)


def _keep_mask(rows: int, length: int) -> Bool[Tensor, "B K"]:
    """A mask in which each row is one token shorter than the one before."""
    lengths_B1 = (length - torch.arange(rows)).clamp_min(1).unsqueeze(-1)
    return torch.arange(length) < lengths_B1


def _steps(length: int) -> Iterator[tuple[int, int]]:
    """Steps of one token, two, one, two, ...; of more than 16 tokens, all but the first and last 8 at once."""
    start, size = 0, 1
    while start < length:
        stop = min(start + size, length)
        if start >= 8 and stop < length - 8:
            stop = length - 8
        yield start, stop
        start, size = stop, 3 - size


def _cache_inputs(name: str, layers: Sequence[tuple[Tensor, ...]], axis: str) -> list[Input]:
    """Cache tensors as inputs `past.0.key`, `past.0.value`, `past.0.state`, ... axis: the name of their third axis."""
    inputs = []
    for number, tensors in enumerate(layers):
        kinds = ["key", "value", *(f"state{i}" for i in range(len(tensors) - 2))]
        for kind, tensor in zip(kinds, tensors, strict=True):
            axes = ("batch", tensor.shape[1], axis, tensor.shape[3])
            inputs.append(Input(f"{name}.{number}.{kind}", axes, tensor.contiguous()))
    return inputs


def _written(past: Sequence[Input]) -> list[str]:
    return ["scores", *(one.name.replace("past", "present", 1) for one in past)]


def _by_layer(tensors: Sequence[Tensor], layers: int) -> list[GraphLayerCache]:
    count = len(tensors) // layers
    return [GraphLayerCache(tensors[i * count : (i + 1) * count]) for i in range(layers)]
