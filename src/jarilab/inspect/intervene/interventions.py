"""Edit the attention of a forward, without changing the model.

    with operate(model, [HeadOff("encoder.0", 1), Link("decoder.0.cross", None, query=2, key=4, how="erase")]):
        model(*inputs)

An edit (`edits.py`) changes which keys a query may attend to, or the scores of these. The weights follow from the
definition in `attention/definition.py`, and the output from the weights. Rows without an edit keep the kernel's own
output, bit by bit. A tape whose recording began inside the block has the weights after the edits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.module import AttentionKernel
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Tensor
from jarilab.inspect.intervene.edit import Edit, ScoreTable
from jarilab.inspect.intervene.edits import Cut, HeadOff, Link, TokenOff, Uniform
from jarilab.inspect.record.edited_output import (
    UsedWeights,
    WeightEdit,
    edit_of,
    forget_edit,
    remember_edit,
)
from jarilab.inspect.record.foreign_call import ForeignCall
from jarilab.inspect.record.function_mode import AttentionMode
from jarilab.inspect.record.modules import ModuleFrame, SiteNames
from jarilab.inspect.record.sites import attentions_of

__all__ = [
    "Cut",
    "Edit",
    "HeadOff",
    "Link",
    "TokenOff",
    "Uniform",
    "change_outputs",
    "check_evaluating",
    "operate",
    "operate_on_copies",
]


def operate(
    model: nn.Module, edits: Sequence[Edit], *, free: bool = False
) -> AbstractContextManager[None]:
    """Apply the edits, in their order, to every forward of `model` inside the block.

    free: the answer is generated, and may end before the tokens that are edited. All beams are edited alike.
    Raises UserError for a model in training mode, an unknown site, head, query or key, and a hidden link. Also raises
    at the end of the block if an edited attention did not run.
    """
    return operate_on_copies(model, [edits], free=free)


@contextmanager
def operate_on_copies(
    model: nn.Module, edits: Sequence[Sequence[Edit]], *, free: bool = False
) -> Iterator[None]:
    """`operate` on a batch of concatenated copies of one batch, each copy with its own edits."""
    model = getattr(model, "_orig_mod", model)
    check_evaluating(model)
    attentions = attentions_of(model)
    all_edits = [edit for copy_edits in edits for edit in copy_edits]
    sites = dict.fromkeys(site for edit in all_edits for site in edit.sites)
    for site in sites:
        # The sites of another library are known after they have run.
        if attentions and site not in attentions:
            raise unknown("site", site, attentions)
    # The queries and keys with which each site ran.
    ran: dict[str, tuple[set[int], set[int]]] = {}

    def change(site: str, call: AttentionCall, output: Tensor) -> Tensor:
        table = _edited_table(site, call, edits)
        queries, keys = ran.setdefault(site, (set(), set()))
        queries.update(table.queries.tolist())
        keys.update(table.keys.tolist())
        edited = table.output(call, output)
        if edited is not output:
            remember_edit(edited, _weights_after(site, edits, edit_of(output)))
        return edited

    try:
        with change_outputs(model, change, sites):
            yield
    finally:
        forget_edit()
    for site in sites:
        if site not in ran:
            raise UserError(
                f"nothing was edited at {site}: it did not run inside the block. Hooks do not run in a compiled model "
                "(call its original, compiled._orig_mod, which shares its parameters); jarilab.record lists the sites "
                "of a model"
            )
    for edit in () if free else all_edits:
        for site in edit.sites:
            edit.check_met(site, *ran[site])


def _edited_table(site: str, call: AttentionCall, edits: Sequence[Sequence[Edit]]) -> ScoreTable:
    """The scores of a call after the edits of its site. edits: of each copy in the batch."""
    table = ScoreTable.of(site, call)
    for copy, copy_edits in zip(table.copies(len(edits)), edits, strict=True):
        for edit in copy_edits:
            if site in edit.sites:
                edit.apply(copy)
    return table


def _weights_after(
    site: str, edits: Sequence[Sequence[Edit]], earlier: WeightEdit | None
) -> WeightEdit:
    """Computes the weights after these edits. earlier: edits of the same output before them."""

    def weights_after(call: AttentionCall) -> UsedWeights:
        table = _edited_table(site, call, edits)
        after = UsedWeights(table.weights(), table.allowed)
        if earlier is None:
            return after
        changed_BHQ1 = table.changed.unsqueeze(-1)
        before = earlier(call)
        weights = torch.where(changed_BHQ1, after.weights, before.weights)
        return UsedWeights(weights, _chosen(changed_BHQ1, after.allowed, before.allowed))

    return weights_after


def _chosen(changed: Tensor, after: Tensor | None, before: Tensor | None) -> Tensor | None:
    """The keys allowed after an edit where it changed a row, else those before it."""
    if after is None and before is None:
        return None
    everywhere = torch.ones((), dtype=torch.bool, device=changed.device)
    after, before = (everywhere if each is None else each for each in (after, before))
    return torch.where(changed, after, before)


def check_evaluating(model: nn.Module) -> None:
    """Raises UserError for a model in training mode."""
    if model.training:
        raise UserError(
            "expected a model in evaluation mode, got one in training mode, which applies dropout; call model.eval()"
        )


# Outputs ------------------------------------------------------------------------------------------------------------

OutputChange = Callable[[str, AttentionCall, Tensor], Tensor]
"""Takes a site, its call and its output `(B, H, Q, W)`; returns the output that the model continues with."""


@contextmanager
def change_outputs(
    model: nn.Module,
    change: OutputChange,
    sites: Collection[str] | None = None,
    names: SiteNames | None = None,
) -> Iterator[None]:
    """Replace the outputs of the attentions at `sites`, all by default, inside the block.

    names: of an earlier forward of a model of another library, which the sites keep.
    """
    attentions = attentions_of(model)
    site_names = names or SiteNames(model)

    def on_foreign(frame: ModuleFrame, call: ForeignCall, output: Tensor) -> Tensor:
        site = site_names.name_of(frame, call)
        is_selected = sites is None or site in sites
        return change(site, call.as_attention_call, output) if is_selected else output

    def on_kernel(
        site: str, module: AttentionKernel, args: tuple[AttentionCall], output: Tensor
    ) -> Tensor:
        return change(site, args[0].materialized, output)

    with ExitStack() as hooks:
        if not attentions:
            hooks.enter_context(AttentionMode(model, on_foreign))
        else:
            for site in attentions if sites is None else sites:
                hooks.enter_context(attentions[site].add_hook(partial(on_kernel, site)))
        yield
