"""Interventions that a page requests: positions, heads, links and tokens that are changed in one forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.inspect.intervene.controls import Controls, Proceed, controls
from jarilab.inspect.intervene.edit import Edit
from jarilab.inspect.intervene.edits import HeadOff, Link, TokenOff
from jarilab.inspect.intervene.effects import Effect, effect
from jarilab.inspect.intervene.interventions import operate
from jarilab.inspect.intervene.moved_positions import PositionEdit, move_patches, move_tokens
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.model_io import Inputs
from jarilab.positions.patches import Images
from jarilab.tasks.predictors.base import Trace

CONTROLS = 20
"""Random control edits of an intervention."""


class InterventionRequest:
    """Edits of one forward: of positions, and inside attention.

    changes: as a page sends them. tape: the forward without them, which has the sites of a token. Raises UserError for
    a change that lacks a field or contradicts another, and for a token that does not exist.
    """

    def __init__(self, changes: Sequence[Mapping[str, Any]], tape: Tape):
        self.places: dict[str, PositionEdit] = {}
        self.edits: list[Edit] = []
        for change in changes:
            if change["kind"] == "place":
                self._move(change)
            elif change["kind"] == "head":
                self.edits.append(HeadOff(*_required(change, "site", "head")))
            elif change["kind"] == "token":
                self.edits.append(TokenOff.everywhere(tape, *_required(change, "side", "key")))
            else:
                site, query, key, how = _required(change, "site", "query", "key", "how")
                self.edits.append(Link(site, change.get("head"), query, key, how))

    def _move(self, change: Mapping[str, Any]) -> None:
        (how,) = _required(change, "how")
        side_or_both = change.get("side", "both")
        sides = ("source", "target") if side_or_both == "both" else (side_or_both,)
        for side in sides:
            if side in self.places:
                raise UserError(
                    f"the places of the {side} are moved twice; take one of the two away"
                )
            self.places[side] = PositionEdit(how, change.get("amount", 1))

    def moved(self, inputs: Inputs) -> Inputs:
        """The same tokens at other positions. The last input is the target, also if it is the only one."""
        sides = ("source", "target")[-len(inputs) :]
        pairs = zip(sides, inputs, strict=True)
        return tuple(
            move_tokens(tokens, self.places[side]) if side in self.places else tokens
            for side, tokens in pairs
        )

    @contextmanager
    def moving(self, model: nn.Module, inputs: Inputs) -> Iterator[Inputs]:
        """Yields the inputs to call the model with. Raises UserError for positions that an image's answer lacks."""
        if not isinstance(inputs[-1], Images):
            yield self.moved(inputs)
            return
        # The model makes the positions of patches itself, so they are moved inside it.
        displacement = move_patches(model, self.of_image) if self.places else nullcontext()
        with displacement:
            yield inputs

    @property
    def of_image(self) -> PositionEdit:
        """The edit of the patches' positions. Raises UserError if only the answer's positions are edited."""
        if "source" not in self.places:
            raise UserError(
                "expected positions of the source, which are the patches of the image; an answer about an image has "
                "none to move"
            )
        return self.places["source"]

    def run(self, model: nn.Module, trace: Trace) -> Tape:
        """The tape of the changed forward over the original answer."""
        moving = self.moving(model, trace.inputs)
        edited = operate(model, self.edits)
        with torch.no_grad(), moving as inputs, edited, record(model) as tape:
            model(*inputs)
        return tape

    def effect(self, model: nn.Module, trace: Trace) -> Effect:
        """How the answer's probabilities change."""
        placed: Any = None
        if self.places:
            is_image = isinstance(trace.inputs[-1], Images)
            placed = self.of_image if is_image else self.moved(trace.inputs)
        return effect(model, trace.inputs, trace.written, self.edits, placed)

    def controls(self, model: nn.Module, trace: Trace, proceed: Proceed) -> dict[str, Any]:
        """The payload of random control edits; none for moved positions, which have no counterpart."""
        if not self.edits or self.places:
            return {"controls": [], "rank": None}
        compared = controls(model, trace.inputs, self.edits, CONTROLS, proceed=proceed)
        return controls_payload(compared)


def effect_payload(effect: Effect, tokens: Sequence[str]) -> dict[str, Any]:
    """The payload of an effect. tokens: names of the tokens whose probabilities it compares."""
    rows = zip(tokens, effect.before.tolist(), effect.after.tolist(), strict=True)
    return {
        "log_probability": {"before": effect.log_before, "after": effect.log_after},
        "divergence": effect.divergence,
        "tokens": [{"token": token, "before": b, "after": a} for token, b, a in rows],
    }


def controls_payload(controls: Controls) -> dict[str, Any]:
    """The payload of control edits."""
    rows = []
    for edits, divergence in controls.each:
        what = ", ".join(str(edit) for edit in edits)
        rows.append({"what": what, "divergence": divergence})
    return {"controls": rows, "rank": controls.rank, "interrupted": controls.interrupted}


def _required(change: Mapping[str, Any], *names: str) -> list[Any]:
    missing = [name for name in names if change.get(name) is None]
    if missing:
        needed = ", ".join(names)
        raise UserError(f"an edit of kind {change['kind']} needs {needed}; {missing[0]} is missing")
    return [change[name] for name in names]
