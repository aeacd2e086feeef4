"""Weights by the names of another library, put into a model of jari by its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from jarilab.errors import UserError
from jarilab.huggingface.folder import Loaded

Change = Callable[[Tensor], Tensor]

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""What transformers calls them, and what jari does."""


class Copying:
    """theirs: all weights of the model that is copied. Each is taken once, and `finish` tells what nobody took."""

    def __init__(self, loaded: Loaded):
        self.config, self.folder = loaded.config, loaded.folder
        self.theirs: dict[str, Tensor] = dict(loaded.model.state_dict())
        self._left = set(self.theirs)
        self._ours: dict[str, Tensor] = {}

    def has(self, theirs: str) -> bool:
        return theirs in self.theirs

    def take(self, theirs: str) -> Tensor:
        """Raises UserError for a name that there is not."""
        if theirs not in self.theirs:
            raise UserError(
                f"{self.folder} has no weights called {theirs}, as transformers 5 names them; load it with "
                "transformers, and write it again by model.save_pretrained(FOLDER)"
            )
        self._left.discard(theirs)
        return self.theirs[theirs]

    def leave(self, *theirs: str) -> None:
        """Those that are not wanted: names, or their beginnings."""
        self._left = {name for name in self._left if not name.startswith(theirs)}

    def put(self, ours: str, value: Tensor) -> None:
        self._ours[ours] = value

    def module(self, ours: str, theirs: str, change: Change = lambda weight: weight) -> None:
        """Its weight, changed, and its bias, where it has one."""
        self.put(f"{ours}.weight", change(self.take(f"{theirs}.weight")))
        if self.has(f"{theirs}.bias"):
            self.put(f"{ours}.bias", self.take(f"{theirs}.bias"))

    def modules(self, ours: str, theirs: str, names: Mapping[str, str]) -> None:
        """Several of one layer: our name to theirs."""
        for our, their in names.items():
            self.module(f"{ours}.{our}", f"{theirs}.{their}")

    def finish(self, model: nn.Module) -> nn.Module:
        """The model with all of them, in evaluation. A bias that only jari has is 0. Raises UserError for weights that
        have no place in it."""
        if self._left:
            left = ", ".join(sorted(self._left)[:3])
            raise UserError(
                f"{self.folder} has weights that have no place in a model of jari: {left}; look at it as it is, by "
                "jarilab.record(model)"
            )
        values = dict(self._ours)
        for name, parameter in model.state_dict().items():
            if name.endswith(".bias"):
                values.setdefault(name, torch.zeros_like(parameter))
        model.load_state_dict(values)
        return model.eval()

    # Settings -----------------------------------------------------------------------------------------------------

    def require(self, **allowed: Any) -> None:
        """Raises UserError for a setting of the configuration that is another than this."""
        for name, value in allowed.items():
            found = getattr(self.config, name, value)
            if found != value:
                self.refuse(f"{name}={found}", f"expected {value}")

    def refuse(self, what: str, instead: str) -> None:
        raise UserError(
            f"{self.folder} has {what}, for which jari's layers have no option: {instead}; look at the model as it "
            "is, by jarilab.record(model)"
        )

    def activation(self, name: str) -> Any:
        """Raises UserError for one that jari does not have."""
        if name not in ACTIVATIONS:
            self.refuse(f"the activation {name}", f"expected one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]
