"""Change a forward; the model itself stays as it is.

    with operate(model, [HeadOff("encoder.0", 1), Link("decoder.0.cross", None, query=2, key=4, how="erase")]):
        model(*inputs)

An edit (`edits.py`) says what a query may look at, or how it compares what it looks at. The weights then follow by the
definition in `attention/definition.py`, and the output from the weights. What no edit touches keeps the kernel's own
output, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.intervene.edit import Edit
from jarilab.inspect.intervene.edits import Cut, HeadOff, Link, TokenOff, Uniform
from jarilab.inspect.intervene.score_table import ScoreTable
from jarilab.inspect.record.foreign import Change, changing
from jarilab.inspect.record.sites import attentions_of

__all__ = [
    "Cut",
    "Edit",
    "HeadOff",
    "Link",
    "TokenOff",
    "Uniform",
    "check_evaluating",
    "edited_weights",
    "operate",
    "operate_on_copies",
]


def edited_weights(
    site: str, call: AttentionCall, edits: Sequence[Edit]
) -> Float[Tensor, "B H Q K"]:
    """The weights of a recorded call with the edits of its site: a tape knows only those the model meant to use."""
    table = ScoreTable.of(site, call)
    for edit in edits:
        if site in edit.sites:
            edit.apply(table)
    return table.weights()


def operate(
    model: nn.Module, edits: Sequence[Edit], *, free: bool = False
) -> AbstractContextManager[None]:
    """Every forward of `model` inside the block runs with the edits, in their order; afterwards it is as before.

    free: an answer is written freely, and may end before it comes to what is edited. All hypotheses of a beam are
    edited alike.

    Raises UserError for a model in training; an unknown site, head, query or key; a link that the mask hides; and, at
    the end of the block, where an attention that is edited did not run.
    """
    return operate_on_copies(model, [edits], free=free)


@contextmanager
def operate_on_copies(
    model: nn.Module, edits: Sequence[Sequence[Edit]], *, free: bool = False
) -> Iterator[None]:
    """`operate` on a batch of copies of one batch, one below the other, each with edits of its own."""
    model = getattr(model, "_orig_mod", model)
    check_evaluating(model)
    placed = attentions_of(model)
    all_edits = [edit for of_copy in edits for edit in of_copy]
    sites = dict.fromkeys(site for edit in all_edits for site in edit.sites)
    for site in sites:
        # Those of a model of another library are known when they have run.
        if placed and site not in placed:
            raise unknown("site", site, placed)
    ran: dict[str, _Ran] = {}
    with changing(model, _operation(edits, ran), sites):
        yield
    for site in sites:
        if site not in ran:
            raise _did_not_run(site)
    if free:
        return
    for edit in all_edits:
        for site in edit.sites:
            edit.check_met(site, ran[site].queries, ran[site].keys)


@dataclass(eq=False)
class _Ran:
    """Which queries a site was asked for, and over which keys, filled while it runs."""

    queries: set[int] = field(default_factory=set)
    keys: set[int] = field(default_factory=set)


def _operation(edits: Sequence[Sequence[Edit]], ran: dict[str, _Ran]) -> Change:
    def change(site: str, call: AttentionCall, output: Tensor) -> Tensor:
        table = ScoreTable.of(site, call)
        here = ran.setdefault(site, _Ran())
        here.queries.update(table.queries.tolist())
        here.keys.update(table.keys.tolist())
        copies = table.copies(len(edits))
        for copy, of_copy in zip(copies, edits, strict=True):
            for edit in of_copy:
                if site in edit.sites:
                    edit.apply(copy)
        return table.output(call, output)

    return change


def _did_not_run(site: str) -> UserError:
    return UserError(
        f"nothing was edited at {site}: it did not run inside the block. A compiled model runs past the "
        "hooks (call its original, compiled._orig_mod, which shares its parameters); the sites of a model are "
        "those that jarilab.record finds"
    )


def check_evaluating(model: nn.Module) -> None:
    """Raises UserError for a model in training."""
    if model.training:
        raise UserError(
            "a model in training drops weights at random; call model.eval() before looking at edits"
        )
