"""Initial values drawn from (seed, parameter name).

Two models that differ in their encoding alone have then bit-identical values in every parameter the encoding does not
own, whatever it added in between: the difference of their results is the encoding's and nothing else's.
"""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from jarilab.encodings.base import Encoding
from jarilab.nn.layers import Table, TokenEmbedding
from jarilab.nn.norms import BatchNorm


def generator_for(seed: int, name: str) -> torch.Generator:
    """A generator of its own for each seed and name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    number = int.from_bytes(digest[:8], "little", signed=True)
    return torch.Generator().manual_seed(number & (2**63 - 1))


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Fill every parameter of `model` in place.

    Matrices: normal with standard deviation 1 / sqrt(fan-in), so that a product keeps the variance of its input.
    Embeddings: 1 / sqrt(D), which their scale makes 1. Other tables of vectors: 1. Biases 0, norms 1. Encodings say
    themselves.
    Parameters are drawn on the CPU in float32, so that device and dtype do not change them.
    """
    for owner_name, owner in model.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            full_name = f"{owner_name}.{name}" if owner_name else name
            value = torch.empty(parameter.shape)
            generator = generator_for(seed, full_name)
            if isinstance(owner, Encoding):
                owner.initial_value(name, value, generator)
            elif isinstance(owner, TokenEmbedding):
                nn.init.normal_(value, std=value.shape[-1] ** -0.5, generator=generator)
            elif isinstance(owner, Table):
                nn.init.normal_(value, generator=generator)
            elif parameter.ndim >= 2:
                nn.init.normal_(value, std=value[0].numel() ** -0.5, generator=generator)
            elif isinstance(owner, nn.LayerNorm | BatchNorm) and name == "weight":
                value.fill_(1.0)
            else:
                value.zero_()
            parameter.copy_(value)
