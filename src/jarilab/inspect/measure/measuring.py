"""Every measure of every head on a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jarilab.inspect.measure.maps import Map, Recording, Scored, fitting, names_of_sides
from jarilab.inspect.measure.measures import measure


def measure_heads(
    tape: Recording, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None
) -> dict[str, dict[str, Scored]]:
    """Every measure of every head, by site and name of the measure; see `jarilab.inspect.measure.measures`.

    tokens: the names of the tokens, as in `jarilab.show`. Raises UserError for a batch of several inputs, and if the
    number of names does not match the number of tokens.
    """
    names = names_of_sides(tape, tokens)
    measures = {}
    for name in tape.sites:
        site = fitting(tape, name, names)
        measures[name] = measure(Map.of(tape, name, names[site.queries], names[site.keys]))
    return measures
