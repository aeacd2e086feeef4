"""Sums of encodings, encodings for a part of the axes, and the encodings of a stack of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, final

from torch import nn

from jarilab.encodings.base import Encoding, Site, registry
from jarilab.errors import UserError
from jarilab.positions import Positions
from jarilab.registry import Spec, file_of
from jarilab.shapes import Float, Tensor

WITHOUT = "none"
"""The spec of no encoding, which every other is held against."""

MOST_AXES = 3
"""Of a caption and an image in one sequence: the word's place, row and column."""

EXAMPLES = {1: "rotary", 2: "rotary2d", 3: "learned@text+rotary2d@image"}
"""What could be asked for, by the number of axes."""

# `1e+4` and `sinusoidal+rotary` both hold a plus; a name starts with a letter, a path perhaps with a dot or a slash.
_PLUS = re.compile(r"\+(?=\s*[A-Za-z_./])")
_AXES = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def parts_of(text: str) -> list[str]:
    """The specs of a sum: `sinusoidal+rotary:base=500` has two."""
    return [part.strip() for part in _PLUS.split(text)]


def part_spec(text: str) -> tuple[Spec, str | None]:
    """The encoding that one part of a sum names, and for which part of the axes: `rotary2d:base=50@image` is for
    `image`, `rotary` for all of them, None. Raises UserError."""
    encoding, axes = _split_axes(text)
    name, _, options = encoding.partition(":")
    before, _, part = name.rpartition("@")
    if axes is None and before and part and not file_of(encoding):
        raise UserError(
            f"expected the part that {before} is for at the end, got {text!r}; write {before}:{options}@{part}"
        )
    return registry.spec(encoding), axes


def _split_axes(text: str) -> tuple[str, str | None]:
    """`rotary2d:base=50@image` is `rotary2d:base=50` for `image`; without a part of the axes, None."""
    encoding, _, axes = text.rpartition("@")
    if encoding and _AXES.fullmatch(axes.strip()):
        return encoding, axes.strip()
    return text, None


def files_of(text: str) -> list[Path]:
    """The Python files that an encoding is taken from."""
    found = (file_of(_split_axes(part)[0]) for part in parts_of(text))
    return [path for path in found if path is not None]


def canonical(text: str) -> str:
    """The shortest text for the same encoding: options at their defaults are left out. Raises UserError."""
    specs = [part_spec(part) for part in parts_of(text)]
    return "+".join(str(spec) if axes is None else f"{spec}@{axes}" for spec, axes in specs)


def build(text: str, site: Site) -> Encoding:
    """The encoding that `text` names, for one attention at `site`. Raises UserError if it cannot be there."""
    parts = [_build_part(part, site) for part in parts_of(text)]
    return parts[0] if len(parts) == 1 else Sum(parts)


def _build_part(text: str, site: Site) -> Encoding:
    spec, axes = part_spec(text)
    if not issubclass(spec.target, Encoding):
        raise UserError(f"{spec.name} is no encoding: write a subclass of jarilab.Encoding")
    encoding: Encoding = spec.build(site)
    if site.cross and not encoding.cross:
        raise UserError(
            f"{spec} cannot be the encoding of cross-attention; use it in the encoder and the decoder"
        )
    if encoding.causal_only and not site.causal:
        raise UserError(
            f"{spec} works only where queries never see later keys; use it in a causal decoder"
        )
    return encoding if axes is None else Of(encoding, axes)


@final
class Of(Encoding):
    """An encoding for one part of the axes, the caption or the image of a sequence that has both; tokens of other
    parts have no place for it. Its claims are those of what it wraps."""

    def __init__(self, encoding: Encoding, part: str):
        super().__init__(encoding.site)
        self.encoding, self.part = encoding, part
        # Of any number of axes it takes its own.
        self.axes = tuple(range(min(encoding.axes), MOST_AXES + 1))
        self.shift_invariant = encoding.shift_invariant
        self.causal_only, self.cross, self.shared = (
            encoding.causal_only,
            encoding.cross,
            encoding.shared,
        )
        self.integer_only, self.keeps_norms = encoding.integer_only, encoding.keeps_norms

    @property
    def hooks(self) -> frozenset[str]:
        return self.encoding.hooks

    @property
    def max_positions(self) -> int | None:
        return self.encoding.max_positions

    @property
    def max_distance(self) -> int | None:
        return self.encoding.max_distance

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self.encoding.embed(x, pos.only(self.part)) if "embed" in self.hooks else x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self.encoding.inject(x, pos.only(self.part)) if "inject" in self.hooks else x

    def rotation(self, pos: Positions) -> Any:
        return self.encoding.rotation(pos.only(self.part))

    def rotate(self, x: Float[Tensor, "B H L E"], rotation: Any) -> Float[Tensor, "B H L E"]:
        return self.encoding.rotate(x, rotation)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"] | None:
        return self.encoding.bias(q_pos.only(self.part), k_pos.only(self.part))

    def relation(self, q_pos: Positions, k_pos: Positions) -> Any:
        return self.encoding.relation(q_pos.only(self.part), k_pos.only(self.part))

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Any
    ) -> Float[Tensor, "B H Q K"] | None:
        return self.encoding.terms(q, k, relation)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: Any
    ) -> Float[Tensor, "B H Q E"] | None:
        return self.encoding.values(weights, relation)

    def extra_repr(self) -> str:
        return f"part={self.part}"


@final
class Sum(Encoding):
    """Several encodings at once: what they add is added, rotations follow one another."""

    def __init__(self, parts: Sequence[Encoding]):
        super().__init__(parts[0].site)
        self.parts = nn.ModuleList(parts)
        # A sum claims what all of its parts do.
        self.axes = tuple(sorted(set[int].intersection(*(set(part.axes) for part in parts))))
        # Terms compare the vectors of a relation with queries that another part has turned by their own places.
        turned = {"rotate", "terms"} <= self.hooks
        self.shift_invariant = all(part.shift_invariant for part in parts) and not turned
        self.causal_only = any(part.causal_only for part in parts)
        self.cross = all(part.cross for part in parts)
        self.integer_only = any(part.integer_only for part in parts)
        self.keeps_norms = all(part.keeps_norms for part in parts)

    def _using(self, hook: str) -> list[Encoding]:
        return [part for part in self._encodings() if hook in part.hooks]

    def _with(self, relation: list[Any] | None) -> list[tuple[Encoding, Any]]:
        """Each part with its own relation; none of them where nothing uses relations."""
        return [] if relation is None else list(zip(self._encodings(), relation, strict=True))

    def _encodings(self) -> list[Encoding]:
        return cast("list[Encoding]", list(self.parts))

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset().union(*(part.hooks for part in self._encodings()))

    @property
    def max_positions(self) -> int | None:
        return min(
            (part.max_positions for part in self._encodings() if part.max_positions is not None),
            default=None,
        )

    @property
    def max_distance(self) -> int | None:
        return min(
            (part.max_distance for part in self._encodings() if part.max_distance is not None),
            default=None,
        )

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        for part in self._using("embed"):
            x = part.embed(x, pos)
        return x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        for part in self._using("inject"):
            x = part.inject(x, pos)
        return x

    def rotation(self, pos: Positions) -> list[Any]:
        return [part.rotation(pos) for part in self._using("rotate")]

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: list[Any] | None
    ) -> Float[Tensor, "B H L E"]:
        for part, prepared in zip(self._using("rotate"), rotation or [], strict=True):
            x = part.rotate(x, prepared)
        return x

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"] | None:
        return _total([part.bias(q_pos, k_pos) for part in self._using("bias")])

    def relation(self, q_pos: Positions, k_pos: Positions) -> list[Any]:
        return [part.relation(q_pos, k_pos) for part in self._encodings()]

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: list[Any] | None
    ) -> Float[Tensor, "B H Q K"] | None:
        return _total([part.terms(q, k, own) for part, own in self._with(relation)])

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: list[Any] | None
    ) -> Float[Tensor, "B H Q E"] | None:
        return _total([part.values(weights, own) for part, own in self._with(relation)])


def _total(summands: Sequence[Tensor | None]) -> Tensor | None:
    total = None
    for summand in summands:
        if summand is not None:
            total = summand if total is None else total + summand
    return total


@final
class LayerEncodings(nn.Module):
    """The encodings of one kind of attention in a stack: what is shared once, the rest once for each layer."""

    def __init__(self, text: str, site: Site, layers: int):
        super().__init__()
        self.spec = canonical(text)
        parts = [[_build_part(part, site)] for part in parts_of(text)]
        for own, part in zip(parts, parts_of(text), strict=True):
            if not own[0].shared:
                own.extend(_build_part(part, site) for _ in range(layers - 1))
        self.parts = nn.ModuleList(nn.ModuleList(own) for own in parts)
        columns = [[own[layer % len(own)] for own in parts] for layer in range(layers)]
        # A plain list: these are the modules of self.parts, which owns them, seen layer by layer.
        if self.shared:
            columns = columns[:1] * layers
        encodings = {
            id(column): column[0] if len(column) == 1 else Sum(column) for column in columns
        }
        self.of_layer = [encodings[id(column)] for column in columns]

    @property
    def shared(self) -> bool:
        """Whether every layer has the same encoding."""
        return all(len(own) == 1 for own in self.parts)  # type: ignore[arg-type]

    @property
    def max_positions(self) -> int | None:
        return self.of_layer[0].max_positions

    def check_axes(self, axes: Sequence[str]) -> None:
        """Raises UserError where a part of the spec is not for positions on these axes, or on those that it names."""
        instead = EXAMPLES[len(axes)]
        for text, of_layers in zip(parts_of(self.spec), self.parts, strict=True):
            encoding, seen = cast(nn.ModuleList, of_layers)[0], axes
            if isinstance(encoding, Of):
                part, encoding = encoding.part, encoding.encoding
                seen = [axis for axis in axes if part in (axis, axis.partition(".")[0])]
                if not seen:
                    known = ", ".join(dict.fromkeys(axis.partition(".")[0] for axis in axes))
                    raise UserError(
                        f"{text} is for a part {part!r}, expected one of {known}; use such as {instead}"
                    )
            if len(seen) not in cast(Encoding, encoding).axes:
                wanted = "1 axis" if len(seen) == 1 else f"{len(seen)} axes"
                raise UserError(
                    f"{text} cannot encode {' and '.join(seen)}: expected an encoding for {wanted}; use such as "
                    f"{instead}"
                )

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        """The one place where positions are added to the input."""
        return self.of_layer[0].embed(x, pos)

    def extra_repr(self) -> str:
        return self.spec
