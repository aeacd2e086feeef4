"""What attention knows of places: whether it is blind to order, and whether distances alone count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from jarilab.attention.call import AttentionCall
from jarilab.attention.module import Attend
from jarilab.inspect.capture import record
from jarilab.inspect.effects import kind_of
from jarilab.inspect.interventions import (
    Places,
    attends_of,
    check_evaluating,
    displaced,
    moved,
    permutations,
    placed,
)
from jarilab.inspect.measures import row_difference
from jarilab.inspect.model_io import Inputs, precise
from jarilab.positions import Tokens
from jarilab.shapes import Bool, Float, Int, Tensor


def permuted(model: nn.Module, inputs: Inputs, seed: int = 0) -> dict[str, float]:
    """`max |A(Px) - P A(x) P^T|` over the heads of each of an encoder's sites: tokens that are no padding are dealt out
    anew, places stay. 0 where attention is blind to order. Computed in float64, compared as by `row_difference`. Of a
    image, what its encoder gets is dealt out: patches, or what convolutions have made of them.

    Nothing for a decoder's own sites, where the causal mask itself tells places apart, and for those between two
    sequences, whose queries stay where they are.
    """
    model, inputs = _precise(model), precise(inputs)
    with torch.no_grad(), record(model) as tape:
        model(*inputs)
    first = next(
        (site for site in tape.sites if kind_of(tape.calls[site][0].call) == "encoder"), None
    )
    if first is None:
        return {}
    # Object queries look at each other without a mask, too, and are no tokens of the input.
    sites = [site for site in tape.sites if site.partition(".")[0] == first.partition(".")[0]]
    call = tape.calls[sites[0]][0].call
    index_BL = permutations(_movable(call), seed).expand(len(call.q), -1)
    if isinstance(inputs[0], Tokens):
        dealt = replace(inputs[0], ids=inputs[0].ids.gather(1, index_BL))
        after = _maps(model, (dealt, *inputs[1:]), sites)
    else:
        with _dealt(attends_of(model)[sites[0]], model, index_BL):
            after = _maps(model, inputs, sites)

    def expected(before: Float[Tensor, "B H Q K"]) -> Float[Tensor, "B H Q K"]:
        return torch.stack(
            [a_HQK[:, p_L][:, :, p_L] for a_HQK, p_L in zip(before, index_BL, strict=True)]
        )

    return {site: _largest_difference(expected(tape.weights(site)), after[site]) for site in sites}


def _movable(call: AttentionCall) -> Bool[Tensor, "R L"]:
    """Tokens of an encoder's first attention that are no padding and have a place."""
    geometry = call.geometry
    keep_RL = placed(geometry.k_pos)
    if geometry.allowed is None:
        return keep_RL
    allowed = geometry.allowed if geometry.has_key is None else geometry.allowed & geometry.has_key
    return keep_RL & allowed.any(-2).flatten(0, 1)


@contextmanager
def _dealt(first: Attend, model: nn.Module, index_BL: Int[Tensor, "B L"]) -> Iterator[None]:
    """What goes into the stack of layers that `first` belongs to is dealt out anew."""
    path = next(path for path, module in model.named_modules() if module is first)
    stack = model.get_submodule(path.partition(".layers.")[0])

    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BLD, *others = arguments
        return x_BLD.gather(1, index_BL.unsqueeze(-1).expand_as(x_BLD)), *others

    handle = stack.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def shifted(model: nn.Module, inputs: Inputs, by: int | float) -> dict[str, float]:
    """The largest change of each site's weights when all positions, the source's and the target's, move by `by`.
    Computed and compared as in `permuted`. 0 where only distances count, but for what an encoding rounds itself.
    Of an image, those of its encoder alone: object queries look from where their boxes are."""
    model, inputs, places = _precise(model), precise(inputs), Places("shift", by)
    if all(isinstance(one, Tokens) for one in inputs):
        before = _maps(model, inputs)
        after = _maps(model, tuple(moved(tokens, places) for tokens in inputs))
        return {site: _largest_difference(before[site], after[site]) for site in before}
    sites = [site for site in attends_of(model) if site.startswith("encoder")]
    before = _maps(model, inputs, sites)
    with displaced(model, places):
        after = _maps(model, inputs, sites)
    return {site: _largest_difference(before[site], after[site]) for site in before}


def _maps(
    model: nn.Module, inputs: Inputs, sites: list[str] | None = None
) -> dict[str, Float[Tensor, "B H Q K"]]:
    with torch.no_grad(), record(model, sites) as tape:
        model(*inputs)
    return {site: tape.weights(site) for site in tape.sites}


def _precise(model: nn.Module) -> nn.Module:
    """The model in float64; a copy, unless it is."""
    check_evaluating(model)
    if all(p.dtype is torch.float64 for p in model.parameters()):
        return model
    return deepcopy(model).double()


def _largest_difference(first: Tensor, second: Tensor) -> float:
    both = torch.stack((first.flatten(), second.flatten()))
    return float(row_difference(both, 0, 1).amax()) if both.numel() else 0.0
