"""The interface of every way to encode position: six hooks, each "nothing" unless a class overrides it.

| hook | when | source of the idea |
| --- | --- | --- |
| `embed(x, pos)` | once, at the model's input | sinusoids and learned tables (Vaswani et al. 2017) |
| `inject(x, pos)` | in each layer, into queries and keys only | DETR (Carion et al. 2020) |
| `rotate(x, rotation)` | after the heads are split, each side by its own positions | rotary (Su et al. 2021) |
| `bias(q_pos, k_pos)` | added to the scores, by place alone | T5 (Raffel et al. 2020), ALiBi (Press et al. 2022) |
| `terms(q, k, relation)` | added to q.k before scaling, depends on the content | Shaw et al. 2018, keys |
| `values(weights, relation)` | added to the output | Shaw et al. 2018, values |

What a hook needs beforehand has a method of its own, so that it is worked out once: `rotation(pos)` for `rotate` and
`relation(q_pos, k_pos)` for `terms` and `values`, of the positions alone, once per forward for all layers;
`remember(x)` for `terms`, of the content of each key, once for each key, after which it lies in the cache beside it.

Two of them may ask for more, by naming it among their keyword-only parameters, `def rotation(self, pos, *, side)`:

| asked for | by | what it is |
| --- | --- | --- |
| `side` | `rotation` | "query" or "key", for encodings that rotate the two differently |
| `keys` | `rotation` | the Positions of all keys; a cache then keeps them unrotated, and all are rotated at each step |
| `product` | `terms` | q.k, `(B, H, Q, K)`, unscaled |
| `allowed` | `terms` | True where a query may look at a key, `(B or 1, 1, Q or 1, K)`; None where all may |
| `scale` | `terms` | what product and terms are multiplied by |
| `state` | `terms` | what `remember` gave for each key |

Which hooks an encoding uses, and what it asks for, is read from what it overrides; nothing declares it.

A class is abstract or final: to change an encoding, write another or add them with `+`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import nn

from jarilab.core.options import options_of
from jarilab.core.registry import Registry
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.by_distance import AffineBias, ByDistance
from jarilab.encodings.formulas.oracle import Oracle
from jarilab.positions.coordinates import Positions

registry = Registry(
    "encoding",
    "jarilab.encodings",
    "jarilab.encodings.absolute",
    "jarilab.encodings.rotary",
    "jarilab.encodings.bias",
    "jarilab.encodings.content",
)

HOOKS = ("embed", "inject", "rotate", "bias", "terms", "values")

ASKABLE = {
    "rotation": ("side", "keys"),
    "terms": ("product", "allowed", "scale", "state"),
}
"""What a method may ask for beside its arguments."""

ASKED: Any = ...
"""The default of what a method asks for: `def rotation(self, pos, *, side=ASKED)`. It is always filled in."""

Side = Literal["query", "key"]


@dataclass(frozen=True)
class Site:
    """Where in a model an encoding is plugged in: what its constructor may need to know.

    width: D; heads: H; head_width: E of queries and keys; value_head_width: E of values.
    causal: queries never see later keys. cross: queries and keys are of different sequences.
    layer: number of the layer, from 0 on, that this instance is in; 0 where one instance serves all. layers: of the
        stack.
    """

    width: int
    heads: int
    head_width: int
    value_head_width: int
    causal: bool = False
    cross: bool = False
    layer: int = 0
    layers: int = 1


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
    of_stack: ClassVar[tuple[str, ...]] = ()
    """Parameters and modules that the layers have in common although each has its own instance: that of the first layer
    owns them, the others read them there."""
    integer_only: bool = False
    """Takes whole coordinates alone, none between them."""
    keeps_norms: bool = True
    """`rotate` changes no vector's length."""
    hears_order: bool = True
    """Tokens in another order give an encoder other outputs, if any hook does something."""
    random_in_training: bool = False
    """Draws from torch's global generator in training, so that two forwards differ."""
    length_decides: bool = False
    """What a pair of tokens gets depends on how many keys there are, at least beyond some length. What was computed at
    an earlier step stays as it was, so that decoding with a cache is then no full forward."""
    scale_factor: float = 1.0
    """What it multiplies the attention's scale by: DeBERTa has 1 / sqrt(3), T5 as its authors trained it sqrt(E)."""
    oracle: ClassVar[Oracle | None] = None
    """Its formula once more for the laws to compare with; optional."""
    _hooks: ClassVar[frozenset[str]] = frozenset()
    _asks: ClassVar[Mapping[str, frozenset[str]]] = dict.fromkeys(ASKABLE, frozenset())

    def __init__(self, site: Site):
        super().__init__()
        self.site = site

    def __init_subclass__(cls) -> None:
        if not cls.shared and "embed" in hooks_of(cls):
            raise TypeError(
                f"{cls.__name__} overrides embed, which happens once: it cannot have an instance per layer"
            )
        # Read once for each class: a step of decoding would ask some dozen times.
        cls._hooks = hooks_of(cls)
        cls._asks = {method: _asked_by(cls, method) for method in ASKABLE}
        if "state" in cls._asks["terms"] and cls.remember is Encoding.remember:
            raise TypeError(
                f"{cls.__name__}.terms asks for state, which is what `remember(x)` gives for each key: write that too"
            )

    def __getattr__(self, name: str) -> Any:
        # What belongs to the stack is read from the first layer's instance.
        owner = self.__dict__.get("owner")
        if owner is not None and name in type(self).of_stack:
            return getattr(owner, name)
        return super().__getattr__(name)

    def belong_to(self, first: Encoding) -> None:
        """Read what is `of_stack` from the first layer's instance instead of having it."""
        for name in type(self).of_stack:
            delattr(self, name)
        # Not among its modules: those are its own.
        self.__dict__["owner"] = first

    @property
    def modules_read(self) -> list[nn.Module]:
        """Itself and whoever owns what it reads."""
        owners = [module.__dict__.get("owner") for module in self.modules()]
        return [self, *(owner for owner in owners if owner is not None)]

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks that do something."""
        return self._hooks

    def asks(self, method: str) -> frozenset[str]:
        """What `rotation` or `terms` asks for beside its arguments."""
        return self._asks[method]

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

    def remember(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B _ K _"]:
        """What `terms` needs to know of each key beside it, of the vectors that keys are made of: any numbers with the
        keys on the third of four axes."""
        raise NotImplementedError

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Any
    ) -> Float[Tensor, "B H Q K"] | None:
        return None

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: Any
    ) -> Float[Tensor, "B H Q E"] | None:
        return None

    def by_distance(self, first: int, last: int) -> ByDistance | None:
        """What `terms` and `values` are between whole places on one axis, from one distance j - i to another, where
        they are made of a vector for each, which takes no number for each pair; None where they are not."""
        return None

    def affine_bias(self, q_pos: Positions, first: int, last: int) -> AffineBias | None:
        """`bias` of queries that follow each other, from one distance j - i to another, where it is made of a few
        numbers of each query; None where it is not. What depends on the distance alone needs no such thing."""
        return None

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        """Fill one of its parameters in place; `generator` is keyed by the parameter's full name.

        name: as in `named_parameters()`: `table`, or `network.0.weight` for one of a module in it, which by default
        keeps the value that `parameter` comes with: that of any such module in a model.
        """
        if "." not in name:
            nn.init.normal_(parameter, std=0.02, generator=generator)

    @final
    def reset(self) -> None:
        """Fill all of its parameters from torch's global generator: for a module used without `jarilab.nn.init`."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                self.initial_value(name, parameter, None)

    # What a forward calls. A sum answers for its parts; nobody else overrides these.

    def rotation_for(self, pos: Positions, side: Side, keys: Positions) -> Any:
        """`rotation`, with what it asks for. keys: the places of all of them."""
        around = {"side": side, "keys": keys}
        return self.rotation(pos, **self._asked("rotation", around))

    def remembered(self, x: Float[Tensor, "B K D"]) -> tuple[Float[Tensor, "B _ K _"], ...]:
        """What a cache keeps of each key beside key and value: one tensor, or none where nothing asks for it."""
        return (self.remember(x),) if self.states else ()

    @property
    def states(self) -> int:
        """How many tensors `remembered` gives."""
        return int("state" in self.asks("terms"))

    def terms_for(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Any,
        around: Mapping[str, Any],
    ) -> Float[Tensor, "B H Q K"] | None:
        """`terms`, with what it asks for. around: what it may ask for by name; `state` as `remembered` gave it."""
        asked = self._asked("terms", around)
        if self.states:
            (asked["state"],) = around["state"]
        return self.terms(q, k, relation, **asked)

    def _asked(self, method: str, around: Mapping[str, Any]) -> dict[str, Any]:
        return {name: around[name] for name in self.asks(method)}

    def extra_repr(self) -> str:
        names = [name for name in options_of(type(self)) if hasattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def hooks_of(cls: type[Encoding]) -> frozenset[str]:
    """The hooks a class overrides."""
    return frozenset(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Encoding, hook))


def _asked_by(cls: type[Encoding], method: str) -> frozenset[str]:
    """The keyword-only parameters of a method. Raises TypeError for one that nobody can fill in."""
    parameters = inspect.signature(getattr(cls, method)).parameters.values()
    asked = frozenset(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
    strange = sorted(asked - set(ASKABLE[method]))
    if strange:
        raise TypeError(
            f"{cls.__name__}.{method} asks for {', '.join(strange)}; it may ask for {', '.join(ASKABLE[method])}"
        )
    return asked


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
