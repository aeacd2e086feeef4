"""The encoding under test: how to build it, and positions for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from jarilab.attention.kernels import Kernel
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.compose import NO_ENCODING, build, canonical, part_spec, split_sum
from jarilab.encodings.formulas.oracle import Cell, Oracle, Position
from jarilab.laws.checks import SkippedError, user_error_of
from jarilab.laws.fixtures import (
    BATCH,
    HEAD_WIDTH,
    LENGTH,
    VALUE_WIDTH,
    VOCABULARY,
    noise,
    randomise,
    variants,
)
from jarilab.laws.spec_oracle import formula_of
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
OTHER_SITES = ((1, 20), (8, 8), (12, 20), (20, 8), (2, 64), (1, 256), (16, 8), (40, 4))
"""Heads, and their width."""
NODES = 300  # of the graph, for encodings that read labels of pairs
# On two axes tokens are read row by row, WIDE to a row, in a frame that is larger and not square.
WIDE, HEIGHT, WIDTH = 3, 11, 13
PLANE_STARTS = (0, 3, 100)
FURTHER = (0, 1, 2, 5, 9, 40, 300)  # from the start, for the formula
FURTHER_RIGHT = (2, 0, 40, 1, 300, 9, 5)

GRAPH = "it reads labels of pairs, and a graph cannot be padded, packed or shifted"

Start = int | tuple[int, int]


@dataclass(frozen=True)
class Subject:
    """The encoding under test, and the positions that it can read.

    labels: the number of labels, if it reads labelled relations in place of distances (attribute `labels`); else 0.
    max_positions, max_distance: as it claims, or None. axes: 1, or 2 if it supports no positions with one. made: its
    claims; a sum may make fewer than its parts. has_own_oracle: whether the formula is that of its class, which holds
    for all options.
    """

    spec: str
    oracle: Oracle | None
    n_heads: int
    labels: int
    max_positions: int | None = None
    max_distance: int | None = None
    axes: int = 1
    made: frozenset[str] = frozenset()
    has_own_oracle: bool = False

    @staticmethod
    def of(spec: str, oracle: Oracle | None, n_heads: int) -> Subject:
        if any(part_spec(part)[1] is not None for part in split_sum(spec)):
            raise UserError(
                f"the laws test encodings for all axes; test the parts of {spec} without their @"
            )
        subject = Subject(
            canonical(spec), oracle or formula_of(spec), n_heads, 0, has_own_oracle=oracle is None
        )
        encoding = build(spec, subject.site())
        build(spec, subject.site(causal=True))
        if not {1, 2} & set(encoding.axes):
            raise UserError(
                f"the laws test sequences and images, and {spec} takes positions with neither one axis nor two"
            )
        made = frozenset(claim for claim in CLAIMS if getattr(encoding, claim))
        subject = replace(subject, axes=1 if 1 in encoding.axes else 2, made=made)
        subject._check_room(encoding)
        return subject.reading(encoding)

    def _check_room(self, encoding: Encoding) -> None:
        """Raises UserError for an encoding with too few positions for the laws."""
        positions, distance = encoding.max_positions, encoding.max_distance
        if positions is not None and positions < 2 * self.span:
            raise UserError(
                f"the laws need {2 * self.span} positions, and {self.spec} has {positions}; use more"
            )
        if distance is not None and distance < self.span:
            raise UserError(
                f"the laws need offsets of {self.span}, and {self.spec} has {distance}; use more"
            )

    def reading(self, encoding: Encoding) -> Subject:
        """The same subject, with the positions that `encoding` can read."""
        labels = max(getattr(module, "labels", 0) for module in encoding.modules())
        return replace(
            self,
            labels=labels,
            max_positions=encoding.max_positions,
            max_distance=encoding.max_distance,
        )

    def with_other_options(self) -> list[Subject]:
        """The encoding with one option changed at a time, where the laws can test it.

        Its formula is None where only that of the options given is known.
        """
        subjects = []
        for text in variants(self.spec):
            try:
                subject = Subject.of(text, None, self.n_heads)
            except UserError:
                continue
            if (subject.axes, subject.labels) == (self.axes, self.labels):
                oracle = subject.oracle if self.has_own_oracle else None
                subjects.append(replace(subject, oracle=oracle))
        return subjects

    def claims(self, claim: str) -> bool:
        """Whether it makes the claim."""
        return claim in self.made

    def denies(self, claim: str) -> bool:
        """Whether one of its classes denies the claim; a sum may not make it although all parts do."""
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

    def other_sites(self) -> list[Site]:
        """Sites with other heads; with the default width of a head if the encoding refuses another."""
        sites = []
        for n_heads, d_head in OTHER_SITES:
            site = self.site(n_heads=n_heads, d_head=d_head)
            refused = user_error_of(partial(build, self.spec, site)) is not None
            sites.append(self.site(n_heads=n_heads) if refused else site)
        return sites

    @property
    def crosses(self) -> bool:
        """Whether it may be used in cross-attention, between positions of two frames."""
        return self.claims("cross") and not self.labels and not self.causal_only

    def encoding(self, spec: str | None = None, site: Site | None = None) -> Encoding:
        """A new encoding in float64 and evaluation; its parameters depend only on spec and site."""
        return randomise(build(spec or self.spec, site or self.site()).double().eval())

    def nothing(self) -> Encoding:
        """The encoding that changes nothing."""
        return build(NO_ENCODING, self.site())

    def encoder_input(self) -> Tensor:
        """Vectors for a stack, `(B, L, D)`."""
        return noise("x", BATCH, LENGTH, self.site().d_model)

    def model(self, spec: str | None = None, kernel: Kernel = "auto") -> EncoderDecoder:
        """An encoder-decoder with the encoding in every attention that may have it."""
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
        """Number of positions that LENGTH tokens use along an axis."""
        return LENGTH if self.axes == 1 else WIDE

    def starts(self) -> list[int]:
        """First positions of sequences, on every axis, up to the farthest."""
        if self.labels:
            return [0, LENGTH]
        starts = STARTS if self.axes == 1 else PLANE_STARTS
        if self.max_positions is None:
            return list(starts)
        last = self.max_positions - self.span
        return sorted({last, *(start for start in starts if start <= last)})

    def far(self) -> int:
        """The start for kernels besides 0.

        On an image it is not the farthest: the gradient of a learned frequency is multiplied by the position, and so
        are rounding errors of bfloat16.
        """
        return self.starts()[-1] if self.axes == 1 else self.starts()[1]

    def moves(self, by: int) -> list[Start]:
        """All shifts by that distance: along the line, or along both axes or one."""
        return [by] if self.axes == 1 else [by, (by, 0), (0, by)]

    def shuffles(self) -> dict[str, Tensor]:
        """Permutations that should change outputs: of all tokens; on two axes also within a row and a column."""
        shuffles = {"of the tokens": torch.tensor([3, 0, 6, 1, 5, 2, 4])}
        if self.axes == 2:
            shuffles["along a row"] = torch.tensor([1, 0, 2, 3, 4, 5, 6])
            shuffles["along a column"] = torch.tensor([WIDE, 1, 2, 0, 4, 5, 6])
        return shuffles

    def sequence(self, start: int, length: int = LENGTH, frame: str = "sequence") -> Positions:
        """Consecutive tokens; for labels, nodes of a graph."""
        if self.labels:
            generator = generator_for(0, "labels")
            labels = torch.randint(self.labels, (NODES, NODES), generator=generator)
            return Positions.graph(labels, frame=frame).slice(start, start + length)
        if self.axes == 1:
            return Positions.sequence(length, start, frame=frame)
        order = torch.arange(length)
        return replace(self.places(order, start), order=order + start, frame=frame)

    def anywhere(self, length: int) -> Positions:
        """`length` tokens, starting again at the encoding's limit."""
        if self.labels:
            return self.sequence(0, length)
        index = torch.arange(length)
        if self.axes == 1:
            return self.places(index % (self.max_positions or length))
        ends = (length, self.max_positions, self.max_distance)
        nearest_end = min(end for end in ends if end is not None)
        return self.places(index % (WIDE * nearest_end))

    def places(self, index: Tensor, start: Start = 0) -> Positions:
        """Tokens at `index`, `(L,)` or `(B, L)`: steps along a line, or cells of an image, from `start` on."""
        if self.labels:
            raise SkippedError(GRAPH)
        first = torch.tensor(start)
        if self.axes == 1:
            return self._at((index + first).unsqueeze(-1))
        cells = torch.stack((index // WIDE, index % WIDE), -1)
        return self._at(cells + first)

    def arrangements(self, start: int) -> dict[str, Positions]:
        """Tokens whose positions restart, repeat or are shuffled."""
        if self.labels:
            return {}
        indices = {
            "restarted": [0, 1, 2, 0, 1, 2, 3],
            "coarse": [0, 0, 1, 1, 1, 2, 2],
            "shuffled": [3, 0, 6, 1, 5, 2, 4],
        }
        return {name: self.places(torch.tensor(index), start) for name, index in indices.items()}

    def wrapped(self, index: Tensor, start: int) -> Positions:
        """`places`, starting again at the encoding's limits."""
        pos, (first, size) = self.places(index, start), self._window(start)
        if size is None:
            return pos
        return replace(pos, coordinates=first + (pos.coordinates - first) % size)

    def scattered(self, start: int) -> list[Position]:
        """LENGTH positions near to and far from each other, from `start` on, for the formula."""
        rows = [self._within(start, further) for further in FURTHER]
        if self.axes == 1:
            return list(rows)
        columns = [self._within(start, further) for further in FURTHER_RIGHT]
        pairs = zip(rows, columns, strict=True)
        return [Cell(row, column, HEIGHT, WIDTH) for row, column in pairs]

    def row(self, count: int) -> list[Position]:
        """`count` positions from 0, or as many as it has; on two axes all rows and columns, in different orders."""
        ends = (count, self.max_positions, self.max_distance and self.max_distance + 1)
        count = min(end for end in ends if end is not None)
        if self.axes == 1:
            return list(range(count))
        # Three and the count may have a factor in common; then some columns come more than once.
        return [Cell(i, 3 * i % count, HEIGHT, WIDTH) for i in range(count)]

    def halves(self) -> list[Position]:
        """LENGTH positions, most of them between whole numbers."""
        if self.axes == 1:
            return [1.5 * i for i in range(LENGTH)]
        return [Cell(1.5 * (i // WIDE), 0.5 * (i % WIDE), HEIGHT, WIDTH) for i in range(LENGTH)]  # type: ignore[arg-type]

    def _within(self, start: int, further: int) -> int:
        """A position `further` than `start`, starting again at the encoding's limits."""
        first, size = self._window(start)
        place = start + further
        return place if size is None else first + (place - first) % size

    def _window(self, start: int) -> tuple[int, int | None]:
        """The first of the positions around `start` that the encoding can compare, and their number, None for all."""
        sizes = (self.max_positions, self.max_distance and self.max_distance + 1)
        size = min((size for size in sizes if size is not None), default=None)
        if size is None or self.max_positions is None:
            return start, size
        return min(start, self.max_positions - size), size

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
