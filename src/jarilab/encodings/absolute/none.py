"""No positions at all: an encoder sees a bag of tokens, a causal decoder learns order from its mask."""

from __future__ import annotations

from typing import final

from jarilab.encodings.base import Encoding, Site, registry


@final
@registry.register("none", "nope")
class NoEncoding(Encoding):
    """Every hook does nothing. With two causal layers or more order can still be learnt (Kazemnejad et al. 2023)."""

    axes = (1, 2, 3)

    def __init__(self, site: Site):
        super().__init__(site)
