"""The interface of every way to encode position: six hooks, each "nothing" unless a class overrides it.

| hook | when | source of the idea |
| --- | --- | --- |
| `embed(x, pos)` | once, at the model's input | sinusoids and learned tables (Vaswani et al. 2017) |
| `inject(x, pos)` | in each layer, into queries and keys only | DETR (Carion et al. 2020) |
| `rotate(x, rotation)` | after the heads are split, each side by its own positions | rotary (Su et al. 2021) |
| `bias(q_pos, k_pos)` | added to the scores, by place alone | T5 (Raffel et al. 2020), ALiBi (Press et al. 2022) |
| `terms(q, k, relation)` | added to q.k before scaling, depends on the content | Shaw et al. 2018, keys |
| `values(weights, relation)` | added to the output | Shaw et al. 2018, values |

`rotation(pos)` and `relation(q_pos, k_pos)` work out what `rotate` and `terms`/`values` need of the positions alone:
once per forward, for all layers. Which hooks an encoding uses is read from what it overrides; nothing declares it.

A class is abstract or final: to change an encoding, write another or add them with `+`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import nn

from jarilab.encodings.oracle import Oracle
from jarilab.errors import UserError
from jarilab.options import options_of
from jarilab.positions import Positions
from jarilab.registry import Registry
from jarilab.shapes import Float, Tensor

registry = Registry("encoding", "jarilab.encodings")

HOOKS = ("embed", "inject", "rotate", "bias", "terms", "values")


@dataclass(frozen=True)
class Site:
    """Where in a model an encoding is plugged in: what its constructor may need to know.

    width: D; heads: H; head_width: E of queries and keys; value_head_width: E of values.
    causal: queries never see later keys. cross: queries and keys are of different sequences.
    """

    width: int
    heads: int
    head_width: int
    value_head_width: int
    causal: bool = False
    cross: bool = False


@registry.base
class Encoding(nn.Module):
    """A way to tell attention where tokens are. Subclasses take `site` and keyword-only options: their spec."""

    axes: tuple[int, ...] = (1,)
    """How many axes a position may have."""
    shift_invariant: bool = True
    """Moving all positions by the same amount changes nothing."""
    causal_only: bool = False
    """Makes sense only where queries never see later keys."""
    cross: bool = True
    """May be asked for in cross-attention."""
    shared: bool = True
    """One instance serves all layers; otherwise each layer has its own."""
    integer_only: bool = False
    """Takes whole coordinates alone, none between them."""
    keeps_norms: bool = True
    """`rotate` changes no vector's length."""
    oracle: ClassVar[Oracle | None] = None
    """Its formula once more for the laws to compare with; optional."""

    def __init__(self, site: Site):
        super().__init__()
        self.site = site

    def __init_subclass__(cls) -> None:
        if not cls.shared and "embed" in hooks_of(cls):
            raise TypeError(
                f"{cls.__name__} overrides embed, which happens once: it cannot have an instance per layer"
            )

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks that do something."""
        return hooks_of(type(self))

    @property
    def max_positions(self) -> int | None:
        """The number of positions it can tell apart from 0 on, along any axis, or None if there is no end."""
        return None

    @property
    def max_distance(self) -> int | None:
        """The largest distance along any axis that it can compare two tokens over, or None if any will do."""
        return None

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return x

    def rotation(self, pos: Positions) -> Any:
        return None

    def rotate(self, x: Float[Tensor, "B H L E"], rotation: Any) -> Float[Tensor, "B H L E"]:
        return x

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"] | None:
        return None

    def relation(self, q_pos: Positions, k_pos: Positions) -> Any:
        return None

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Any
    ) -> Float[Tensor, "B H Q K"] | None:
        return None

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: Any
    ) -> Float[Tensor, "B H Q E"] | None:
        return None

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        """Fill one of its own parameters in place; `generator` is keyed by the parameter's name."""
        nn.init.normal_(parameter, std=0.02, generator=generator)

    @final
    def reset(self) -> None:
        """Fill all of its own parameters from torch's global generator: for a module used without `jarilab.nn.init`."""
        with torch.no_grad():
            for name, parameter in self.named_parameters(recurse=False):
                self.initial_value(name, parameter, None)

    def extra_repr(self) -> str:
        names = [name for name in options_of(type(self)) if hasattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def hooks_of(cls: type[Encoding]) -> frozenset[str]:
    """The hooks a class overrides."""
    return frozenset(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Encoding, hook))


registry.family(
    "absolute",
    "where a token stands decides",
    lambda cls: bool(hooks_of(cls)) and not cls.shift_invariant,
)
registry.family(
    "relative",
    "how far two tokens are apart decides",
    lambda cls: bool(hooks_of(cls)) and cls.shift_invariant,
)


def frequencies(count: int, base: float, step: float, device: torch.device) -> Float[Tensor, " F"]:
    """`base ** (-i * step)` for i = 0 ... count - 1, in the best precision the device has.

    Computed afresh from the constructor's numbers at each forward, so that no cast of the model, no checkpoint and no
    meta device can spoil it: in bfloat16 the angle at position 4,096 would be off by 1.8 radians.
    """
    index_F = torch.arange(count, device=device, dtype=precise_on(device))
    return base ** (-index_F * step)


def precise_on(device: torch.device) -> torch.dtype:
    """The best precision the device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def angles(index: Tensor, frequency_F: Tensor) -> Float[Tensor, "*B L F"]:
    """Position times frequency, in the precision of the frequencies."""
    return index.to(frequency_F.dtype).unsqueeze(-1) * frequency_F


def whole_numbers(name: str, index: Tensor) -> Tensor:
    """`index` if it holds integers. Raises UserError for an encoding that looks positions up in a table."""
    if index.is_floating_point():
        raise UserError(
            f"{name} looks whole positions up in a table, got {index.dtype}; use integer coordinates"
        )
    return index
