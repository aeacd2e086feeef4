"""The heads of a model, as rows of a study's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import AttentionSite

PREFIXES = {"encoder": "enc", "decoder": "dec", "cross": "cross", "unknown": "other"}


@dataclass(frozen=True)
class Head:
    """One head. site: its layer, as on a tape. short: as papers write it, `L3H1`; unique in a model."""

    site: str
    index: int
    short: str

    @property
    def columns(self) -> dict[str, Any]:
        """The first columns of a row about this head."""
        return {"head": self.short, "site": self.site, "index": self.index}


def heads_of(tape: Tape) -> list[Head]:
    """All heads on a tape: sites in order, then heads."""
    sites = [tape.site(name) for name in tape.sites]
    names = short_names(sites)
    return [
        Head(site.name, index, f"{names[site.name]}H{index}")
        for site in sites
        for index in range(tape.recorded(site.name).call.q.shape[1])
    ]


def short_names(sites: list[AttentionSite]) -> dict[str, str]:
    """`L3`, with the kind in front if the model has several, or the whole name if that is ambiguous."""
    plain = {site.name: site.short for site in sites}
    by_kind = {site.name: f"{PREFIXES[site.kind]}.{site.short}" for site in sites}
    whole = {site.name: f"{site.name}." for site in sites}
    return next(names for names in (plain, by_kind, whole) if len({*names.values()}) == len(sites))
