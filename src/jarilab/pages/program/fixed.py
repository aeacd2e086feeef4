"""A model of another library with one input, whose attention reads masks and returns weights, for `torch.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.inspect.record.function_mode import SOFTMAX
from jarilab.pages.program.inputs import FixedInput

HIDDEN = -1e30
"""Scores below it are hidden by the model's own mask."""


class FixedForward(nn.Module):
    """Takes the ids that may change and the mask of each site, 1 if a query may attend to a key.

    Returns the scores, then the weights.
    """

    def __init__(self, model: nn.Module, inputs: FixedInput, sites: Mapping[str, Tensor]):
        """sites: their masks, in their order. Raises UserError for two sites of one module."""
        super().__init__()
        self.model, self._inputs = model, inputs
        self._paths = [inputs.paths[site] for site in sites]
        if len(set(self._paths)) < len(self._paths):
            raise UserError(
                "a page cannot compute this model, since one of its modules attends twice; look into it live, with "
                "jarilab explore"
            )

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        count = len(self._inputs.ids)
        inputs, links = self._inputs.with_ids(tensors[:count]), tensors[count:]
        with _LinkedAttention(self.model, dict(zip(self._paths, links, strict=True))) as mode:
            scores_PV = inputs.scores(self.model(**inputs.arguments))
        # Some models have the heads in the axis of the batch.
        weights = [
            mode.weights[path].reshape(1, *each.shape)
            for path, each in zip(self._paths, links, strict=True)
        ]
        return [scores_PV.unsqueeze(0), *weights]


class _LinkedAttention(TorchFunctionMode):
    """While active, hides links from the softmax of modules. links: the mask of each module, by path."""

    def __init__(self, model: nn.Module, links: Mapping[str, Tensor]):
        super().__init__()
        self._model, self._links = model, links
        self._running: str | None = None
        self.weights: dict[str, Tensor] = {}

    def __enter__(self) -> _LinkedAttention:
        self._hooks = []
        for path in self._links:
            module = self._model.get_submodule(path)
            self._hooks += [
                module.register_forward_pre_hook(lambda *_, path=path: self._run(path)),
                module.register_forward_hook(lambda *_: self._run(None)),
            ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _run(self, path: str | None) -> None:
        self._running = path

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self._running is not None:
            if func is functional.scaled_dot_product_attention:
                return self._fused(*args, **(kwargs or {}))
            if func in SOFTMAX:
                return self._attend(args[0])
        if func is Tensor.masked_scatter:  # the tokens of an image among those of a text
            return _scattered(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
        scores = (
            query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        )
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self._attend(scores) @ value

    def _attend(self, scores_BHQK: Tensor) -> Tensor:
        """The weights of the running module. A query without keys has weights of 0."""
        assert self._running is not None
        allowed = self._links[self._running] & (scores_BHQK > HIDDEN)
        empty_BHQ1 = ~allowed.any(-1, keepdim=True)
        shown = scores_BHQK.masked_fill(~allowed & ~empty_BHQ1, float("-inf"))
        weights = shown.softmax(-1).masked_fill(empty_BHQ1, 0.0)
        self.weights[self._running] = weights
        return weights


def _scattered(values: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`masked_scatter` by operations that a page has."""
    chosen = mask.expand_as(values).flatten()
    number = (chosen.long().cumsum(0) - 1).clamp_min(0)
    spread = source.flatten().to(values).index_select(0, number)
    return torch.where(chosen, spread, values.flatten()).view(values.shape)
