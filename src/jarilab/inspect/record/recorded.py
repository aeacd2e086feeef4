"""One attention call that went by, without its graph."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.flex import Blockwise
from jarilab.attention.kernels import choose
from jarilab.attention.module import Attention, AttentionKernel
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.heard import Heard
from jarilab.inspect.record.sites import Inputs, Placed

Versions = list[tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Recorded:
    """One call that went by, its output, and the kernel that computed it.

    versions: of the parameters that the definition reads. placed: where the attention stands in the model.
    inputs: what a multi-head attention was given; None of other attentions.
    """

    held: AttentionCall | Heard
    output: Float[Tensor, "B H Q W"]
    kernel: str
    versions: Versions
    placed: Placed
    inputs: Inputs | None = None

    @cached_property
    def call(self) -> AttentionCall:
        """With bias and mask written out, where the kernel did without."""
        return self.held.materialized

    @property
    def is_heard(self) -> bool:
        """Whether another library computed it, so that nothing is known of it but what its function was given."""
        return isinstance(self.held, Heard)

    @property
    def proven(self) -> bool:
        """Whether the scores were computed anew, and are not the model's own."""
        return not isinstance(self.held, Heard) or self.held.proven

    @staticmethod
    def of(call: AttentionCall, output: Tensor, placed: Placed, inputs: Inputs | None) -> Recorded:
        """What is kept of a call while it goes by."""
        kernel = "auto" if placed.attend is None else placed.attend.kernel
        kernel = choose(call) if kernel == "auto" else kernel  # of the call itself: gradients count
        still = _detached(call)
        return Recorded(still, output.detach(), kernel, _versions(still), placed, inputs)

    @staticmethod
    def heard(heard: Heard, output: Tensor, placed: Placed) -> Recorded:
        """One that another library computed."""
        kernel = "scaled_dot_product_attention" if heard.proven else "softmax"
        return Recorded(heard, output.detach(), kernel, [], placed)

    def row(self, number: int) -> Recorded:
        """One row of a batch alone, of an attention of another library."""
        assert isinstance(self.held, Heard)
        output = self.output[number : number + 1]
        return replace(self, held=self.held.row(number), output=output)

    def check_unchanged(self, site: str) -> None:
        """Raises UserError where parameters that the definition reads have changed since, or what was recorded."""
        if isinstance(self.held, Heard):
            self.held.check_unchanged(site)
            return
        for module, version in zip(_read_by(self.call), self.versions, strict=True):
            if _version(module) != version:
                raise UserError(
                    f"the parameters of {type(module).__name__} have changed since {site} was recorded, so the map "
                    "would not be the one that was used; look at the tape before the next step"
                )


class Recorder:
    """Keeps what one attention of jari computes."""

    def __init__(self, calls: dict[str, list[Recorded]], site: str, placed: Placed):
        self._calls, self._site, self._placed = calls, site, placed
        self._inputs: Inputs | None = None

    def listen(self) -> list[Any]:
        handles: list[Any] = [self._placed.listen(self._keep)]
        owner = self._placed.owner
        if isinstance(owner, Attention):
            handles.append(owner.register_forward_pre_hook(self._keep_inputs))
        return handles

    def _keep_inputs(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        # Queries' side first; what keys are made of second, the same where there is none.
        tensors = [argument for argument in arguments[:2] if isinstance(argument, Tensor)]
        given = [tensor.detach() for tensor in tensors]
        self._inputs = given[0], given[-1]

    def _keep(
        self, module: AttentionKernel, arguments: tuple[AttentionCall], output: Tensor
    ) -> None:
        recorded = Recorded.of(arguments[0], output, self._placed, self._inputs)
        self._calls.setdefault(self._site, []).append(recorded)


def _detached(call: AttentionCall) -> AttentionCall:
    """The call without its graph. Tensors are shared, not copied: nothing writes into them afterwards, except that a
    growing cache is written beyond the keys that a call saw."""
    geometry = call.geometry
    of_geometry = {
        one.name: _without_graph(getattr(geometry, one.name)) for one in fields(geometry)
    }
    of_call = {name: _without_graph(getattr(call, name)) for name in ("q", "k", "v", "states")}
    return replace(call, **of_call, geometry=replace(geometry, **of_geometry))


def _without_graph(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Blockwise):
        return value.detached()
    if isinstance(value, tuple | list):
        return type(value)(_without_graph(item) for item in value)
    return value


def _read_by(call: AttentionCall) -> list[nn.Module]:
    """The modules whose parameters the definition reads."""
    read = call.geometry.encoding.modules_read
    return read if call.score is None else [*read, call.score]


def _versions(call: AttentionCall) -> Versions:
    return [_version(module) for module in _read_by(call)]


def _version(module: nn.Module) -> tuple[int, ...]:
    return tuple(parameter._version for parameter in module.parameters())
