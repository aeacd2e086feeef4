"""What ran in one forward: the calls of attentions, and inputs and outputs of linear parts and norms."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from jarilab.attention.definition import AttentionCall
from jarilab.attention.module import Attention
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.frozen_norms import has_no_matrix, is_affine, linear_map, scale_of
from jarilab.inspect.cause.parts import SITE, ModelParts
from jarilab.inspect.study.example import Batch


@dataclass(frozen=True, eq=False)
class NormCall:
    """A module without a matrix that ran: perhaps a norm."""

    module: nn.Module
    input: Tensor
    output: Tensor

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm, or batch norm, which is an affine map in evaluation; checked numerically."""
        x = self.input
        return scale_of(self.module, x) is not None or is_affine(self.module, x)

    @property
    def is_centered(self) -> bool:
        """Whether it subtracts the mean of its input."""
        scale = scale_of(self.module, self.input)
        return scale is not None and scale.is_centered

    @property
    def matrix(self) -> Float[Tensor, "D D"]:
        """Its linear map, with gamma and the mean, without its scale."""
        return linear_map(self.module, self.input)


@dataclass(eq=False)
class ForwardNotes:
    """The first call of each module in a forward of `batch`.

    calls: call and output, by site. linear: input and output, by path. norms: in the order in which they ran. entered:
    what entered the layers. left: what left the last layer that ran, and how many of `norms` had run before. events:
    sites and paths of linear parts in the order in which they ended.
    """

    parts: ModelParts
    batch: Batch
    calls: dict[str, tuple[AttentionCall, Tensor]] = field(default_factory=dict)
    linear: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    norms: list[NormCall] = field(default_factory=list)
    entered: list[Tensor] = field(default_factory=list)
    left: tuple[Tensor | None, int] = (None, 0)
    events: list[str] = field(default_factory=list)

    @torch.no_grad()
    def __post_init__(self) -> None:
        with ExitStack() as hooks:
            for path, module in self.parts.model.named_modules():
                if has_no_matrix(module) and path not in self.parts.linear:
                    hooks.enter_context(module.register_forward_hook(self._on_norm))
                if isinstance(module, Attention):
                    hook = partial(self._on_attention, path)
                    hooks.enter_context(module.register_forward_pre_hook(hook))
            layers = {"on_entry": self._on_entry, "on_exit": self._on_exit}
            hooks.enter_context(
                self.parts.hooked(self._on_head, self._on_linear, self.parts.linear, **layers)
            )
            self.batch.forward(self.parts.model)

    def _on_head(self, site: str, call: AttentionCall, output: Tensor) -> Tensor:
        self.calls.setdefault(site, (call, output))
        self.events.append(SITE + site)
        return output

    def _on_linear(self, path: str, module: nn.Module, args: tuple[Any, ...], y: Any) -> None:
        self.events.append(path)
        if args and isinstance(args[0], Tensor) and isinstance(y, Tensor):
            self.linear.setdefault(path, (args[0], y))

    def _on_norm(self, module: nn.Module, args: tuple[Any, ...], y: Any) -> None:
        x = args[0] if args else None
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.shape != y.shape:
            return
        if not is_same(x, y):  # dropout in evaluation returns its input
            self.norms.append(NormCall(module, x, y))

    def _on_entry(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.entered += _streams((args, kwargs))[:1]

    def _on_exit(self, path: str, module: nn.Module, args: object, output: Any) -> None:
        self.left = next(iter(_streams(output)), None), len(self.norms)

    def _on_attention(self, path: str, module: Attention, args: tuple[Any, ...]) -> None:
        # It multiplies by the three matrices at once, without calling their modules.
        for name, x in (("query", args[0]), ("key", args[-1]), ("value", args[-1])):
            self.linear[f"{path}.{name}"] = x, getattr(module, name).forward(x)

    def norm_of(self, x: Tensor) -> NormCall | None:
        """The norm that computed `x`."""
        calls = (each for each in self.norms if is_same(x, each.output) and each.is_norm)
        return next(calls, None)

    def norm_after(self, x: Tensor) -> NormCall | None:
        """The norm that reads `x`."""
        calls = (each for each in self.norms if is_same(x, each.input) and each.is_norm)
        return next(calls, None)

    def is_stream(self, x: Tensor) -> bool:
        """Whether `x` entered a layer."""
        return any(is_same(x, each) for each in self.entered)


def is_same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory."""
    return x is y or (x.shape == y.shape and x.data_ptr() == y.data_ptr())


def _streams(values: Any) -> list[Tensor]:
    """The floating tensors `(B, L, D)` among these."""
    tensors = [each for each in tree_leaves(values) if isinstance(each, Tensor)]
    return [each for each in tensors if each.ndim == 3 and each.is_floating_point()]
