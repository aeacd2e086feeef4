"""What a tape's maps measure, all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jarilab.inspect.capture import Tape
from jarilab.inspect.maps import Map, Scored, fitting, names_of_sides
from jarilab.inspect.measures import measure


def measures_of(
    tape: Tape, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None
) -> dict[str, dict[str, Scored]]:
    """Every measure of every site. tokens, and errors: as `names_of_sides` and `Map.of` have them."""
    names = names_of_sides(tape, tokens)
    found = {}
    for name in tape.sites:
        site = fitting(tape, name, names)
        found[name] = measure(Map.of(tape, name, names[site.queries], names[site.keys]))
    return found
