"""The comparison of a map with the recorded output: `Trust`, its limits, and the part that rounding explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.calls import largest
from jarilab.inspect.record.recorded_call import RecordedCall

LIMITS = {"row_sum_error": 1e-5, "masked_weight": 0.0, "rebuild_error": 1e-4, "dropout": 0.0}
"""The largest value of each field of `Trust` for which a map counts as verified."""
MIN_OUTPUT_SIZE = 1e-30
"""Smallest size of an output that errors are divided by."""


@dataclass(frozen=True)
class Trust:
    """Largest absolute differences between a computed map and the recorded call, over the whole batch.

    row_sum_error: of the sum of a row from 1 (from 0 for a query without keys).
    masked_weight: the weight on hidden keys, exactly 0.
    rebuild_error: the reconstruction error, of weights times values from the recorded output; relative to the largest
        output. Differences that rounding explains count as 0.
    dropout: the rate while recording; the map is that before dropout.
    rounding: the largest difference that rounding to bfloat16 or float16 explains, relative to the largest output; 0
        for outputs in float32 and float64.
    """

    row_sum_error: float
    masked_weight: float
    rebuild_error: float
    dropout: float
    rounding: float

    @property
    def holds(self) -> bool:
        """Whether the map is verified: all errors are within `LIMITS`."""
        errors = asdict(self)
        return all(errors[name] <= limit for name, limit in LIMITS.items())

    @staticmethod
    def largest(parts: Iterator[Trust]) -> Trust:
        """The largest error of each kind."""
        errors = [astuple(part) for part in parts]
        return Trust(*(max(values) for values in zip(*errors, strict=True)))


def trust_of(site: str, recorded: RecordedCall) -> Iterator[Trust]:
    """The errors of each block of queries.

    Raises UserError for an empty output, and for NaN or infinity in the output or the map, which cannot be compared.
    """
    output = recorded.output
    if not output.numel():
        raise UserError(
            f"expected an output of {site} to compare its map with, got the empty shape {tuple(output.shape)}; record "
            "a batch of at least one input"
        )
    size = max(largest(output), MIN_OUTPUT_SIZE)
    for rows, block, (weights_BHQK, allowed) in recorded.blocks():
        rebuilt_BHQW = definition.weighted(block, weights_BHQK)
        error_BHQW = (rebuilt_BHQW - output[:, :, rows].to(rebuilt_BHQW.dtype)).abs()
        _check_finite(site, error_BHQW)
        rounding = 0.0
        if torch.finfo(output.dtype).eps > torch.finfo(torch.float32).eps:
            rounding_BHQW = _rounding_error(recorded, block, weights_BHQK, rebuilt_BHQW)
            error_BHQW = (error_BHQW - rounding_BHQW).clamp_min(0.0)
            rounding = largest(rounding_BHQW) / size
        sums_BHQ, row_sum_error, masked_weight = weights_BHQK.sum(-1), 0.0, 0.0
        expected_BHQ = torch.ones_like(sums_BHQ)
        if allowed is not None:
            expected_BHQ = allowed.any(-1).expand_as(sums_BHQ).to(sums_BHQ)
            masked_weight = largest(weights_BHQK.masked_fill(allowed, 0.0))
        if block.explicit_weights is None:  # the model's own rows may have any sum, as with a sink
            row_sum_error = largest(sums_BHQ - expected_BHQ)
        rebuild_error = largest(error_BHQW) / size
        yield Trust(row_sum_error, masked_weight, rebuild_error, block.dropout, rounding)


def _check_finite(site: str, error_BHQW: Float[Tensor, "B H Q W"]) -> None:
    if bool(error_BHQW.isfinite().all()):
        return
    rows_N = error_BHQW.isfinite().all(-1).all(1).flatten()
    raise UserError(
        f"the attention of {site} gave NaN or infinity for {int((~rows_N).sum())} of {len(rows_N)} queries, so its map "
        "cannot be compared with its output; look for NaN in the parameters and the input, and for queries whose keys "
        "are all hidden"
    )


def _rounding_error(
    recorded: RecordedCall,
    call: AttentionCall,
    weights_BHQK: Float[Tensor, "B H Q K"],
    rebuilt_BHQW: Float[Tensor, "B H Q W"],
) -> Float[Tensor, "B H Q W"]:
    """The largest error of the output from rounding the weights and the output to its dtype.

    Includes that of rounded scores if the kernel rounds them.
    """
    dtype = torch.finfo(recorded.output.dtype)
    size_BHQW, v_BHKW = rebuilt_BHQW.abs(), call.v.to(weights_BHQK.dtype).abs()
    # Numbers below the smallest normal one have the same spacing as this.
    error_BHQW = size_BHQW + weights_BHQK.clamp_min(dtype.tiny) @ v_BHKW
    if recorded.rounds_scores:
        # A weight w changes by w (ds - mean ds) where its score changes by ds.
        change_BHQK = weights_BHQK * _score_sizes(call)
        error_BHQW = error_BHQW + change_BHQK @ v_BHKW + change_BHQK.sum(-1, True) * size_BHQW
    values_BHQW = call.geometry.encoding.values(weights_BHQK, call.geometry.relation)
    if values_BHQW is not None:
        error_BHQW = error_BHQW + 2 * values_BHQW.abs()
    return dtype.eps / 2 * error_BHQW


def _score_sizes(call: AttentionCall) -> Float[Tensor, "B H Q K"]:
    """The sum of the sizes of what a kernel rounds on its way to a score."""
    parts = definition.summands(call)
    q_BHQ, k_BHK = (x.float().norm(dim=-1) for x in (call.q, call.k))
    sizes = [call.scale * q_BHQ.unsqueeze(-1) * k_BHK.unsqueeze(-2), parts.scores.abs()]
    if parts.terms is not None:
        sizes.append(call.scale * parts.terms.abs())
    if parts.bias is not None:
        sizes.append(parts.bias.abs())
    return torch.stack(torch.broadcast_tensors(*sizes)).sum(0)
