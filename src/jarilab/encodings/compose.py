"""From a spec to encodings: of one attention, or of a stack of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast, final

from torch import nn

from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.sums import Of, Sum
from jarilab.errors import UserError
from jarilab.positions import Positions
from jarilab.registry import Spec, file_of
from jarilab.shapes import Float, Tensor

WITHOUT = "none"
"""The spec of no encoding, which every other is held against."""

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
    encodings = [_split_axes(part)[0] for part in parts_of(text)]
    paths = [file_of(encoding) for encoding in encodings]
    return [path for path in paths if path is not None]


def canonical(text: str) -> str:
    """The shortest text for the same encoding: options at their defaults are omitted. Raises UserError."""
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
class LayerEncodings(nn.Module):
    """The encodings of one kind of attention in a stack: what is shared once, the rest once for each layer."""

    def __init__(self, text: str, site: Site, layers: int):
        super().__init__()
        self.spec = canonical(text)
        texts = parts_of(text)
        parts = [[_build_part(part, site)] for part in texts]
        for own, part in zip(parts, texts, strict=True):
            if not own[0].shared:
                own.extend(_build_part(part, site) for _ in range(layers - 1))
        self.parts = nn.ModuleList(nn.ModuleList(own) for own in parts)
        # A plain list: these are the modules of self.parts, which owns them, layer by layer.
        if self.shared:
            self.of_layer = [_in_layer(parts, 0)] * layers
        else:
            self.of_layer = [_in_layer(parts, layer) for layer in range(layers)]

    @property
    def shared(self) -> bool:
        """Whether every layer has the same encoding."""
        return all(len(own) == 1 for own in self.parts)  # type: ignore[arg-type]

    @property
    def max_positions(self) -> int | None:
        return self.of_layer[0].max_positions

    def check_axes(self, axes: Sequence[str]) -> None:
        """Raises UserError where a part of the spec is not for positions on these axes, or on those that it names."""
        for text, of_layers in zip(parts_of(self.spec), self.parts, strict=True):
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


def _in_layer(parts: Sequence[Sequence[Encoding]], layer: int) -> Encoding:
    """The encoding of one layer: a part of each."""
    own = [of_layers[layer % len(of_layers)] for of_layers in parts]
    return own[0] if len(own) == 1 else Sum(own)


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
