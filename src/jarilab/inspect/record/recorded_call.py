"""A recorded attention call, of jarilab or of another library, without its autograd graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from torch import nn

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.attention.flex import Blockwise
from jarilab.attention.kernels import choose
from jarilab.attention.module import Attention, AttentionKernel
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.inspect.record.calls import blocks, check_has_values, select_inputs
from jarilab.inspect.record.edited_output import UsedWeights, WeightEdit, edit_of
from jarilab.inspect.record.foreign_call import ForeignCall
from jarilab.inspect.record.sites import Inputs, Placed


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One attention call, its output, and the kernel that computed it.

    versions: of the parameters that the definition reads. placed: the attention layer.
    inputs: what queries and keys of a multi-head attention are projected from; None for other attentions.
    edit: computes the weights after the edits that made the output; None if it is the kernel's own.
    """

    source: AttentionCall | ForeignCall
    output: Float[Tensor, "B H Q W"]
    kernel: str
    versions: list[tuple[int, ...]]
    placed: Placed
    inputs: Inputs | None = None
    edit: WeightEdit | None = None

    @cached_property
    def call(self) -> AttentionCall:
        """The call with bias and mask as tensors, also where the kernel computed without them."""
        if isinstance(self.source, ForeignCall):
            return self.source.as_attention_call
        return self.source.materialized

    @property
    def is_foreign(self) -> bool:
        """Whether another library made the call."""
        return isinstance(self.source, ForeignCall)

    @property
    def verified(self) -> bool:
        """Whether scores are recomputed from queries and keys."""
        return not isinstance(self.source, ForeignCall) or self.source.verified

    @property
    def rounds_scores(self) -> bool:
        """Whether the kernel rounds scores, or what it adds to them, to the dtype of the output."""
        if self.is_foreign or self.kernel == "definition":
            return False  # PyTorch's kernels compute scores in float32; a model's own scores are recorded
        hooks = self.call.geometry.encoding.hooks
        return self.kernel != "fused" or bool(hooks & {"bias", "terms"})

    def blocks(self) -> Iterator[tuple[slice, AttentionCall, UsedWeights]]:
        """The weights that the forward used, before dropout, in blocks of queries with their rows."""
        if self.edit is not None:
            yield slice(None), self.call, self.edit(self.call)
            return
        for rows, block in blocks(self.call):
            geometry, allowed = block.geometry, block.geometry.allowed
            if allowed is not None and geometry.has_key is not None:
                allowed = allowed & geometry.has_key
            yield rows, block, UsedWeights(definition.weights(block), allowed)

    @staticmethod
    def of(
        call: AttentionCall, output: Tensor, placed: Placed, inputs: Inputs | None
    ) -> RecordedCall:
        """The record of a call of jarilab."""
        check_has_values(call.q)
        kernel = "auto" if placed.attend is None else placed.attend.kernel
        # The kernel is chosen from the call before it is detached: gradients count.
        kernel = choose(call) if kernel == "auto" else kernel
        detached = _detach(call)
        versions = list(map(_version, _modules_read(detached)))
        edit = edit_of(output)
        return RecordedCall(detached, output.detach(), kernel, versions, placed, inputs, edit)

    @staticmethod
    def of_foreign(call: ForeignCall, output: Tensor, placed: Placed) -> RecordedCall:
        """The record of a call of another library."""
        kernel = "scaled_dot_product_attention" if call.verified else "softmax"
        # Some models add to the output in place. The copy replaces it on the tape, so it takes no more memory.
        copy = output.detach().clone()
        return RecordedCall(call, copy, kernel, [], placed, edit=edit_of(output))

    def select_rows(self, rows: slice | Int[Tensor, " R"]) -> RecordedCall:
        """The call of some inputs of the batch, in this order."""
        if isinstance(self.source, ForeignCall):
            source = self.source.select_rows(rows)
        else:
            source = select_inputs(self.call, rows)
        inputs = None if self.inputs is None else (self.inputs[0][rows], self.inputs[1][rows])
        output, edit = self.output[rows], self._edit_of_rows(rows)
        return replace(self, source=source, output=output, inputs=inputs, edit=edit)

    def _edit_of_rows(self, rows: slice | Int[Tensor, " R"]) -> WeightEdit | None:
        edit = self.edit
        if edit is None:
            return None

        def weights_after(_: AttentionCall) -> UsedWeights:
            # An edit may change one part of the batch alone, so it is computed for all.
            weights, allowed = edit(self.call)
            if allowed is not None and len(allowed) > 1:
                allowed = allowed[rows]
            return UsedWeights(weights[rows], allowed)

        return weights_after

    def check_unchanged(self, site: str) -> None:
        """Raises UserError if parameters of the definition, or recorded tensors, have changed since."""
        if isinstance(self.source, ForeignCall):
            self.source.check_unchanged(site)
            return
        for module, version in zip(_modules_read(self.call), self.versions, strict=True):
            if _version(module) != version:
                raise UserError(
                    f"the parameters of {type(module).__name__} have changed since {site} was recorded, so the map "
                    "would not be the one that was used; read the tape before the next step"
                )


def record_layer(calls: dict[str, list[RecordedCall]], site: str, placed: Placed) -> list[Any]:
    """Append the calls of an attention layer of jarilab to a tape's calls; returns the handles of the hooks."""
    inputs: Inputs | None = None

    def record_inputs(module: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal inputs
        # The first tensor is read by queries, the second by keys; with one tensor both read it.
        tensors = [value.detach() for value in args[:2] if isinstance(value, Tensor)]
        inputs = tensors[0], tensors[-1]

    def record(module: AttentionKernel, args: tuple[AttentionCall], output: Tensor) -> None:
        calls.setdefault(site, []).append(RecordedCall.of(args[0], output, placed, inputs))

    handles: list[Any] = [placed.add_hook(record)]
    if isinstance(placed.owner, Attention):
        handles.append(placed.owner.register_forward_pre_hook(record_inputs))
    return handles


def _detach(call: AttentionCall) -> AttentionCall:
    """The call without its graph, on the same memory."""
    # No copy is needed: nothing writes into these tensors later. A growing cache writes behind the keys of this call.
    geometry = call.geometry
    geometry_fields = {
        item.name: _without_graph(getattr(geometry, item.name)) for item in fields(geometry)
    }
    call_fields = {name: _without_graph(getattr(call, name)) for name in ("q", "k", "v", "states")}
    return replace(call, **call_fields, geometry=replace(geometry, **geometry_fields))


def _without_graph(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Blockwise):
        return value.detached()
    if isinstance(value, tuple | list):
        return type(value)(_without_graph(item) for item in value)
    return value


def _modules_read(call: AttentionCall) -> list[nn.Module]:
    """The modules whose parameters the definition reads."""
    modules = call.geometry.encoding.parameter_modules
    return modules if call.score is None else [*modules, call.score]


def _version(module: nn.Module) -> tuple[int, ...]:
    return tuple(parameter._version for parameter in module.parameters())
