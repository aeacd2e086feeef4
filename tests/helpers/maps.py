"""Maps made by hand."""

import torch

from jarilab.inspect.measure.maps import Map


def map_of(weights, allowed=None, *, names=None, same=True):
    weights = torch.as_tensor(weights, dtype=torch.float64)
    weights = weights if weights.ndim == 3 else weights.unsqueeze(0)
    rows, columns = weights.shape[1:]
    allowed = torch.ones(rows, columns, dtype=torch.bool) if allowed is None else allowed
    q_order, k_order = torch.arange(rows), torch.arange(columns)
    at = [order.unsqueeze(-1).double() for order in (q_order, k_order)]
    names = names or [f"t{i}" for i in range(max(rows, columns))]
    return Map(weights, torch.zeros_like(weights), allowed, names[:rows], names[:columns], *at, q_order, k_order, same)


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()
