"""From a spec to encodings: of one attention, or of a stack of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, final

from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.registry import Spec, file_of, listed
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.sums import Of, Sum
from jarilab.positions.coordinates import Positions

WITHOUT = "none"
"""The spec of no encoding, which every other is held against."""

EXAMPLES = {1: "rotary", 2: "rotary2d", 3: "learned@text+rotary2d@image"}
"""What could be asked for, by the number of axes."""

# `1e+4` and `sinusoidal+rotary` both hold a plus; a name starts with a letter, a path perhaps with a dot or a slash.
_PLUS = re.compile(r"\+(?=\s*[A-Za-z_./])")
_AXES = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def layer_specs(text: str) -> list[str]:
    """The specs of the layers of a stack, `rotary,rotary,none`, in square brackets or not; one where all have the same.
    Raises UserError for none."""
    inside = text.strip()
    if inside.startswith("[") and inside.endswith("]"):
        inside = inside[1:-1]
    specs = listed(inside)
    if not specs:
        raise UserError(
            f"no encoding in {text!r}; write such as rotary, or rotary,none for two layers"
        )
    return specs


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
    parts = [part for spec in layer_specs(text) for part in parts_of(spec)]
    encodings = [_split_axes(part)[0] for part in parts]
    paths = [file_of(encoding) for encoding in encodings]
    return [path for path in paths if path is not None]


def canonical(text: str) -> str:
    """The shortest text for the same encoding, or list for the layers: options at their defaults are omitted. Raises
    UserError."""
    specs = [_canonical(spec) for spec in layer_specs(text)]
    return ",".join(specs)


def _canonical(text: str) -> str:
    specs = [part_spec(part) for part in parts_of(text)]
    return "+".join(str(spec) if axes is None else f"{spec}@{axes}" for spec, axes in specs)


def build(text: str, site: Site) -> Encoding:
    """The encoding that `text` names, for one attention at `site`. Raises UserError if it cannot be there."""
    specs = layer_specs(text)
    if len(specs) > 1:
        raise UserError(
            f"{text} is a list for the layers of a stack; one attention has one encoding, such as {specs[0]}"
        )
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
class LayerEncodings(nn.Module):
    """The encodings of one kind of attention in a stack: what is shared once, the rest once for each layer.

    text: one spec for all layers, or one for each: `rotary,rotary,rotary,none`. Raises UserError for another number of
    them, and where what is added to the model's input is not the same in all.
    """

    def __init__(self, text: str, site: Site, layers: int):
        super().__init__()
        self.spec = canonical(text)
        specs = layer_specs(self.spec)
        if len(specs) == 1:
            specs *= layers
        if len(specs) != layers:
            raise UserError(
                f"{self.spec} has encodings for {len(specs)} layers, and the stack has {layers}; "
                "name one for each layer, or one for all"
            )
        parts = _parts(specs, site)
        self.parts = nn.ModuleList(nn.ModuleList(part.instances) for part in parts)
        # Plain lists: these are the modules of self.parts, which owns them, layer by layer.
        self.texts = [part.text for part in parts]
        self.of_layer = _of_layers(parts, layers)
        _check_added(self.spec, self.of_layer)

    @property
    def shared(self) -> bool:
        """Whether every layer has the same encoding."""
        return all(encoding is self.of_layer[0] for encoding in self.of_layer)

    @property
    def hooks(self) -> frozenset[str]:
        """Those that do something in any layer."""
        return frozenset().union(*(encoding.hooks for encoding in self.of_layer))

    @property
    def max_positions(self) -> int | None:
        ends = [encoding.max_positions for encoding in self.of_layer]
        return min((end for end in ends if end is not None), default=None)

    def reads(self, axes: int) -> bool:
        """Whether every layer takes positions with so many axes."""
        return all(axes in encoding.axes for encoding in self.of_layer)

    def check_axes(self, axes: Sequence[str]) -> None:
        """Raises UserError where a part of the spec is not for positions on these axes, or on those that it names."""
        for text, of_layers in zip(self.texts, self.parts, strict=True):
            encoding = cast(nn.ModuleList, of_layers)[0]
            if isinstance(encoding, Of):
                _check_axes(text, encoding.encoding, axes, encoding.part)
            else:
                _check_axes(text, cast(Encoding, encoding), axes, None)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        """The one place where positions are added to the input."""
        return self.of_layer[0].embed(x, pos)

    def extra_repr(self) -> str:
        return self.spec


@dataclass(frozen=True)
class _Part:
    """A part of a sum, in the layers that have that sum. instances: one for all of these, or one for each."""

    text: str
    layers: list[int]
    instances: list[Encoding]

    def of_layer(self, layer: int) -> Encoding:
        return self.instances[self.layers.index(layer) % len(self.instances)]


def _parts(specs: list[str], site: Site) -> list[_Part]:
    """The encodings of all layers, built: once for each different spec."""
    parts = []
    for spec in dict.fromkeys(specs):
        layers = [layer for layer, own in enumerate(specs) if own == spec]
        for text in parts_of(spec):
            parts.append(_Part(text, layers, _instances(text, site, layers, len(specs))))
    return parts


def _instances(text: str, site: Site, layers: list[int], stack: int) -> list[Encoding]:
    first = _build_part(text, replace(site, layer=layers[0], layers=stack))
    if first.shared:
        return [first]
    others = []
    for layer in layers[1:]:
        other = _build_part(text, replace(site, layer=layer, layers=stack))
        other.belong_to(first)
        others.append(other)
    return [first, *others]


def _of_layers(parts: list[_Part], layers: int) -> list[Encoding]:
    """The encoding of each layer: the same object where layers share all that it is made of."""
    found: dict[tuple[Encoding, ...], Encoding] = {}
    of_layer = []
    for layer in range(layers):
        own = tuple(part.of_layer(layer) for part in parts if layer in part.layers)
        if own not in found:
            found[own] = own[0] if len(own) == 1 else Sum(own)
        of_layer.append(found[own])
    return of_layer


def _check_added(spec: str, of_layer: list[Encoding]) -> None:
    """Raises UserError for a list in which some layers have what is added to the input of all."""
    adds = any("embed" in encoding.hooks for encoding in of_layer)
    if adds and len(layer_specs(spec)) > 1:
        raise UserError(
            f"{spec} adds to the model's input, which all layers have in common; "
            "use what works inside attention in a list for the layers"
        )


def _check_axes(text: str, encoding: Encoding, axes: Sequence[str], part: str | None) -> None:
    """Raises UserError where an encoding is not for these axes, or not for those of the part that it names."""
    instead = EXAMPLES[len(axes)]
    part_of = {axis: axis.partition(".")[0] for axis in axes}
    if part is not None:
        axes = [axis for axis in axes if part in (axis, part_of[axis])]
    if not axes:
        known = ", ".join(dict.fromkeys(part_of.values()))
        raise UserError(
            f"{text} is for a part {part!r}, expected one of {known}; use such as {instead}"
        )
    if len(axes) not in encoding.axes:
        wanted = "1 axis" if len(axes) == 1 else f"{len(axes)} axes"
        raise UserError(
            f"{text} cannot encode {' and '.join(axes)}: expected an encoding for {wanted}; use such as {instead}"
        )
