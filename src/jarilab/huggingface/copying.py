"""Copies the weights of a transformers model into a model of jarilab, by a table of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from jarilab.core.errors import UserError
from jarilab.huggingface.loading import Loaded

Change = Callable[[Tensor, Any], Tensor]
Names = Mapping[str, str | tuple[str, Change] | Tensor]
"""For each parameter, or module with a weight and perhaps a bias: its name in transformers, that name and a function
`(weight, config) -> weight` of it, or the value itself. `*` is the number of the layer."""

LAYER = re.compile(r"layers\.(\d+)\.")

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""From the names of transformers to those of jarilab."""


def source_of(path: str, names: Names) -> tuple[str | Tensor, Change | None]:
    """Where a parameter is in transformers, or its value, and how it changes. Raises KeyError for an unknown one."""
    match = LAYER.search(path)
    pattern = LAYER.sub("layers.*.", path)
    module, _, kind = pattern.rpartition(".")
    source, suffix = (names[pattern], "") if pattern in names else (names[module], f".{kind}")
    if isinstance(source, Tensor):
        return source, None
    name, change = source if isinstance(source, tuple) else (source, None)
    return name.replace("*", match[1] if match else "*") + suffix, change


class WeightCopier:
    """The weights of one transformers model, and which of them were copied.

    config: the model's configuration. weights: its state dict. options: of the model that was built.
    """

    def __init__(self, loaded: Loaded):
        self.config, self.folder = loaded.config, loaded.folder
        self.weights: dict[str, Tensor] = dict(loaded.model.state_dict())
        self.options: dict[str, Any] = {}
        self._unused = set(self.weights)

    def build(
        self, model_class: Callable[..., nn.Module], *sizes: Any, **options: Any
    ) -> nn.Module:
        """A model of jarilab, whose options are kept as `options`."""
        self.options = options
        return model_class(*sizes, **options)

    def take(self, name: str) -> Tensor:
        """The weight of this name, which then counts as copied. Raises UserError if there is none."""
        if name not in self.weights:
            raise UserError(
                f"{self.folder} has no weights called {name}, as transformers 5 names them; load it with "
                "transformers, and write it again by model.save_pretrained(FOLDER)"
            )
        self._unused.discard(name)
        return self.weights[name]

    def repeats(self, name: str, other: str) -> bool:
        """Whether two weights are equal, as transformers ties them. Both then count as copied."""
        # The configuration does not decide: transformers does not tie weights that differ in the file.
        return torch.equal(self.take(name), self.take(other))

    def copy(self, model: nn.Module, names: Names, ignored: tuple[str, ...] = ()) -> nn.Module:
        """Fill all parameters of `model`, and set it to evaluation mode. A bias that only jarilab has is 0.

        ignored: beginnings of the names of weights that are not needed. Raises UserError if any other is left over.
        """
        values = {
            path: self._value(path, default, names) for path, default in model.state_dict().items()
        }
        left = sorted(name for name in self._unused if not name.startswith(ignored))
        if left:
            raise UserError(
                f"{self.folder} has weights that have no place in a model of jari: {', '.join(left[:3])}; look at it "
                "as it is, by jarilab.record(model)"
            )
        model.load_state_dict(values)
        return model.eval()

    def _value(self, path: str, default: Tensor, names: Names) -> Tensor:
        source, change = source_of(path, names)
        if isinstance(source, Tensor):
            return source
        if source.endswith(".bias") and path not in names and source not in self.weights:
            return torch.zeros_like(default)
        weight = self.take(source)
        return weight if change is None else change(weight, self.config)

    def require(self, **expected: Any) -> None:
        """Raises UserError if a setting of the configuration has another value than expected."""
        for name, value in expected.items():
            actual = getattr(self.config, name, value)
            if actual != value:
                self.refuse(f"{name}={actual}", f"expected {value}")

    def refuse(self, setting: str, expected: str) -> NoReturn:
        """Raises UserError for a setting that no layer of jarilab supports."""
        raise UserError(
            f"{self.folder} has {setting}, for which jari's layers have no option: {expected}; look at the model as "
            "it is, by jarilab.record(model)"
        )

    def activation(self, name: str) -> Any:
        """The name in jarilab of an activation of transformers. Raises UserError if jarilab does not have it."""
        if name not in ACTIVATIONS:
            self.refuse(f"the activation {name}", f"expected one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]


ROTARY_OPTIONS = {
    "default": ("rotary", {}),
    "linear": ("rotary_linear", {"factor": "factor"}),
    "llama3": (
        "llama3",
        {
            "factor": "factor",
            "trained_length": "original_max_position_embeddings",
            "low_frequency_factor": "low_freq_factor",
            "high_frequency_factor": "high_freq_factor",
        },
    ),
}
"""For each `rope_type` of transformers: the encoding, and its options by their names there."""


def rotary_spec(copier: WeightCopier, *, partial: bool = False) -> str:
    """The spec of the rotary encoding of a configuration. Raises UserError for a type that jarilab does not have.

    partial: the model reads `partial_rotary_factor`. Others rotate whole heads, whatever their configuration says.
    """
    settings = copier.config.rope_parameters
    kind = settings["rope_type"]
    if kind not in ROTARY_OPTIONS:
        copier.refuse(
            f"rotations of the kind {kind}", f"expected one of {', '.join(ROTARY_OPTIONS)}"
        )
    encoding, names = ROTARY_OPTIONS[kind]
    options = {ours: settings[theirs] for ours, theirs in names.items()}
    options["base"] = settings["rope_theta"]
    if partial:
        options["fraction"] = settings.get("partial_rotary_factor", 1.0)
    return f"{encoding}:{','.join(f'{name}={value!r}' for name, value in options.items())}"
