"""An encoding to draw, built as in a model and queried through its hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall, Summands
from jarilab.attention.geometry import geometry_of
from jarilab.core.errors import UserError
from jarilab.core.options import Option, options_of
from jarilab.core.registry import first_sentence, trust_code
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import HOOKS, Encoding, Site, registry
from jarilab.encodings.compose import build, canonical, files_of, part_spec, split_sum
from jarilab.nn.init import generator_for, initialise
from jarilab.positions.coordinates import Positions

DRAWN_AXES = (1, 2)


@dataclass(frozen=True, eq=False)
class DrawnEncoding:
    """An encoding with the initial values of `seed` in float64, and the length of its drawings."""

    spec: str
    encoding: Encoding
    length: int
    seed: int

    @property
    def site(self) -> Site:
        return self.encoding.site

    @property
    def hooks(self) -> list[str]:
        """The hooks that it implements, in the order in which a model calls them."""
        return [hook for hook in HOOKS if hook in self.encoding.hooks]

    @property
    def axes(self) -> list[int]:
        """The numbers of axes that can be drawn."""
        return [axes for axes in DRAWN_AXES if axes in self.encoding.axes]

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.encoding.parameters())

    @property
    def shared(self) -> bool:
        """Whether all layers share one set of parameters."""
        return all(getattr(module, "shared", True) for module in self.encoding.modules())

    @property
    def sentences(self) -> list[str]:
        """The first docstring sentence of each part."""
        parts = [part_spec(part)[0] for part in split_sum(self.spec)]
        return [sentence for part in parts if (sentence := first_sentence(part.target))]

    @property
    def options(self) -> list[str]:
        """The options of its parts, with their choices."""
        parts = [part_spec(part)[0] for part in split_sum(self.spec)]
        every = [option for part in parts for option in options_of(part.target).values()]
        return list(dict.fromkeys(map(_option, every)))

    @contextmanager
    def guarded(self, hook: str) -> Iterator[None]:
        """Raises UserError for any error of a hook in the block, without gradients."""
        try:
            with torch.no_grad():
                yield
        except UserError as error:
            raise UserError(f"{self.spec} cannot be drawn: {error}") from None
        except Exception as error:
            kind = type(error).__name__
            raise UserError(
                f"{self.spec} cannot be drawn: its {hook} raised {kind}: {error}; "
                f"`jarilab laws {self.spec}` tries it hook by hook"
            ) from error

    # Positions -------------------------------------------------------------------------------------------------------

    def line(self, length: int) -> Positions:
        """Positions 0, 1, ..., at most `length`, within the encoding's limit."""
        known = self.encoding.max_positions
        return Positions.sequence(length if known is None else min(length, known))

    def around(self) -> tuple[Positions, int]:
        """Positions in a row, and the index of the query among them.

        Keys reach twice the length to both sides, within the encoding's limits; only backwards if attention is causal.
        """
        reach = 2 * self.length
        if self.encoding.max_distance is not None:
            reach = min(reach, self.encoding.max_distance)
        ahead = 0 if self.site.causal else reach
        positions = self.line(reach + ahead + 1)
        last = positions.length - 1
        return positions, last if self.site.causal else last // 2

    def plane(self) -> tuple[Positions, int]:
        """A square image that has all offsets of an image with `length` patches, and its number of rows."""
        side = 2 * max(round(self.length**0.5), 2) - 1
        known, farthest = self.encoding.max_positions, self.encoding.max_distance
        if known is not None:
            side = min(side, known)
        if farthest is not None:
            side = min(side, 2 * farthest + 1)
        return Positions.grid(side, side), side

    # What it answers -------------------------------------------------------------------------------------------------

    def added(self, hook: str, positions: Positions) -> Float[Tensor, "L D"]:
        """What `embed` or `inject` adds to zero vectors. Raises UserError if the hook fails."""
        x_BLD = torch.zeros(1, positions.length, self.site.d_model, dtype=torch.float64)
        with self.guarded(hook):
            return getattr(self.encoding, hook)(x_BLD, positions)[0]

    def turned(self, positions: Positions, component: int) -> Float[Tensor, "H L E"]:
        """The rotated unit vector of one component, in each head at each position."""
        with self.guarded("rotate"):
            rotation = self.encoding.rotation_for(positions, "query", positions)
            shape = 1, self.site.n_heads, positions.length, self.site.d_head
            x_BHLE = torch.zeros(shape, dtype=torch.float64)
            x_BHLE[..., component] = 1.0
            return self.encoding.rotate(x_BHLE, rotation)[0]

    def summands(
        self, hook: str, q_pos: Positions, k_pos: Positions, *, ones: bool = False
    ) -> Summands:
        """The terms of the score by the definition, for one query and one key at all positions.

        ones: vectors of ones; by default random vectors for each head.
        """
        site = self.site
        q_H1E, k_H1E = self._vectors(ones)
        q_BHQE = q_H1E.expand(1, -1, q_pos.length, -1)
        k_BHKE = k_H1E.expand(1, -1, k_pos.length, -1)
        with self.guarded(hook):
            geometry = geometry_of(self.encoding, q_pos, k_pos)
            if "rotate" in self.hooks:
                q_BHQE = self.encoding.rotate(q_BHQE, geometry.q_rotation)
                k_BHKE = self.encoding.rotate(k_BHKE, geometry.k_rotation)
            scale = site.d_head**-0.5 * self.encoding.scale_factor
            # Encodings that read the input of the keys get one random vector at all positions.
            x_D = self._random("content", (site.d_model,))
            states = self.encoding.key_states(x_D.expand(1, k_pos.length, -1))
            call = AttentionCall(q_BHQE, k_BHKE, k_BHKE, geometry, scale, states=states)
            return definition.summands(call)

    def values(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "H K E"]:
        """What `values` adds to the output of a query that gives all its weight to one key, for each key."""
        keys, heads = k_pos.length, self.site.n_heads
        one_key = torch.eye(keys, dtype=torch.float64)
        with self.guarded("values"):
            relation = self.encoding.relation(q_pos, k_pos)
            weights_BHQK = one_key[:, None, None, :].expand(-1, heads, -1, -1)
            added_BHQE = self.encoding.values(weights_BHQK, relation)
            assert added_BHQE is not None
            return added_BHQE[:, :, 0].transpose(0, 1)

    def _vectors(self, ones: bool) -> tuple[Tensor, Tensor]:
        shape = self.site.n_heads, 1, self.site.d_head
        if ones:
            return torch.ones(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
        return self._random("query", shape), self._random("key", shape)

    def _random(self, name: str, shape: tuple[int, ...]) -> Tensor:
        generator = generator_for(self.seed, name)
        return torch.randn(shape, generator=generator, dtype=torch.float64)


def _option(option: Option) -> str:
    words = ", ".join(map(str, option.choices))
    return f"`{option.name}` ({words})" if words else f"`{option.name}`"


def subject_of(spec: str, site: Site, length: int, seed: int) -> DrawnEncoding:
    """The encoding of a spec, whose Python files are executed. Raises UserError if it cannot be built or drawn."""
    for path in files_of(spec):
        trust_code(path)
    spec = canonical(spec)
    if any(part_spec(part)[1] is not None for part in split_sum(spec)):
        raise UserError(
            f"expected encodings for all axes of a position, got {spec}; draw its parts without their @"
        )
    causal = site.causal or any(
        getattr(registry.spec(part).target, "causal_only", False) for part in split_sum(spec)
    )
    drawn_site = Site(site.d_model, site.n_heads, site.d_head, site.d_value, causal=causal)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoding = build(spec, drawn_site)
    initialise(encoding, seed)
    subject = DrawnEncoding(spec, encoding.double(), length, seed)
    if not subject.axes:
        taken = ", ".join(map(str, encoding.axes)) or "none that all of its parts take"
        raise UserError(
            f"expected an encoding for positions with one axis or two, got {spec}, which takes other numbers of axes: "
            f"{taken}; draw its parts by themselves"
        )
    return subject
