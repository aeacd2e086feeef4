"""What attention knows of places: whether it is blind to order, and whether distances alone count."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import nn

from jari.inspect.capture import record
from jari.inspect.effects import kind_of
from jari.inspect.measures import row_difference
from jari.inspect.surgery import Inputs, Places, check_evaluating, moved, permutations
from jari.shapes import Float, Tensor


def permuted(model: nn.Module, inputs: Inputs, site: str, seed: int = 0) -> float | None:
    """`max |A(Px) - P A(x) P^T|` over the heads of an encoder's site: tokens that are no padding are dealt out
    anew, places stay. 0 where attention is blind to order. Computed in float64, compared as by `row_difference`.

    None for a decoder's own site, where the causal mask itself tells places apart, and for one between two sequences,
    whose queries stay where they are.
    """
    model, (source, *others) = _precise(model), inputs
    with torch.no_grad(), record(model, [site]) as tape:
        model(*inputs)
    if kind_of(tape.calls[site][0].call) != "encoder":
        return None
    index_BL = permutations(source, seed).expand_as(source.ids)
    after = _maps(model, (replace(source, ids=source.ids.gather(1, index_BL)), *others), [site])[site]
    before = tape.weights(site)
    expected = torch.stack([a_HQK[:, p_L][:, :, p_L] for a_HQK, p_L in zip(before, index_BL, strict=True)])
    return _largest_difference(expected, after)


def shifted(model: nn.Module, inputs: Inputs, by: int | float) -> dict[str, float]:
    """The largest change of each site's weights when all positions, the source's and the target's, move by `by`.
    Computed and compared as in `permuted`. 0 where only distances count, but for what an encoding rounds itself."""
    model = _precise(model)
    before = _maps(model, inputs)
    after = _maps(model, tuple(moved(tokens, Places("shift", by)) for tokens in inputs))
    return {site: _largest_difference(before[site], after[site]) for site in before}


def _maps(model: nn.Module, inputs: Inputs, sites: list[str] | None = None) -> dict[str, Float[Tensor, "B H Q K"]]:
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
