"""An encoding on trial: how the laws build it, place tokens for it, and hear what it says."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn import functional

from jari.attention.kernels import Kernel
from jari.encodings.base import Encoding, Site, hooks_of, registry
from jari.encodings.compose import WITHOUT, build, canonical, parts_of
from jari.encodings.formulas import ORACLES
from jari.encodings.oracle import Oracle, sum_of
from jari.errors import UserError
from jari.init import generator_for, initialise
from jari.models.encoder_decoder import Encoder, EncoderDecoder
from jari.positions import Positions
from jari.registry import options_of
from jari.shapes import Tensor

# Lengths that are all different, so that no axis passes for another: B 2, K and L 7, H 6, E 8, E' 5, D 48.
BATCH, LENGTH, HEAD_WIDTH, VALUE_WIDTH = 2, 7, 8, 5
VOCABULARY = 11
STARTS = (0, 7, 1000, 5000)
CLAIMS = ("shift_invariant", "cross", "keeps_norms")
NODES = 300  # of the graph, for encodings that read labels of pairs

M = TypeVar("M", bound=nn.Module)


class BrokenError(Exception):
    """The law does not hold."""


class SkippedError(Exception):
    """The law says nothing about this encoding."""


@dataclass(frozen=True)
class Subject:
    """The encoding on trial: how to build it, and what it and positions for it look like.

    labels: how many it tells apart where it reads labelled relations in place of distances, by its attribute `labels`;
        else 0. longest: as it claims, or None. made: the claims that it makes; a sum may make fewer than its parts.
    """

    spec: str
    oracle: Oracle | None
    heads: int
    labels: int
    longest: int | None
    made: frozenset[str] = frozenset()

    @staticmethod
    def of(spec: str, oracle: Oracle | None, heads: int) -> Subject:
        classes = [registry.spec(part).target for part in parts_of(spec)]
        oracle = oracle or _formula_of(spec)
        subject = Subject(canonical(spec), oracle, heads, 0, None)
        encoding, _ = build(spec, subject.site()), build(spec, subject.site(causal=True))
        if any(1 not in target.axes for target in classes):
            raise UserError(f"the laws look at sequences, and {spec} does not take positions with one axis")
        if encoding.longest is not None and encoding.longest < 2 * LENGTH:
            raise UserError(f"the laws need {2 * LENGTH} positions, and {spec} has {encoding.longest}; try more")
        return subject.reading(encoding)

    def reading(self, encoding: Encoding) -> Subject:
        """The same trial, with the positions that `encoding` can read."""
        labels = max(getattr(module, "labels", 0) for module in encoding.modules())
        made = frozenset(claim for claim in CLAIMS if getattr(encoding, claim))
        return replace(self, labels=labels, longest=encoding.longest, made=made)

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
            raise SkippedError("it works only where queries never see later keys, and this law looks at an encoder")
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

    def starts(self) -> list[int]:
        """Where sequences begin, as far from 0 as it can go."""
        if self.labels:
            return [0, LENGTH]
        if self.longest is None:
            return list(STARTS)
        return sorted({start for start in STARTS if start + LENGTH <= self.longest} | {self.longest - LENGTH})

    def sequence(self, start: int, length: int = LENGTH, frame: str = "sequence") -> Positions:
        """Tokens that follow each other; where it reads labels, as many nodes of a graph."""
        if not self.labels:
            return Positions.sequence(length, start, frame=frame)
        labels = torch.randint(self.labels, (NODES, NODES), generator=generator_for(0, "labels"))
        return Positions.graph(labels, frame=frame).slice(start, start + length)

    def anywhere(self, length: int) -> Positions:
        """So many tokens, starting over where the encoding ends."""
        if self.labels:
            return self.sequence(0, length)
        return self.places(torch.arange(length) % (self.longest or length))

    def places(self, index: Tensor) -> Positions:
        """Tokens at `index`, `(L,)` or `(B, L)`, in the order given."""
        if self.labels:
            raise SkippedError("it reads the labels of pairs, and a graph has no line to pad, pack or move along")
        return Positions(index.unsqueeze(-1), torch.arange(index.shape[-1]))


def owned(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the encodings in a model."""
    encodings = {path: module for path, module in model.named_modules() if isinstance(module, Encoding)}
    return {f"{path}.{name}": p for path, module in encodings.items() for name, p in module.named_parameters()}


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
                others = [choice for choice in typing.get_args(option.annotation) if choice != value]
            elif isinstance(value, bool | int | float):
                others = [not value if isinstance(value, bool) else value + 2 if isinstance(value, int) else value / 2]
            for other in others:
                changed = replace(part, options={**part.options, name: other})
                yield "+".join(str(part) for part in (*parts[:i], changed, *parts[i + 1 :]))


def answers(encoding: Encoding, pos: Positions) -> dict[str, Tensor]:
    """What every hook says of the first LENGTH tokens: queries on axis 2, and keys on axis 3 if it is about pairs."""
    site, hooks, length = encoding.site, encoding.hooks, pos.length
    pad = (0, 0, 0, length - LENGTH)
    x = functional.pad(noise("x", BATCH, LENGTH, site.width), pad)
    q, k = (functional.pad(noise(name, BATCH, site.heads, LENGTH, site.head_width), pad) for name in "qk")
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
            alone = [encoding.values(w.expand(BATCH, site.heads, -1, -1), relation) for w in weights]
            answers["values"] = torch.stack([a for a in alone if a is not None], 3)
    return {hook: answer[:, :, :LENGTH].detach() for hook, answer in answers.items() if answer is not None}


def _formula_of(spec: str) -> Oracle | None:
    """The encoding's own oracle, or the paper's formula for one of the package; None where a part has neither, and
    where the parts are no sum: two of them rotate, or one rotates the queries that another's terms compare."""
    specs = [registry.spec(part) for part in parts_of(spec)]
    oracles = [getattr(part.target, "oracle", None) or ORACLES.get(part.name) for part in specs]
    known = [oracle for oracle in oracles if oracle is not None]
    rotating = sum("rotate" in hooks_of(part.target) for part in specs)
    if len(known) < len(oracles) or rotating > 1:
        return None
    if (
        len(known) > 1
        and {"rotate", "terms"} <= build(spec, Site(HEAD_WIDTH, 1, HEAD_WIDTH, VALUE_WIDTH, causal=True)).hooks
    ):
        return None
    return known[0] if len(known) == 1 else sum_of(known)
