"""Initial values drawn from (seed, parameter name).

Two models that differ in their encoding alone therefore start with bit-identical values in all other parameters. Any
difference of their results is due to the encoding.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding
from jarilab.nn.norms import BatchNorm
from jarilab.nn.sublayers import Table, TokenEmbedding
from jarilab.nn.token_before import TokenBefore

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase, BatchNorm)


class SkipInitialValues(TorchFunctionMode):
    """Leaves tensors as they are where a constructor draws their values.

    For models on the meta device: PyTorch loads its compiler, about a second, when it draws numbers there.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" and "tensor" in keywords:
            return keywords["tensor"]
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **keywords)


def generator_for(seed: int, name: str) -> torch.Generator:
    """A generator seeded by the hash of a seed and a name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    number = int.from_bytes(digest[:8], "little", signed=True)
    return torch.Generator().manual_seed(number & (2**63 - 1))


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Fill every parameter of `model` in place.

    Matrices are normal with standard deviation 1 / sqrt(fan-in), so that a product keeps the variance of its input.
    Token embeddings have the standard deviation 1 / sqrt(D), which their scale makes 1; other tables have 1. Biases are
    0, weights of norms 1. Other vectors and scalars keep the value from their constructor. An encoding may override the
    values of its parameters and submodules in `initial_value`.

    Parameters are drawn on the CPU in float32, so that device and dtype do not change them.
    """
    # Modules come before their children, so that the nearest encoding is known.
    encodings: dict[str, Encoding] = {}
    for path, owner in model.named_modules():
        if isinstance(owner, Encoding):
            encodings[path] = owner
        around = _nearest(path, encodings)
        for name, parameter in owner.named_parameters(recurse=False):
            full_name = f"{path}.{name}" if path else name
            value = parameter.detach().to("cpu", torch.float32, copy=True)
            _fill(owner, name, value, generator_for(seed, full_name))
            if around is not None:
                local_name = full_name.removeprefix(f"{around}.")
                generator = generator_for(seed, full_name)
                encodings[around].initial_value(local_name, value, generator)
            parameter.copy_(value)


def _fill(owner: nn.Module, name: str, value: Tensor, generator: torch.Generator) -> None:
    """Fill the value of one parameter of a module."""
    if isinstance(owner, TokenEmbedding):
        nn.init.normal_(value, std=value.shape[-1] ** -0.5, generator=generator)
    elif isinstance(owner, Table):
        nn.init.normal_(value, generator=generator)
    elif isinstance(owner, TokenBefore):
        if name == "this":
            nn.init.normal_(value, 1.0, 0.5, generator=generator)
        else:
            value.zero_()
    elif value.ndim >= 2:
        nn.init.normal_(value, std=value[0].numel() ** -0.5, generator=generator)
    elif "bias" in name:
        value.zero_()
    elif isinstance(owner, NORMS):
        value.fill_(1.0)


def _nearest(path: str, encodings: dict[str, Encoding]) -> str | None:
    """The path of the innermost encoding that contains a module, or None."""
    while path not in encodings:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path
