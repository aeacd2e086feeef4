"""What attention knows of places: whether it is blind to order, and whether distances alone count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.intervene.moved_positions import Places, displaced, moved, permutations, placed
from jarilab.inspect.measure.measures import row_difference
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.model_io import Inputs, precise
from jarilab.positions.coordinates import Tokens


def permuted(model: nn.Module, inputs: Inputs, seed: int = 0) -> dict[str, float]:
    """`max |A(Px) - P A(x) P^T|` over the heads of each of an encoder's sites: tokens that are no padding are dealt out
    anew, places stay. 0 where attention is blind to order. Computed in float64, compared as by `row_difference`. Of a
    image, what its encoder gets is dealt out: patches, or what convolutions have made of them.

    Nothing for a decoder's own sites, where the causal mask itself tells places apart, and for those between two
    sequences, whose queries stay where they are.
    """
    model, inputs = _precise(model), precise(inputs)
    tape = _recorded(model, inputs)
    sites = tape.sites_of("encoder")
    if not sites:
        return {}
    first = tape.calls[sites[0]][0]
    stack = first.placed.stack or first.placed.owner
    sites = [site for site in sites if stack in tape.calls[site][0].placed.above]
    index_RL = permutations(_movable(first.call), seed)
    index_BL = index_RL.expand(len(first.call.q), -1)
    if isinstance(inputs[0], Tokens):
        dealt = replace(inputs[0], ids=inputs[0].ids.gather(1, index_BL))
        after = _recorded(model, (dealt, *inputs[1:]))
    else:
        with _dealt(stack, index_BL):
            after = _recorded(model, inputs)
    found = {}
    for site in sites:
        expected = _dealt_out(tape.weights(site), index_BL)
        found[site] = _largest_difference(expected, after.weights(site))
    return found


def _dealt_out(
    maps_BHLL: Float[Tensor, "B H L L"], index_BL: Int[Tensor, "B L"]
) -> Float[Tensor, "B H L L"]:
    """The same maps, were queries and keys dealt out anew."""
    dealt = []
    for map_HLL, index_L in zip(maps_BHLL, index_BL, strict=True):
        dealt.append(map_HLL[:, index_L][:, :, index_L])
    return torch.stack(dealt)


def _movable(call: AttentionCall) -> Bool[Tensor, "R L"]:
    """Tokens of an encoder's first attention that are no padding and have a place."""
    there_RL = placed(call.geometry.k_pos)
    seen_BL = allowed_links(call).any(-2).flatten(0, 1)
    return there_RL & seen_BL


@contextmanager
def _dealt(stack: nn.Module, index_BL: Int[Tensor, "B L"]) -> Iterator[None]:
    """What goes into a stack of layers is dealt out anew."""

    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BLD, *others = arguments
        index_BLD = index_BL.unsqueeze(-1).expand_as(x_BLD)
        return x_BLD.gather(1, index_BLD), *others

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
    before = _recorded(model, inputs)
    if all(isinstance(one, Tokens) for one in inputs):
        sites = before.sites
        after = _recorded(model, tuple(moved(tokens, places) for tokens in inputs))
    else:
        sites = before.sites_of("encoder")
        with displaced(model, places):
            after = _recorded(model, inputs)
    found = {}
    for site in sites:
        found[site] = _largest_difference(before.weights(site), after.weights(site))
    return found


def _recorded(model: nn.Module, inputs: Inputs) -> Tape:
    with torch.no_grad(), record(model) as tape:
        model(*inputs)
    return tape


def _precise(model: nn.Module) -> nn.Module:
    """The model in float64; a copy, unless it is."""
    check_evaluating(model)
    if all(p.dtype is torch.float64 for p in model.parameters()):
        return model
    return deepcopy(model).double()


def _largest_difference(first: Tensor, second: Tensor) -> float:
    both = torch.stack((first.flatten(), second.flatten()))
    return float(row_difference(both, 0, 1).amax()) if both.numel() else 0.0
