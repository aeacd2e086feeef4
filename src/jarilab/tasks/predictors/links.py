"""Alignment of the tokens of an answer with tokens of the source, read from a map."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jarilab.core.devices import device_of, to_device
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor
from jarilab.data.text import END
from jarilab.inspect.measure.alignment import alignment
from jarilab.inspect.record.sites import attentions_of

AUTO = "auto"


@torch.no_grad()
def attention_to_source(
    model: Any, task: Any, source: Sequence[int], written: Sequence[int], site: str
) -> Float[Tensor, "H Q K"]:
    """Return the maps of a site while these tokens are written: a row for each, a column for each source token."""
    from jarilab.inspect.record.capture import record  # most predictions need no recorder

    inputs = to_device(task.answered(list(source), written), device_of(model))
    with record(model) as tape:
        model(*inputs)
    weights_HQK = tape.weights(site)[0].cpu()
    read = task.sources([list(source)]).ids.shape[1]
    return weights_HQK[:, -len(written) :, :read]


def sites_to_source(model: Any) -> list[str]:
    """Return the sites with attention to the source: between two sequences, or within the only one."""
    sites = list(attentions_of(model))
    between = [site for site in sites if site.endswith("cross")]
    return between or sites


@dataclass(frozen=True)
class Linking:
    """Where links are read. head: None for the mean of all heads."""

    site: str
    head: int | None

    @staticmethod
    def of(model: Any, where: str) -> Linking:
        """Parse `decoder.1.cross` (the mean of its heads), `decoder.1.cross:2`, or `auto`.

        `auto` is the mean of the last layer but one, where Garg et al. (2019, *Jointly Learning to Align and Translate
        with Transformer Models*) found the best links, or of the only layer. Raises UserError for an unknown site or
        head.
        """
        sites = sites_to_source(model)
        if not sites:
            raise UserError(
                "--alignments: expected a model whose attention layers are jarilab's, got "
                f"{type(model).__name__}; omit --alignments"
            )
        if where == AUTO:
            return Linking(sites[-2] if len(sites) > 1 else sites[-1], None)
        match = re.fullmatch(r"(.*?)(?::([0-9]{1,4}))?", where)
        assert match is not None
        site, head = match.group(1), match.group(2)
        if site not in sites:
            raise unknown("alignments", site, [AUTO, *sites])
        owner: Any = attentions_of(model)[site].owner
        heads = owner.site.n_heads
        if head is not None and int(head) >= heads:
            raise UserError(f"{site} has the heads 0 to {heads - 1}, got {head}; name one of these")
        return Linking(site, None if head is None else int(head))

    def links(
        self, model: Any, task: Any, source: Sequence[int], written: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return pairs (source, target), counted from 0: each written token with the source token of largest weight.

        End tokens have none.
        """
        length = len(written) - (END in written[-1:])
        if not length or not source:
            return []
        weights_HQK = attention_to_source(model, task, source, written, self.site)
        weights_QK = weights_HQK.mean(0) if self.head is None else weights_HQK[self.head]
        links = alignment(weights_QK[:length, : len(source)])
        return [(key, query) for query, key in links]
