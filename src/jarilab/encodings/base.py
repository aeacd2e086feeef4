"""The base class of encodings: six hooks, each of which does nothing unless a subclass overrides it.

| hook | called | from |
| --- | --- | --- |
| `embed(x, pos)` | once, at the model's input | sinusoids and learned tables (Vaswani et al. 2017) |
| `inject(x, pos)` | in each layer, for queries and keys only | DETR (Carion et al. 2020) |
| `rotate(x, rotation)` | after heads are split, for queries and for keys | rotary (Su et al. 2021) |
| `bias(q_pos, k_pos)` | added to scores, from positions only | T5 (Raffel et al. 2020), ALiBi (Press et al. 2022) |
| `terms(q, k, relation)` | added to q.k before scaling, depends on content | Shaw et al. 2018, keys |
| `values(weights, relation)` | added to the output | Shaw et al. 2018, values |

Three more methods compute what hooks need. `rotation(pos)` is for `rotate`, and `relation(q_pos, k_pos)` for `terms`
and `values`: both depend on positions only and are called once per forward for all layers. `remember(x)` is for `terms`
and depends on the content of keys: it is called once for each key, and a cache stores its result.

Two methods can request more arguments as keyword-only parameters, `def rotation(self, pos, *, side=PROVIDED)`:

| argument | of | value |
| --- | --- | --- |
| `side` | `rotation` | "query" or "key", for encodings that rotate the two differently |
| `keys` | `rotation` | the Positions of all keys; a cache then stores unrotated keys, which are rotated at each step |
| `product` | `terms` | q.k, `(B, H, Q, K)`, unscaled |
| `allowed` | `terms` | True where a query may see a key, `(B or 1, 1, Q or 1, K)`; None if all may |
| `scale` | `terms` | the factor of q.k and terms |
| `state` | `terms` | the result of `remember` for each key |

The hooks and requested arguments of a class are read from the methods that it overrides. A class is abstract or final:
to change an encoding, write another one or add them with `+`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Generator, nn

from jarilab.core.options import options_of
from jarilab.core.registry import Registry
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.distance_forms import AffineBias, DistanceVectors
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

EXTRA_ARGUMENTS = {
    "rotation": ("side", "keys"),
    "terms": ("product", "allowed", "scale", "state"),
}
"""The keyword-only parameters that a method may have."""

PROVIDED: Any = ...
"""The default of a keyword-only parameter that jarilab always passes: `def rotation(self, pos, *, side=PROVIDED)`."""

Side = Literal["query", "key"]


@dataclass(frozen=True)
class Site:
    """The attention layer that an encoding is built for.

    d_model: model dimension D. n_heads: number of heads H. d_head: E, of queries and keys. d_value: E of
    values. causal: queries never see later keys. cross: queries and keys are of different sequences.
    layer: number of the layer, from 0 on; 0 if all layers share the encoding. n_layers: of the stack.
    """

    d_model: int
    n_heads: int
    d_head: int
    d_value: int
    causal: bool = False
    cross: bool = False
    layer: int = 0
    n_layers: int = 1


@registry.base
class Encoding(nn.Module):
    """Base class of position encodings. The constructor takes `site` and keyword-only options."""

    axes: tuple[int, ...] = (1,)
    """Supported numbers of position axes."""
    shift_invariant: bool = True
    """Moving all positions by the same amount changes nothing."""
    causal_only: bool = False
    """Works only if queries never see later keys."""
    cross: bool = True
    """Can be used in cross-attention."""
    shared: bool = True
    """One instance serves all layers; otherwise each layer has its own."""
    shared_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters and modules that layers share although each has its own instance. The first layer's instance owns
    them."""
    integer_only: bool = False
    """Coordinates must be integers."""
    keeps_norms: bool = True
    """`rotate` does not change the length of vectors."""
    uses_order: bool = True
    """The outputs of an encoder depend on the order of tokens, if any hook does something."""
    random_in_training: bool = False
    """Draws from torch's global generator in training, so that two forwards differ."""
    depends_on_length: bool = False
    """The result for a pair of tokens depends on the number of keys, at least beyond some length. Results of earlier
    steps do not change, so decoding with a cache differs from one forward."""
    scale_factor: float = 1.0
    """Factor of the attention's scale: 1 / sqrt(3) in DeBERTa, sqrt(E) in T5 as its authors trained it."""
    oracle: ClassVar[Oracle | None] = None
    """Its formula, for the laws to compare with; optional."""
    _hooks: ClassVar[frozenset[str]] = frozenset()
    _extra_arguments: ClassVar[Mapping[str, frozenset[str]]] = dict.fromkeys(
        EXTRA_ARGUMENTS, frozenset()
    )

    def __init__(self, site: Site):
        super().__init__()
        self.site = site

    def __init_subclass__(cls) -> None:
        if not cls.shared and "embed" in hooks_of(cls):
            raise TypeError(
                f"{cls.__name__} overrides embed, which is called once: expected shared = True, got False"
            )
        # Read once for each class: a decoding step needs them a dozen times.
        cls._hooks = hooks_of(cls)
        cls._extra_arguments = {method: _requested(cls, method) for method in EXTRA_ARGUMENTS}
        if "state" in cls._extra_arguments["terms"] and cls.remember is Encoding.remember:
            raise TypeError(
                f"{cls.__name__}.terms requests state, the result of `remember(x)` for each key: define that too"
            )

    def __getattr__(self, name: str) -> Any:
        # Shared parameters are read from the first layer's instance.
        owner = self.__dict__.get("owner")
        if owner is not None and name in type(self).shared_parameters:
            return getattr(owner, name)
        return super().__getattr__(name)

    def share_parameters_with(self, first: Encoding) -> None:
        """Replace the `shared_parameters` by those of the first layer's instance."""
        for name in type(self).shared_parameters:
            delattr(self, name)
        # Not a submodule, since the first layer already registers the parameters.
        self.__dict__["owner"] = first

    @property
    def parameter_modules(self) -> list[nn.Module]:
        """This encoding and the first layer's, whose parameters it shares."""
        owners = [module.__dict__.get("owner") for module in self.modules()]
        return [self, *(owner for owner in owners if owner is not None)]

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks that do something."""
        return self._hooks

    def extra_arguments(self, method: str) -> frozenset[str]:
        """The keyword-only arguments that `rotation` or `terms` requests."""
        return self._extra_arguments[method]

    @property
    def max_positions(self) -> int | None:
        """The number of positions from 0 on that it supports along each axis; None if unlimited."""
        return None

    @property
    def max_distance(self) -> int | None:
        """The largest distance along an axis that it supports; None if unlimited."""
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
        """The state of each key for `terms`, computed from the attention's input.

        Any numbers, with keys on the third of four axes.
        """
        raise NotImplementedError

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Any
    ) -> Float[Tensor, "B H Q K"] | None:
        return None

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: Any
    ) -> Float[Tensor, "B H Q E"] | None:
        return None

    def distance_vectors(self, first: int, last: int) -> DistanceVectors | None:
        """`terms` and `values` as products with vectors of the distances j - i from `first` to `last`.

        For consecutive integer positions on one axis, so that kernels need no tensor of all pairs. None if they have no
        such form.
        """
        return None

    def affine_bias(self, q_pos: Positions, first: int, last: int) -> AffineBias | None:
        """`bias` at the distances j - i from `first` to `last`, as an affine function of a number of each query.

        q_pos: consecutive positions. None if it has no such form. A bias by distance alone does not need it.
        """
        return None

    def bias_slopes(self, device: torch.device) -> Float[Tensor, " H"] | None:
        """The slopes of a `bias` that is `-slope |j - i|`, without gradients, or None. Kernels need no lookup then."""
        return None

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        """Initialize one parameter in place.

        name: as in `named_parameters()`: `table`, or `network.0.weight` for a parameter of a submodule, which by
        default keeps the value of its module's own initialization. generator: seeded by the parameter's full name.
        """
        if "." not in name:
            nn.init.normal_(parameter, std=0.02, generator=generator)  # as BERT and GPT-2

    @final
    def reset(self) -> None:
        """Initialize all parameters from torch's global generator, for use without `jarilab.nn.init`."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                self.initial_value(name, parameter, None)

    # The attention calls these. Only sums override them.

    def rotation_for(self, pos: Positions, side: Side, keys: Positions) -> Any:
        """`rotation` with its requested arguments. keys: positions of all keys."""
        context = {"side": side, "keys": keys}
        return self.rotation(pos, **self._select(context, "rotation"))

    def key_states(self, x: Float[Tensor, "B K D"]) -> tuple[Float[Tensor, "B _ K _"], ...]:
        """The states of keys that a cache stores: one tensor, or none if `terms` requests no state."""
        return (self.remember(x),) if self.n_states else ()

    @property
    def n_states(self) -> int:
        """The number of tensors of `key_states`."""
        return int("state" in self.extra_arguments("terms"))

    def terms_for(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Any,
        context: Mapping[str, Any],
    ) -> Float[Tensor, "B H Q K"] | None:
        """`terms` with its requested arguments. context: all arguments that can be requested; `state` is a tuple."""
        arguments = self._select(context, "terms")
        if self.n_states:
            (arguments["state"],) = context["state"]
        return self.terms(q, k, relation, **arguments)

    def _select(self, context: Mapping[str, Any], method: str) -> dict[str, Any]:
        return {name: context[name] for name in self.extra_arguments(method)}

    def extra_repr(self) -> str:
        names = [name for name in options_of(type(self)) if hasattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def hooks_of(cls: type[Encoding]) -> frozenset[str]:
    """The hooks that a class overrides."""
    return frozenset(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Encoding, hook))


def _requested(cls: type[Encoding], method: str) -> frozenset[str]:
    """The keyword-only parameters of a method. Raises TypeError for an unknown one."""
    parameters = inspect.signature(getattr(cls, method)).parameters.values()
    names = frozenset(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
    unknown = sorted(names - set(EXTRA_ARGUMENTS[method]))
    if unknown:
        raise TypeError(
            f"{cls.__name__}.{method} requests {', '.join(unknown)}; it can request "
            f"{', '.join(EXTRA_ARGUMENTS[method])}"
        )
    return names


registry.family(
    "absolute",
    "depends on the positions of tokens",
    lambda cls: bool(hooks_of(cls)) and not cls.shift_invariant,
)
registry.family(
    "relative",
    "depends on the distance between tokens",
    lambda cls: bool(hooks_of(cls)) and cls.shift_invariant,
)


@final
@registry.register("none", "nope")
class NoEncoding(Encoding):
    """No positions: every hook does nothing.

    An encoder then sees a bag of tokens. A causal decoder with two layers or more can still learn order from its mask
    (Kazemnejad et al. 2023).

    Source: No positions at all.
    """

    axes = (1, 2, 3)
