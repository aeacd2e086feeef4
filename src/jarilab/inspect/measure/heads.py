"""Measures of every head of a map or a tape, and the salience that ranks heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.measure.maps import Map, Scored, named_site, names_of_sides, undefined
from jarilab.inspect.measure.measures import MEASURES, Measure, measure_of
from jarilab.inspect.measure.words import WordsOf, merge_words, merged_groups
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import AttentionSite


@torch.no_grad()
def measure(map: Map, measures: Mapping[str, Measure] = MEASURES) -> dict[str, Scored]:
    """Value and chance of each of `measures`, by name. Rows that add up to more than 1 count by their shares.

    The queries of padding are left out. Of more than MAX_QUERIES queries, as many are measured, evenly spaced.
    `Scored.partial` says both.
    """
    map, notes = _without_padding(map)
    count = len(map.queries)
    if count > MAX_QUERIES:
        notes.append(f"{MAX_QUERIES:,} of {count:,} queries, evenly spaced")
        map = map.rows(torch.linspace(0, count - 1, MAX_QUERIES).round().long())
    map, partial = _with_shares(map), "; ".join(notes)
    scored = {name: _scored(measure, map) for name, measure in measures.items()}
    return {name: replace(each, partial=partial) for name, each in scored.items()}


MAX_QUERIES = 1024


def _without_padding(map: Map) -> tuple[Map, list[str]]:
    """The map without queries whose own key no query may attend to, and a note if there are any."""
    own_QK = map.ahead == 0
    if not (map.same and map.placed) or not bool((map.allowed & own_QK).any()):
        return map, []
    is_padding_Q = (own_QK & ~map.allowed.any(0)).any(-1)
    count = int(is_padding_Q.sum())
    if not count:
        return map, []
    return map.rows((~is_padding_Q).nonzero()[:, 0]), [f"without {count:,} queries of padding"]


def _scored(measure: Measure, map: Map) -> Scored:
    """Value and chance, undefined if the measure needs positions that are not known."""
    if measure.needs_positions and not map.placed:
        return Scored(undefined(map), undefined(map))
    parts = map.by_mask
    if len(parts) == 1:
        return measure.of(map)
    value_H, chance_H = undefined(map), undefined(map)
    for heads, part in parts:
        scored = measure.of(part)
        value_H[heads], chance_H[heads] = scored.value, scored.chance
    return Scored(value_H, chance_H)


MAX_ROW_SUM = 1.01
"""The largest sum of weights that count as shares. Rounding to bfloat16 adds less than 1 %."""


def _with_shares(map: Map) -> Map:
    """The map with weights of each row that add up to at most 1."""
    # Others are of sigmoid(s), or of exp(s) if the model divides by the sum after the product with values.
    sums_HQ1 = map.weights.sum(-1, keepdim=True)
    if not bool((sums_HQ1 > MAX_ROW_SUM).any()):
        return map
    return replace(map, weights=map.weights / sums_HQ1.where(sums_HQ1 > MAX_ROW_SUM, 1.0))


def measure_heads(
    tape: Tape,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    measures: Sequence[str | Measure] | None = None,
    *,
    words: WordsOf = None,
) -> dict[str, dict[str, Scored]]:
    """Measures of every head on a tape, by site and name of the measure.

    tokens, words: the names of the tokens and how they are merged into words, as in `jarilab.show`.
    measures: such as `entropy`, `mine.py:Mine` or a `jarilab.Measure`; those of the package and of
    `jarilab.add_measure` by default. Queries of padding are left out. Of more than 1,024 queries, as many are measured,
    evenly spaced. A head with a mask of its own is measured by it.
    Raises UserError for an unknown measure, for a batch of several inputs, and if the number of names or words does
    not match the number of tokens.
    """
    selected = MEASURES if measures is None else dict(map(measure_of, measures))
    scores = {}
    for site, measured in named_maps(tape, tokens, words):
        partial = tape.partial.get(site.name, "")
        scores[site.name] = {
            key: replace(each, partial="; ".join(filter(None, (each.partial, partial))))
            for key, each in measure(measured, selected).items()
        }
    return scores


def named_maps(
    tape: Tape,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    words: WordsOf = None,
    sites: Sequence[str] | None = None,
) -> Iterator[tuple[AttentionSite, Map]]:
    """Each of `sites` with its map between named tokens or words. The rest as in `measure_heads`."""
    names = names_of_sides(tape, tokens)
    groups = merged_groups(names, words)
    for name in tape.sites if sites is None else sites:
        site = named_site(tape, name, names)
        check_heads(site)
        map = Map.of(tape, name, names[site.queries], names[site.keys])
        if groups is not None:
            map = merge_words(map, groups[site.queries], groups[site.keys])
        yield site, map


def check_heads(site: AttentionSite) -> None:
    """Raises UserError if batch and heads share an axis in an unknown order."""
    if site.folded:
        raise UserError(
            f"{site.name} has batch and heads in one axis of {site.folded}, in an order that the recorder could not "
            "follow, so its heads cannot be measured; tape.weights has all its maps"
        )


SALIENT_MEASURES = ("previous", "duplicate", "induction", "sink", "self", "confidence")
"""Measures from 0 to 1 that have a chance, by which heads are ranked."""


def salience(map: Map) -> Float[Tensor, " H"]:
    """The largest distance of a head's `SALIENT_MEASURES` above their chance; 0 if none is above."""
    map = _with_shares(_without_padding(map)[0])
    above = [torch.zeros(len(map.weights), dtype=torch.float64)]
    for name in SALIENT_MEASURES:
        scored = _scored(MEASURES[name], map)
        above.append((scored.value - scored.chance).nan_to_num(0.0))
    return torch.stack(above).amax(0)
