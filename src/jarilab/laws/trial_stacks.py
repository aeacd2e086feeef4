"""The stacks for laws of models: an encoder, and a causal one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from jarilab.core.shapes import Tensor
from jarilab.laws.fixtures import randomise
from jarilab.laws.law_subject import Subject
from jarilab.models.decoder import CausalStack
from jarilab.models.layers import LayerOptions
from jarilab.models.stacks import Encoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

HIDDEN = 16


@dataclass(frozen=True, eq=False)
class Stack:
    """A stack with the encoding, in float64 and evaluation. packed: reads several documents in one row."""

    name: str
    module: nn.Module
    packed: Callable[[Tensor, Positions, Tensor], Tensor]
    causal: bool = False

    def __call__(self, x_BLD: Tensor, pos: Positions, keep: Tensor | None = None) -> Tensor:
        return self.module(x_BLD, positions=pos, keep=keep)


def stacks(subject: Subject) -> list[Stack]:
    """An encoder, if the encoding allows one, and a causal stack."""
    causal = causal_stack(subject)
    return [causal] if subject.causal_only else [encoder(subject), causal]


def encoder(subject: Subject, n_layers: int = 2) -> Stack:
    """A stack in which every token sees every other."""
    site = subject.site()
    made = Encoder(site.d_model, site.n_heads, n_layers, encoding=subject.spec, d_ff=HIDDEN)
    module = _filled(made)

    def packed(x_BLD: Tensor, pos: Positions, document_BL: Tensor) -> Tensor:
        return module(x_BLD, positions=pos, mask=Mask(documents=(document_BL, document_BL)))

    return Stack("an encoder", module, packed)


def causal_stack(subject: Subject, n_layers: int = 2) -> Stack:
    """A stack in which a token sees itself and earlier ones."""
    site = subject.site()
    options = LayerOptions(site.d_model, site.n_heads, d_ff=HIDDEN)
    module = _filled(CausalStack(options, n_layers, encoding=subject.spec, window=None))

    def packed(x_BLD: Tensor, pos: Positions, document_BL: Tensor) -> Tensor:
        return module(x_BLD, positions=pos, documents=document_BL)

    return Stack("a causal stack", module, packed, causal=True)


def _filled(module: nn.Module) -> nn.Module:
    module = module.double().eval()
    initialise(module, 0)
    return randomise(module)
