"""The layers of a model, and what training does with each of them apart."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from jarilab.core.errors import UserError
from jarilab.encodings.base import Encoding


def layers_of(model: nn.Module) -> list[nn.Module]:
    """What stands in its lists of modules and has a forward, the outermost ones alone. Raises UserError where there is
    none."""
    found = list(_layers(model, listed=False))
    if not found:
        raise UserError(
            f"{type(model).__name__} has no list of layers (torch.nn.ModuleList), so nothing can be done layer by layer"
        )
    return found


def _layers(module: nn.Module, *, listed: bool) -> Iterator[nn.Module]:
    """listed: the module stands in a list, or in what has no forward and does."""
    for child in module.children():
        if isinstance(child, Encoding):  # its hooks are called, and no forward
            continue
        is_layer = type(child).forward is not nn.Module.forward
        if listed and is_layer:
            yield child
        else:
            within = isinstance(child, nn.ModuleList) or (listed and not is_layer)
            yield from _layers(child, listed=within)


def recompute(model: nn.Module) -> None:
    """Keep only what goes into each layer, and compute the layer again for its gradient: less memory, about a third
    more time. Random draws are the same in both."""
    for layer in layers_of(model):
        again = partial(checkpoint, layer.forward, use_reentrant=False)
        layer.forward = again  # type: ignore[method-assign]
