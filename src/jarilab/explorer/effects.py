"""The effects of all heads on an answer as a page shows them, measured in slices of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from jarilab.core.errors import UserError
from jarilab.inspect.cause.head_effects import CONTROLS, SMALLEST, HeadEffects
from jarilab.inspect.intervene.controls import Proceed

SLICE_SECONDS = 1.0
"""How long a request of a live page measures, so that edits are answered in between."""
SAVING_SECONDS = 90.0
"""How long a page that is saved waits for the effects."""


class EffectsInProgress:
    """The effects of one answer's heads, as far as they are measured.

    unit: `nats` a token, or `moved` for vectors. tokens: the answer's. names: of tokens by ID.
    """

    def __init__(
        self,
        effects: HeadEffects,
        unit: str,
        tokens: Sequence[str],
        names: Callable[[Sequence[int]], list[str]],
    ):
        self.effects, self._unit, self._tokens, self._names = effects, unit, tokens, names
        self._forwards, self._why = effects.run(), ""

    def advance(self, seconds: float, proceed: Proceed = lambda: True) -> None:
        """Measures for about this long, or until `proceed` says no. A forward that stops in the middle is repeated."""
        until = time.monotonic() + seconds
        self.effects.proceed = proceed
        try:
            for _ in self._forwards:
                if time.monotonic() > until or not proceed():
                    return
        except UserError as error:
            self._why = str(error)

    def payload(self) -> dict[str, Any]:
        """The state of all heads; `why` if this model's cannot be measured.

        Lists of each site have an entry for each head. effect: with its sign. largest: of `draws` random changes. hit:
        the place in the answer that loses most, its change, and where another token becomes the likeliest.
        """
        if self._why:
            return {"why": [self._why] * 2}
        sites: dict[str, dict[str, Any]] = {}
        for site, layer in self.effects.layers.items():
            sites[site] = {"layer": layer, "effect": [], "largest": [], "draws": [], "hit": []}
        for (site, head), one in self.effects.heads.items():
            worst = int(one.changes.abs().argmax())
            other = (one.likeliest != self.effects.likeliest).nonzero().flatten().tolist()[:1]
            turns = [other[0], *self._names([int(one.likeliest[other[0]])])] if other else None
            values = {
                "effect": one.effect,
                "largest": one.largest,
                "draws": one.draws,
                "hit": [worst, float(one.changes[worst]), turns],
            }
            for name, value in values.items():
                assert head == len(sites[site][name])
                sites[site][name].append(value)
        return {
            "unit": self._unit,
            "controls": CONTROLS,
            "smallest": SMALLEST,
            "done": self.effects.is_done,
            "tokens": list(self._tokens),
            "sites": sites,
        }
