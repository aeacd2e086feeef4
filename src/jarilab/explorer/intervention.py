"""What becomes of an answer when positions, a head, a link or a token are taken away: a request from the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.inspect.intervene.controls import Controls, controls
from jarilab.inspect.intervene.edit import Edit
from jarilab.inspect.intervene.edits import HeadOff, Link, TokenOff
from jarilab.inspect.intervene.effects import Effect, effect
from jarilab.inspect.intervene.interventions import edited_weights, operate
from jarilab.inspect.intervene.moved_positions import Places, displaced, moved
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.model_io import Inputs
from jarilab.positions.coordinates import Tokens
from jarilab.positions.patches import Images
from jarilab.tasks.predictors.base import Trace

CONTROLS = 20


class Operation:
    """Edits to one forward: of the places of tokens, and inside attention.

    changes: as the page sends them. tape: of the forward before them, which knows where a token is looked at. Raises
    UserError for a change that lacks something or contradicts another, and for a token that is not there.
    """

    def __init__(self, changes: Sequence[Mapping[str, Any]], tape: Tape):
        self.places: dict[str, Places] = {}
        self.edits: list[Edit] = []
        for change in changes:
            if change["kind"] == "place":
                self._move(change)
            elif change["kind"] == "head":
                self.edits.append(HeadOff(*_needed(change, "site", "head")))
            elif change["kind"] == "token":
                self.edits.append(TokenOff.everywhere(tape, *_needed(change, "side", "key")))
            else:
                site, query, key, how = _needed(change, "site", "query", "key", "how")
                self.edits.append(Link(site, change.get("head"), query, key, how))

    def _move(self, change: Mapping[str, Any]) -> None:
        (how,) = _needed(change, "how")
        where = change.get("side", "both")
        sides = ("source", "target") if where == "both" else (where,)
        for side in sides:
            if side in self.places:
                raise UserError(
                    f"the places of the {side} are moved twice; take one of the two away"
                )
            self.places[side] = Places(how, change.get("amount", 1))

    def moved(self, inputs: Inputs) -> Inputs:
        """The same tokens at other places. The last of them is the target, also where it is the only one."""
        sides = ("source", "target")[-len(inputs) :]
        pairs = zip(sides, inputs, strict=True)
        return tuple(self._moved(tokens, side) for side, tokens in pairs)

    def _moved(self, tokens: Tokens, side: str) -> Tokens:
        return moved(tokens, self.places[side]) if side in self.places else tokens

    @contextmanager
    def moving(self, model: nn.Module, inputs: Inputs) -> Iterator[Inputs]:
        """What to call the model with inside the block. An image's patches are moved in the model itself. Raises
        UserError for places that what is said of an image does not have."""
        if not isinstance(inputs[-1], Images):
            yield self.moved(inputs)
            return
        moving = displaced(model, self.of_image) if self.places else nullcontext()
        with moving:
            yield inputs

    @property
    def of_image(self) -> Places:
        """Where the patches of an image go."""
        if "source" not in self.places:
            raise UserError(
                "what is said of an image has no places to move; move those of the source, its patches"
            )
        return self.places["source"]

    def run(self, model: nn.Module, said: Trace) -> Tape:
        """The tape of the edited forward over the original answer."""
        moving = self.moving(model, said.inputs)
        edited = operate(model, self.edits)
        with torch.no_grad(), moving as inputs, edited, record(model) as tape:
            model(*inputs)
        return tape

    def effect(self, model: nn.Module, said: Trace) -> Effect:
        placed: Any = None
        if self.places:
            of_image = isinstance(said.inputs[-1], Images)
            placed = self.of_image if of_image else self.moved(said.inputs)
        return effect(model, said.inputs, said.written, self.edits, placed)

    def controls(self, model: nn.Module, said: Trace) -> dict[str, Any]:
        """The same edits at random other places; there is nothing to compare a move of all tokens with."""
        if not self.edits or self.places:
            return {"controls": [], "rank": None}
        return controls_told(controls(model, said.inputs, self.edits, CONTROLS))

    def weights(self, tape: Tape, site: str) -> torch.Tensor | None:
        """The edited map `(H, Q, K)` of a site whose weights were edited: a tape knows those the model meant to use."""
        if not any(site in edit.sites for edit in self.edits):
            return None
        rows = []
        for recorded in tape.calls[site]:
            rows.append(edited_weights(site, recorded.call, self.edits))
        return torch.cat(rows, 2)[0]


def effect_told(effect: Effect, tokens: Sequence[str]) -> dict[str, Any]:
    """What the page is told of an effect. tokens: the names of what was measured."""
    rows = zip(tokens, effect.before.tolist(), effect.after.tolist(), strict=True)
    return {
        "log_probability": {"before": effect.log_before, "after": effect.log_after},
        "divergence": effect.divergence,
        "tokens": [{"token": token, "before": b, "after": a} for token, b, a in rows],
    }


def controls_told(found: Controls) -> dict[str, Any]:
    """What the page is told of controls."""
    rows = []
    for edits, divergence in found.each:
        what = ", ".join(str(edit) for edit in edits)
        rows.append({"what": what, "divergence": divergence})
    return {"controls": rows, "rank": found.rank}


def _needed(change: Mapping[str, Any], *names: str) -> list[Any]:
    missing = [name for name in names if change.get(name) is None]
    if missing:
        needed = ", ".join(names)
        raise UserError(f"an edit of kind {change['kind']} needs {needed}; {missing[0]} is missing")
    return [change[name] for name in names]
