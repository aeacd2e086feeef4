"""An encoding on trial: how the laws build it, and where they place tokens for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from jarilab.attention.kernels import Kernel
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.compose import NO_ENCODING, build, canonical, part_spec, split_sum
from jarilab.encodings.formulas.oracle import Cell, Oracle, Position
from jarilab.laws.checks import SkippedError
from jarilab.laws.material import (
    BATCH,
    HEAD_WIDTH,
    LENGTH,
    VALUE_WIDTH,
    VOCABULARY,
    noise,
    randomise,
)
from jarilab.laws.oracle import formula_of
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import generator_for, initialise
from jarilab.positions.coordinates import Positions

STARTS = (0, 7, 1000, 5000)
CLAIMS = (
    "shift_invariant",
    "cross",
    "keeps_norms",
    "integer_only",
    "random_in_training",
    "depends_on_length",
    "uses_order",
)
NODES = 300  # of the graph, for encodings that read labels of pairs
# On two axes tokens are read row by row, WIDE to a row, in a frame that is larger and not square.
WIDE, HEIGHT, WIDTH = 3, 11, 13
PLANE_STARTS = (0, 3, 100)
FURTHER = (0, 1, 2, 5, 9, 40, 300)  # from the start, for the formula
FURTHER_RIGHT = (2, 0, 40, 1, 300, 9, 5)

GRAPH = "it reads the labels of pairs, and a graph has no line to pad, pack or move along"

Start = int | tuple[int, int]


@dataclass(frozen=True)
class Subject:
    """The encoding on trial: how to build it, and what it and positions for it look like.

    labels: how many it tells apart where it reads labelled relations in place of distances, by its attribute `labels`;
        else 0. max_positions, max_distance: as it claims, or None. axes: 1, or 2 where it takes no positions with one.
    made: the claims that it makes; a sum may make fewer than its parts.
    """

    spec: str
    oracle: Oracle | None
    n_heads: int
    labels: int
    max_positions: int | None = None
    max_distance: int | None = None
    axes: int = 1
    made: frozenset[str] = frozenset()

    @staticmethod
    def of(spec: str, oracle: Oracle | None, n_heads: int) -> Subject:
        if any(part_spec(part)[1] is not None for part in split_sum(spec)):
            raise UserError(
                f"the laws look at encodings for all axes; try the parts of {spec} without their @"
            )
        oracle = oracle or formula_of(spec)
        subject = Subject(canonical(spec), oracle, n_heads, 0)
        encoding = build(spec, subject.site())
        build(spec, subject.site(causal=True))
        if not {1, 2} & set(encoding.axes):
            raise UserError(
                f"the laws look at sequences and images, and {spec} takes positions with neither one axis nor two"
            )
        made = frozenset(claim for claim in CLAIMS if getattr(encoding, claim))
        subject = replace(subject, axes=1 if 1 in encoding.axes else 2, made=made)
        subject._check_room(encoding)
        return subject.reading(encoding)

    def _check_room(self, encoding: Encoding) -> None:
        """Raises UserError for an encoding of too few positions to try it."""
        positions, distance = encoding.max_positions, encoding.max_distance
        if positions is not None and positions < 2 * self.span:
            raise UserError(
                f"the laws need {2 * self.span} positions, and {self.spec} has {positions}; try more"
            )
        if distance is not None and distance < self.span:
            raise UserError(
                f"the laws need offsets of {self.span}, and {self.spec} has {distance}; try more"
            )

    def reading(self, encoding: Encoding) -> Subject:
        """The same trial, with the positions that `encoding` can read."""
        labels = max(getattr(module, "labels", 0) for module in encoding.modules())
        return replace(
            self,
            labels=labels,
            max_positions=encoding.max_positions,
            max_distance=encoding.max_distance,
        )

    def claims(self, claim: str) -> bool:
        """Whether it makes the claim."""
        return claim in self.made

    def denies(self, claim: str) -> bool:
        """Whether a class of it says that the claim is not true; a sum may fail to make what all of its parts do."""
        classes = [registry.spec(part).target for part in split_sum(self.spec)]
        return not self.claims(claim) and not all(getattr(cls, claim) for cls in classes)

    @property
    def causal_only(self) -> bool:
        return any(registry.spec(part).target.causal_only for part in split_sum(self.spec))

    def site(
        self,
        causal: bool | None = None,
        n_heads: int | None = None,
        *,
        d_head: int = HEAD_WIDTH,
        cross: bool = False,
    ) -> Site:
        causal = self.causal_only if causal is None else causal
        n_heads = n_heads or self.n_heads
        return Site(n_heads * d_head, n_heads, d_head, VALUE_WIDTH, causal, cross)

    @property
    def crosses(self) -> bool:
        """Whether it may be asked for in cross-attention, between places of two frames."""
        return self.claims("cross") and not self.labels and not self.causal_only

    def encoding(self, spec: str | None = None, site: Site | None = None) -> Encoding:
        """A new one in float64 and evaluation, its parameters the same whenever spec and site are."""
        return randomise(build(spec or self.spec, site or self.site()).double().eval())

    def nothing(self) -> Encoding:
        """The encoding that leaves everything as it is."""
        return build(NO_ENCODING, self.site())

    def encoder_input(self) -> Tensor:
        """Vectors to put into a stack, `(B, L, D)`."""
        return noise("x", BATCH, LENGTH, self.site().d_model)

    def model(self, spec: str | None = None, kernel: Kernel = "auto") -> EncoderDecoder:
        """Encoder, decoder and, if it may be there, cross-attention, all under the encoding."""
        spec = spec or self.spec
        model = EncoderDecoder(
            VOCABULARY,
            VOCABULARY,
            d_model=self.site().d_model,
            n_heads=self.n_heads,
            d_ff=16,
            encoder_encoding=NO_ENCODING if self.causal_only else spec,
            decoder_encoding=spec,
            cross_encoding=spec if self.crosses else NO_ENCODING,
            kernel=kernel,
        ).double()
        initialise(model, 0)
        return model.eval()

    @property
    def span(self) -> int:
        """How many positions of an axis the tokens take: all of a line, or the rows and columns of a small image."""
        return LENGTH if self.axes == 1 else WIDE

    def starts(self) -> list[int]:
        """Where sequences begin, on every axis, as far from 0 as it can go."""
        if self.labels:
            return [0, LENGTH]
        starts = STARTS if self.axes == 1 else PLANE_STARTS
        if self.max_positions is None:
            return list(starts)
        last = self.max_positions - self.span
        return sorted({last, *(start for start in starts if start <= last)})

    def far(self) -> int:
        """Where kernels are tried besides 0. On an image not where it is farthest: the gradient of a learned frequency
        is multiplied by the place, and what bfloat16 rounds off with it."""
        return self.starts()[-1] if self.axes == 1 else self.starts()[1]

    def moves(self, by: int) -> list[Start]:
        """All ways to move that far: along the line, or along both axes or one."""
        return [by] if self.axes == 1 else [by, (by, 0), (0, by)]

    def shuffles(self) -> dict[str, Tensor]:
        """Permutations that should change outputs: of all tokens, on two axes also of two in a row, and in a column."""
        shuffles = {"of the tokens": torch.tensor([3, 0, 6, 1, 5, 2, 4])}
        if self.axes == 2:
            shuffles["along a row"] = torch.tensor([1, 0, 2, 3, 4, 5, 6])
            shuffles["along a column"] = torch.tensor([WIDE, 1, 2, 0, 4, 5, 6])
        return shuffles

    def sequence(self, start: int, length: int = LENGTH, frame: str = "sequence") -> Positions:
        """Tokens that follow each other; where it reads labels, as many nodes of a graph."""
        if self.labels:
            generator = generator_for(0, "labels")
            labels = torch.randint(self.labels, (NODES, NODES), generator=generator)
            return Positions.graph(labels, frame=frame).slice(start, start + length)
        if self.axes == 1:
            return Positions.sequence(length, start, frame=frame)
        order = torch.arange(length)
        return replace(self.places(order, start), order=order + start, frame=frame)

    def anywhere(self, length: int) -> Positions:
        """So many tokens, starting over where the encoding ends."""
        if self.labels:
            return self.sequence(0, length)
        index = torch.arange(length)
        if self.axes == 1:
            return self.places(index % (self.max_positions or length))
        ends = (length, self.max_positions, self.max_distance)
        nearest_end = min(end for end in ends if end is not None)
        return self.places(index % (WIDE * nearest_end))

    def places(self, index: Tensor, start: Start = 0) -> Positions:
        """Tokens at `index`, `(L,)` or `(B, L)`, in the order given: steps along the line from `start` on, or cells of
        the image whose first is in row and column `start`."""
        if self.labels:
            raise SkippedError(GRAPH)
        first = torch.tensor(start)
        if self.axes == 1:
            return self._at((index + first).unsqueeze(-1))
        cells = torch.stack((index // WIDE, index % WIDE), -1)
        return self._at(cells + first)

    def arrangements(self, start: int) -> dict[str, Positions]:
        """Tokens whose places are not simply one after the other: they start anew as the digits of a second number do,
        several share one, or they are in no order."""
        if self.labels:
            return {}
        indices = {
            "restarted": [0, 1, 2, 0, 1, 2, 3],
            "coarse": [0, 0, 1, 1, 1, 2, 2],
            "shuffled": [3, 0, 6, 1, 5, 2, 4],
        }
        return {name: self.places(torch.tensor(index), start) for name, index in indices.items()}

    def wrapped(self, index: Tensor, start: int) -> Positions:
        """`places`, starting over where the encoding ends."""
        pos = self.places(index, start)
        if self.max_positions is None:
            return pos
        return replace(pos, coordinates=pos.coordinates % self.max_positions)

    def scattered(self, start: int) -> list[Position]:
        """LENGTH positions near and far from each other, from `start` on, as the formula takes them."""
        rows = [self._within(start, further) for further in FURTHER]
        if self.axes == 1:
            return list(rows)
        columns = [self._within(start, further) for further in FURTHER_RIGHT]
        pairs = zip(rows, columns, strict=True)
        return [Cell(row, column, HEIGHT, WIDTH) for row, column in pairs]

    def row(self, count: int) -> list[Position]:
        """So many positions from 0 on, or as many as it knows; on two axes every row and every column, in another
        order."""
        ends = (count, self.max_positions, self.max_distance and self.max_distance + 1)
        count = min(end for end in ends if end is not None)
        if self.axes == 1:
            return list(range(count))
        # Three and the count may have a factor in common; then some columns come more than once.
        return [Cell(i, 3 * i % count, HEIGHT, WIDTH) for i in range(count)]

    def halves(self) -> list[Position]:
        """LENGTH positions of which most lie between whole ones."""
        if self.axes == 1:
            return [1.5 * i for i in range(LENGTH)]
        return [Cell(1.5 * (i // WIDE), 0.5 * (i % WIDE), HEIGHT, WIDTH) for i in range(LENGTH)]  # type: ignore[arg-type]

    def _within(self, start: int, further: int) -> int:
        """A place so much further than `start`, started over where the encoding ends."""
        if self.max_distance is not None:
            further %= self.max_distance + 1
        place = start + further
        return place if self.max_positions is None else place % self.max_positions

    def at(self, positions: Sequence[Position]) -> Positions:
        """Tokens at these positions."""
        if self.labels:
            raise SkippedError(GRAPH)
        coordinates = [at[:2] if isinstance(at, Cell) else (at,) for at in positions]
        return self._at(torch.tensor(coordinates))

    def _at(self, coordinates: Tensor) -> Positions:
        order = torch.arange(coordinates.shape[-2])
        if self.axes == 1:
            return Positions(coordinates, order)
        extent = torch.tensor((HEIGHT, WIDTH))
        return Positions(coordinates, order, ("row", "column"), extent=extent)
