"""How weights change when tokens are permuted or positions are shifted."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from jarilab.core.shapes import Tensor
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.intervene.moved_positions import (
    PositionEdit,
    has_position,
    move_patches,
    move_tokens,
    permutations,
)
from jarilab.inspect.measure.maps import row_difference
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.model_io import Inputs, to_float64
from jarilab.positions.coordinates import Tokens


def permutation_error(model: nn.Module, inputs: Inputs, seed: int = 0) -> dict[str, float]:
    """`max |A(Px) - P A(x) P^T|` over the heads of each encoder site; 0 if attention ignores order.

    Tokens that are no padding are permuted, and positions stay. Of images, the input of the encoder is permuted.
    Computed in float64, compared as by `row_difference`. Decoder sites are left out, since the causal mask depends on
    order, and cross sites, whose queries stay.
    """
    model, inputs = _to_float64(model), to_float64(inputs)
    tape = _record(model, inputs)
    sites = tape.sites_of("encoder")
    if not sites:
        return {}
    first = tape.calls[sites[0]][0]
    stack = first.placed.stack or first.placed.owner
    sites = [site for site in sites if stack in tape.calls[site][0].placed.above]
    # Tokens that are no padding and have a position move.
    attended_RL = allowed_links(first.call).any(-2).flatten(0, 1)
    index_RL = permutations(has_position(first.call.geometry.k_pos) & attended_RL, seed)
    index_BL = index_RL.expand(len(first.call.q), -1)
    if isinstance(inputs[0], Tokens):
        permuted = replace(inputs[0], ids=inputs[0].ids.gather(1, index_BL))
        after = _record(model, (permuted, *inputs[1:]))
    else:

        def permute(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x_BLD, *others = args
            index_BLD = index_BL.unsqueeze(-1).expand_as(x_BLD)
            return x_BLD.gather(1, index_BLD), *others

        with stack.register_forward_pre_hook(permute):
            after = _record(model, inputs)
    errors = {}
    for site in sites:
        rows = zip(tape.weights(site), index_BL, strict=True)
        permuted = [map_HLL[:, index_L][:, :, index_L] for map_HLL, index_L in rows]
        errors[site] = _largest_difference(torch.stack(permuted), after.weights(site))
    return errors


def shift_error(model: nn.Module, inputs: Inputs, by: int | float) -> dict[str, float]:
    """The largest change of each site's weights when all positions shift by `by`; 0 if only distances count.

    Computed and compared as in `permutation_error`. Of images, encoder sites only: object queries depend on the
    positions of their boxes.
    """
    model, inputs, shift = _to_float64(model), to_float64(inputs), PositionEdit("shift", by)
    before = _record(model, inputs)
    if all(isinstance(batch, Tokens) for batch in inputs):
        sites = before.sites
        after = _record(model, tuple(move_tokens(tokens, shift) for tokens in inputs))
    else:
        sites = before.sites_of("encoder")
        with move_patches(model, shift):
            after = _record(model, inputs)
    return {site: _largest_difference(before.weights(site), after.weights(site)) for site in sites}


def _record(model: nn.Module, inputs: Inputs) -> Tape:
    with torch.no_grad(), record(model) as tape:
        model(*inputs)
    return tape


def _to_float64(model: nn.Module) -> nn.Module:
    """The model in float64: itself, or a copy."""
    check_evaluating(model)
    if all(p.dtype is torch.float64 for p in model.parameters()):
        return model
    return deepcopy(model).double()


def _largest_difference(first: Tensor, second: Tensor) -> float:
    rows = torch.stack((first.flatten(), second.flatten()))
    return float(row_difference(rows, 0, 1).amax()) if rows.numel() else 0.0
