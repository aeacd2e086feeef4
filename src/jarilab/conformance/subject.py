"""An encoding on trial: how the laws build it, place tokens for it, and hear what it says."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn import functional

from jarilab.attention.kernels import Kernel
from jarilab.encodings.base import Encoding, Site, hooks_of, registry
from jarilab.encodings.compose import WITHOUT, build, canonical, part_spec, parts_of
from jarilab.encodings.formulas import ORACLES
from jarilab.encodings.oracle import Cell, Oracle, Place, sum_of
from jarilab.errors import UserError
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.stacks import Encoder
from jarilab.nn.init import generator_for, initialise
from jarilab.options import options_of
from jarilab.positions import Positions
from jarilab.shapes import Tensor

# Lengths that are all different, so that no axis passes for another: B 2, K and L 7, H 6, E 8, E' 5, D 48.
BATCH, LENGTH, HEAD_WIDTH, VALUE_WIDTH = 2, 7, 8, 5
VOCABULARY = 11
STARTS = (0, 7, 1000, 5000)
FORMULAS = ORACLES | ORACLES_2D
CLAIMS = ("shift_invariant", "cross", "keeps_norms")
NODES = 300  # of the graph, for encodings that read labels of pairs
# On two axes tokens are read row by row, WIDE to a row, in a frame that is larger and not square.
WIDE, HEIGHT, WIDTH = 3, 11, 13
PLANE_STARTS = (0, 3, 100)
FURTHER = (0, 1, 2, 5, 9, 40, 300)  # from the start, for the formula
FURTHER_RIGHT = (2, 0, 40, 1, 300, 9, 5)

Start = int | tuple[int, int]

M = TypeVar("M", bound=nn.Module)


class BrokenError(Exception):
    """The law does not hold."""


class SkippedError(Exception):
    """The law says nothing about this encoding."""


@dataclass(frozen=True)
class Subject:
    """The encoding on trial: how to build it, and what it and positions for it look like.

    labels: how many it tells apart where it reads labelled relations in place of distances, by its attribute `labels`;
        else 0. longest, farthest: as it claims, or None. axes: 1, or 2 where it takes no positions with one axis.
    made: the claims that it makes; a sum may make fewer than its parts.
    """

    spec: str
    oracle: Oracle | None
    heads: int
    labels: int
    max_positions: int | None = None
    max_distance: int | None = None
    axes: int = 1
    made: frozenset[str] = frozenset()

    @staticmethod
    def of(spec: str, oracle: Oracle | None, heads: int) -> Subject:
        if any(axes is not None for _, axes in map(part_spec, parts_of(spec))):
            raise UserError(
                f"the laws look at encodings for all axes; try the parts of {spec} without their @"
            )
        oracle = oracle or _formula_of(spec)
        subject = Subject(canonical(spec), oracle, heads, 0)
        encoding, _ = build(spec, subject.site()), build(spec, subject.site(causal=True))
        if not {1, 2} & set(encoding.axes):
            raise UserError(
                f"the laws look at sequences and images, and {spec} takes positions with neither one axis nor two"
            )
        made = frozenset(claim for claim in CLAIMS if getattr(encoding, claim))
        subject = replace(subject, axes=1 if 1 in encoding.axes else 2, made=made)
        if encoding.max_positions is not None and encoding.max_positions < 2 * subject.span:
            raise UserError(
                f"the laws need {2 * subject.span} positions, and {spec} has {encoding.max_positions}; try more"
            )
        if encoding.max_distance is not None and encoding.max_distance < subject.span:
            raise UserError(
                f"the laws need offsets of {subject.span}, and {spec} has {encoding.max_distance}; try more"
            )
        return subject.reading(encoding)

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

    @property
    def causal_only(self) -> bool:
        return any(registry.spec(part).target.causal_only for part in parts_of(self.spec))

    def site(self, causal: bool | None = None, heads: int | None = None) -> Site:
        causal = self.causal_only if causal is None else causal
        heads = heads or self.heads
        return Site(heads * HEAD_WIDTH, heads, HEAD_WIDTH, VALUE_WIDTH, causal=causal)

    def encoding(self, spec: str | None = None, site: Site | None = None) -> Encoding:
        """A new one in float64, its parameters the same whenever spec and site are."""
        return randomise(build(spec or self.spec, site or self.site()).double())

    def nothing(self) -> Encoding:
        """The encoding that leaves everything as it is."""
        return build(WITHOUT, self.site())

    def encoder(self) -> Encoder:
        """Two layers in float64."""
        if self.causal_only:
            raise SkippedError(
                "it works only where queries never see later keys, and this law looks at an encoder"
            )
        encoder = Encoder(self.site().width, self.heads, encoding=self.spec, hidden=16).double()
        initialise(encoder, 0)
        return randomise(encoder)

    def model(self, spec: str | None = None, kernel: Kernel = "auto") -> EncoderDecoder:
        """Encoder, decoder and, if it may be there, cross-attention, all under the encoding."""
        spec = spec or self.spec
        crosses = self.claims("cross") and not self.labels and not self.causal_only
        model = EncoderDecoder(
            VOCABULARY,
            VOCABULARY,
            width=self.site().width,
            heads=self.heads,
            hidden=16,
            encoder_encoding=WITHOUT if self.causal_only else spec,
            decoder_encoding=spec,
            cross_encoding=spec if crosses else WITHOUT,
            kernel=kernel,
        ).double()
        initialise(model, 0)
        return model

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
        return sorted(
            {start for start in starts if start + self.span <= self.max_positions}
            | {self.max_positions - self.span}
        )

    def far(self) -> int:
        """Where kernels are tried besides 0. On an image not where it is farthest: the gradient of a learned frequency
        is multiplied by the place, and what bfloat16 rounds off with it."""
        return self.starts()[-1] if self.axes == 1 else self.starts()[1]

    def moves(self, by: int) -> list[Start]:
        """All ways to move that far: along the line, or along both axes or one."""
        return [by] if self.axes == 1 else [by, (by, 0), (0, by)]

    def shuffles(self) -> dict[str, Tensor]:
        """Permutations that it should hear: of all tokens, and on two axes of two in a row and of two in a column."""
        shuffles = {"of the tokens": torch.tensor([3, 0, 6, 1, 5, 2, 4])}
        if self.axes == 2:
            shuffles["along a row"] = torch.tensor([1, 0, 2, 3, 4, 5, 6])
            shuffles["along a column"] = torch.tensor([WIDE, 1, 2, 0, 4, 5, 6])
        return shuffles

    def sequence(self, start: int, length: int = LENGTH, frame: str = "sequence") -> Positions:
        """Tokens that follow each other; where it reads labels, as many nodes of a graph."""
        if self.labels:
            labels = torch.randint(
                self.labels, (NODES, NODES), generator=generator_for(0, "labels")
            )
            return Positions.graph(labels, frame=frame).slice(start, start + length)
        if self.axes == 1:
            return Positions.sequence(length, start, frame=frame)
        order = torch.arange(length)
        return replace(self.places(order, start), order=order + start, frame=frame)

    def anywhere(self, length: int) -> Positions:
        """So many tokens, starting over where the encoding ends."""
        if self.labels:
            return self.sequence(0, length)
        if self.axes == 1:
            return self.places(torch.arange(length) % (self.max_positions or length))
        ends = [
            length,
            *(end for end in (self.max_positions, self.max_distance) if end is not None),
        ]
        return self.places(torch.arange(length) % (WIDE * min(ends)))

    def places(self, index: Tensor, start: Start = 0) -> Positions:
        """Tokens at `index`, `(L,)` or `(B, L)`, in the order given: steps along the line from `start` on, or cells of
        the image whose first is in row and column `start`."""
        if self.labels:
            raise SkippedError(
                "it reads the labels of pairs, and a graph has no line to pad, pack or move along"
            )
        first = torch.tensor(start)
        if self.axes == 1:
            return self._at((index + first).unsqueeze(-1))
        return self._at(torch.stack((index // WIDE, index % WIDE), -1) + first)

    def wrapped(self, index: Tensor, start: int) -> Positions:
        """`places`, starting over where the encoding ends."""
        pos = self.places(index, start)
        return (
            pos
            if self.max_positions is None
            else replace(pos, coordinates=pos.coordinates % self.max_positions)
        )

    def scattered(self, start: int) -> list[Place]:
        """LENGTH positions near and far from each other, from `start` on, as the formula takes them."""

        def on_axis(further: Sequence[int]) -> list[int]:
            within = (
                further
                if self.max_distance is None
                else [f % (self.max_distance + 1) for f in further]
            )
            return [
                start + f if self.max_positions is None else (start + f) % self.max_positions
                for f in within
            ]

        if self.axes == 1:
            return list(on_axis(FURTHER))
        return [
            Cell(*at, HEIGHT, WIDTH)
            for at in zip(on_axis(FURTHER), on_axis(FURTHER_RIGHT), strict=True)
        ]

    def at(self, positions: Sequence[Place]) -> Positions:
        """Tokens at these positions."""
        if self.labels:
            raise SkippedError(
                "it reads the labels of pairs, and a graph has no line to pad, pack or move along"
            )
        return self._at(
            torch.tensor([at[:2] if isinstance(at, Cell) else (at,) for at in positions])
        )

    def _at(self, coordinates: Tensor) -> Positions:
        order = torch.arange(coordinates.shape[-2])
        if self.axes == 1:
            return Positions(coordinates, order)
        return Positions(
            coordinates, order, ("row", "column"), extent=torch.tensor((HEIGHT, WIDTH))
        )


def owned(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the encodings in a model."""
    encodings = {
        path: module for path, module in model.named_modules() if isinstance(module, Encoding)
    }
    return {
        f"{path}.{name}": p
        for path, module in encodings.items()
        for name, p in module.named_parameters()
    }


def randomise(model: M) -> M:
    """Draw the encodings' parameters from a standard normal: nothing is then too small to be noticed, or symmetric."""
    with torch.no_grad():
        for name, parameter in owned(model).items():
            parameter.copy_(noise(name, *parameter.shape))
    return model


def noise(name: str, *shape: int) -> Tensor:
    """Standard normal numbers in float64, the same for a name and a shape."""
    return torch.randn(shape, generator=generator_for(0, name), dtype=torch.float64)


def tokens(name: str) -> Tensor:
    """Token numbers, `(B, L)`."""
    return torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator_for(0, name))


def apart(first: Tensor, second: Tensor) -> float:
    """The largest difference."""
    return float((first.detach().double() - second.detach().double()).abs().max())


def near(found: Tensor, expected: Tensor, tolerance: float, what: str) -> float:
    """The largest difference, relative to the largest expected number where that is above 1. Raises BrokenError."""
    if found.shape != expected.shape:
        raise BrokenError(f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    if not expected.numel():
        return 0.0
    difference = apart(found, expected) / max(1.0, float(expected.detach().abs().max()))
    if not difference <= tolerance:
        raise BrokenError(f"{what}: off by {difference:.2g}, allowed {tolerance:g}")
    return difference


def near_all(found: dict[str, Tensor], expected: dict[str, Tensor], how: str) -> None:
    """The same answers, bit for bit. Raises BrokenError."""
    for hook, answer in expected.items():
        near(found[hook], answer, 0.0, f"{hook} {how}")


def complaint(action: Callable[[], Any]) -> str | None:
    """The text of the UserError that it raises, or None."""
    try:
        action()
    except UserError as error:
        return str(error)
    return None


def variants(spec: str) -> Iterator[str]:
    """The same encoding with one option changed at a time; its constructor may not accept it."""
    parts = [registry.spec(part) for part in parts_of(spec)]
    for i, part in enumerate(parts):
        for name, option in options_of(part.target).items():
            value, others = part.options.get(name, option.default), []
            if typing.get_origin(option.annotation) is Literal:
                others = [
                    choice for choice in typing.get_args(option.annotation) if choice != value
                ]
            elif isinstance(value, bool | int | float):
                others = [
                    not value
                    if isinstance(value, bool)
                    else value + 2
                    if isinstance(value, int)
                    else value / 2
                ]
            for other in others:
                changed = replace(part, options={**part.options, name: other})
                yield "+".join(str(part) for part in (*parts[:i], changed, *parts[i + 1 :]))


def answers(encoding: Encoding, pos: Positions) -> dict[str, Tensor]:
    """What every hook says of the first LENGTH tokens: queries on axis 2, and keys on axis 3 if it is about pairs."""
    site, hooks, length = encoding.site, encoding.hooks, pos.length
    pad = (0, 0, 0, length - LENGTH)
    x = functional.pad(noise("x", BATCH, LENGTH, site.width), pad)
    q, k = (
        functional.pad(noise(name, BATCH, site.heads, LENGTH, site.head_width), pad)
        for name in "qk"
    )
    answers: dict[str, Tensor | None] = {
        "embed": encoding.embed(x, pos).unsqueeze(1),
        "inject": encoding.inject(x, pos).unsqueeze(1),
        "rotate": encoding.rotate(q, encoding.rotation(pos)),
        "bias": encoding.bias(pos, pos),
    }
    if answers["bias"] is not None:
        answers["bias"] = answers["bias"].expand(BATCH, site.heads, length, length)[..., :LENGTH]
    if hooks & {"terms", "values"}:
        relation = encoding.relation(pos, pos)
        terms = encoding.terms(q, k, relation)
        answers["terms"] = None if terms is None else terms[..., :LENGTH]
        if "values" in hooks:
            # All weight on one key after the other, so that this too is about pairs.
            weights = torch.eye(length, dtype=torch.float64)[:LENGTH, None].expand(-1, length, -1)
            alone = [
                encoding.values(w.expand(BATCH, site.heads, -1, -1), relation) for w in weights
            ]
            answers["values"] = torch.stack([a for a in alone if a is not None], 3)
    return {
        hook: answer[:, :, :LENGTH].detach()
        for hook, answer in answers.items()
        if answer is not None
    }


def _formula_of(spec: str) -> Oracle | None:
    """The encoding's own oracle, or the paper's formula for one of the package; None where a part has neither, and
    where the parts are no sum: two of them rotate, or one rotates the queries that another's terms compare."""
    specs = [registry.spec(part) for part in parts_of(spec)]
    oracles = [getattr(part.target, "oracle", None) or FORMULAS.get(part.name) for part in specs]
    known = [oracle for oracle in oracles if oracle is not None]
    rotating = sum("rotate" in hooks_of(part.target) for part in specs)
    if len(known) < len(oracles) or rotating > 1:
        return None
    if (
        len(known) > 1
        and {"rotate", "terms"}
        <= build(spec, Site(HEAD_WIDTH, 1, HEAD_WIDTH, VALUE_WIDTH, causal=True)).hooks
    ):
        return None
    return known[0] if len(known) == 1 else sum_of(known)
