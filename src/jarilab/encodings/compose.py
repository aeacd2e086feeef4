"""Builds encodings from specs, for one attention or for the layers of a stack."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, final

from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.registry import Spec, spec_file, split_specs
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.sums import PartEncoding, Sum
from jarilab.positions.coordinates import Positions

NO_ENCODING = "none"
"""The spec of the baseline without positions."""

EXAMPLES = {1: "rotary", 2: "rotary2d", 3: "learned@text+rotary2d@image"}
"""A spec for each number of axes."""

MAX_PARTS = 64
"""Encodings of a sum. Each is a module of every layer."""

# `1e+4` and `sinusoidal+rotary` both hold a plus; a name starts with a letter, a path perhaps with a dot or a slash.
_PLUS = re.compile(r"\+(?=\s*[A-Za-z_./])")
_AXES = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def layer_specs(text: str) -> list[str]:
    """The specs of the layers of a stack, `rotary,rotary,none`, with or without square brackets.

    One spec is for all layers. Raises UserError if there is none.
    """
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    specs = split_specs(inner)
    if not specs:
        raise UserError(
            f"expected an encoding, got {text!r}; write such as rotary, or rotary,none for two layers"
        )
    return specs


def split_sum(text: str) -> list[str]:
    """The specs of the parts of a sum: `sinusoidal+rotary:base=500` has two. Raises UserError above `MAX_PARTS`."""
    parts = _PLUS.split(text)
    if len(parts) > MAX_PARTS:
        raise UserError(
            f"expected a sum of at most {MAX_PARTS} encodings, got {len(parts):,}; leave some out"
        )
    return [part.strip() for part in parts]


def part_spec(text: str) -> tuple[Spec, str | None]:
    """The encoding of one part of a sum, and the part of the axes that it is for.

    `rotary2d:base=50@image` is for `image`; `rotary` is for all axes, None. Raises UserError for an unknown encoding.
    """
    encoding, axes = _split_axes(text)
    name, _, options = encoding.partition(":")
    before, _, part = name.rpartition("@")
    if axes is None and before and part and not spec_file(encoding):
        raise UserError(
            f"expected the part of the axes that {before} is for at the end, got {text!r}; write "
            f"{before}:{options}@{part}"
        )
    return registry.spec(encoding), axes


def _split_axes(text: str) -> tuple[str, str | None]:
    """`rotary2d:base=50@image` as `rotary2d:base=50` and `image`; None if no part of the axes is named."""
    encoding, _, axes = text.rpartition("@")
    if encoding and _AXES.fullmatch(axes.strip()):
        return encoding, axes.strip()
    return text, None


def files_of(text: str) -> list[Path]:
    """The Python files that a spec takes encodings from."""
    parts = [part for spec in layer_specs(text) for part in split_sum(spec)]
    encodings = [_split_axes(part)[0] for part in parts]
    paths = [spec_file(encoding) for encoding in encodings]
    return [path for path in paths if path is not None]


def canonical(text: str) -> str:
    """The shortest equal spec, or list of specs for layers: options with default values are omitted.

    Raises UserError for an unknown encoding, option or value.
    """
    specs = [_canonical_sum(spec) for spec in layer_specs(text)]
    return ",".join(specs)


def _canonical_sum(text: str) -> str:
    specs = [part_spec(part) for part in split_sum(text)]
    return "+".join(str(spec) if axes is None else f"{spec}@{axes}" for spec, axes in specs)


def build(text: str, site: Site) -> Encoding:
    """The encoding of a spec for the attention at `site`. Raises UserError if it does not work there."""
    specs = layer_specs(text)
    if len(specs) > 1:
        raise UserError(
            f"expected one encoding for one attention, got the list {text} for the layers of a stack; use such as "
            f"{specs[0]}"
        )
    parts = [_build_part(part, site) for part in split_sum(text)]
    return parts[0] if len(parts) == 1 else Sum(parts)


def _build_part(text: str, site: Site) -> Encoding:
    spec, axes = part_spec(text)
    encoding: Encoding = spec.build(site)
    if site.cross and not encoding.cross:
        raise UserError(
            f"{spec} cannot be the encoding of cross-attention; use it in the encoder and the decoder"
        )
    if encoding.causal_only and not site.causal:
        raise UserError(
            f"{spec} works only where queries never see later keys; use it in a causal decoder"
        )
    return encoding if axes is None else PartEncoding(encoding, axes)


@final
class LayerEncodings(nn.Module):
    """The encodings of one kind of attention in a stack, one for each layer.

    Layers share an instance where the encoding allows it.

    text: one spec for all layers, or one for each: `rotary,rotary,rotary,none`. Raises UserError if their number is not
    that of the layers, or if layers differ in what they add to the model's input.
    """

    def __init__(self, text: str, site: Site, n_layers: int):
        super().__init__()
        self.spec = canonical(text)
        specs = layer_specs(self.spec)
        if len(specs) == 1:
            specs *= n_layers
        if len(specs) != n_layers:
            raise UserError(
                f"{self.spec} has encodings for {len(specs)} layers, and the stack has {n_layers}; "
                "name one for each layer, or one for all"
            )
        parts = _build_parts(specs, site)
        self.parts = nn.ModuleList(nn.ModuleList(part.instances) for part in parts)
        # Plain lists: `self.parts` registers these modules.
        self.part_specs = [part.text for part in parts]
        self.by_layer = _sum_by_layer(parts, n_layers)
        _check_input_encodings(self.spec, self.by_layer)

    @property
    def shared(self) -> bool:
        """Whether all layers have the same encoding."""
        return all(encoding is self.by_layer[0] for encoding in self.by_layer)

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks that do something in any layer."""
        return frozenset().union(*(encoding.hooks for encoding in self.by_layer))

    @property
    def max_positions(self) -> int | None:
        limits = [encoding.max_positions for encoding in self.by_layer]
        return min((limit for limit in limits if limit is not None), default=None)

    def supports_axes(self, axes: int) -> bool:
        """Whether all layers support positions with so many axes."""
        return all(axes in encoding.axes for encoding in self.by_layer)

    def check_axes(self, axes: Sequence[str]) -> None:
        """Raises UserError if a part of the spec does not fit positions on these axes."""
        for text, instances in zip(self.part_specs, self.parts, strict=True):
            encoding = cast(nn.ModuleList, instances)[0]
            if isinstance(encoding, PartEncoding):
                _check_axes(text, encoding.encoding, axes, encoding.part)
            else:
                _check_axes(text, cast(Encoding, encoding), axes, None)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        """Add positions to the model's input."""
        return self.by_layer[0].embed(x, pos)

    def extra_repr(self) -> str:
        return self.spec


@dataclass(frozen=True)
class _Part:
    """One part of a sum.

    layers: the layers that have this sum. instances: one for all of them, or one for each.
    """

    text: str
    layers: list[int]
    instances: list[Encoding]

    def for_layer(self, layer: int) -> Encoding:
        return self.instances[self.layers.index(layer) % len(self.instances)]


def _build_parts(specs: list[str], site: Site) -> list[_Part]:
    """The parts of all different specs."""
    parts = []
    for spec in dict.fromkeys(specs):
        layers = [layer for layer, layer_spec in enumerate(specs) if layer_spec == spec]
        for text in split_sum(spec):
            parts.append(_Part(text, layers, _build_instances(text, site, layers, len(specs))))
    return parts


def _build_instances(text: str, site: Site, layers: list[int], stack: int) -> list[Encoding]:
    first = _build_part(text, replace(site, layer=layers[0], n_layers=stack))
    if first.shared:
        return [first]
    others = []
    for layer in layers[1:]:
        other = _build_part(text, replace(site, layer=layer, n_layers=stack))
        other.share_parameters_with(first)
        others.append(other)
    return [first, *others]


def _sum_by_layer(parts: list[_Part], n_layers: int) -> list[Encoding]:
    """The encoding of each layer: the same object for layers with the same instances."""
    sums: dict[tuple[Encoding, ...], Encoding] = {}
    by_layer = []
    for layer in range(n_layers):
        instances = tuple(part.for_layer(layer) for part in parts if layer in part.layers)
        if instances not in sums:
            sums[instances] = instances[0] if len(instances) == 1 else Sum(instances)
        by_layer.append(sums[instances])
    return by_layer


def _check_input_encodings(spec: str, by_layer: list[Encoding]) -> None:
    """Raises UserError for a list of specs of which one adds to the model's input."""
    adds_to_input = any("embed" in encoding.hooks for encoding in by_layer)
    if adds_to_input and len(layer_specs(spec)) > 1:
        raise UserError(
            f"{spec} adds to the model's input, which all layers share; use encodings that work inside attention in a "
            "list for the layers"
        )


def _check_axes(text: str, encoding: Encoding, axes: Sequence[str], part: str | None) -> None:
    """Raises UserError if an encoding does not support these axes, or those of its part."""
    example = EXAMPLES[len(axes)]
    part_of = {axis: axis.partition(".")[0] for axis in axes}
    if part is not None:
        axes = [axis for axis in axes if part in (axis, part_of[axis])]
    if not axes:
        parts = ", ".join(dict.fromkeys(part_of.values()))
        raise UserError(
            f"{text} is for a part {part!r}, expected one of {parts}; use such as {example}"
        )
    if len(axes) not in encoding.axes:
        wanted = "1 axis" if len(axes) == 1 else f"{len(axes)} axes"
        raise UserError(
            f"{text} cannot encode {' and '.join(axes)}: expected an encoding for {wanted}; use such as {example}"
        )
