"""Every measure of every head on a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jarilab.inspect.measure.maps import Map, Recording, Scored, fitting, names_of_sides
from jarilab.inspect.measure.measures import MEASURES, Measure, measure, measure_of


def measure_heads(
    tape: Recording,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    measures: Sequence[str | Measure] | None = None,
) -> dict[str, dict[str, Scored]]:
    """Measures of every head, by site and name of the measure; see `jarilab.inspect.measure.measures`.

    tokens: the names of the tokens, as in `jarilab.show`. measures: such as `entropy`, `mine.py:Mine` or a
    `jarilab.Measure`; all of the package and of `jarilab.add_measure` by default. Raises UserError if there is no such
    measure, for a batch of several inputs, and if the number of names does not match the number of tokens.
    """
    chosen = MEASURES if measures is None else dict(map(measure_of, measures))
    names = names_of_sides(tape, tokens)
    scored = {}
    for name in tape.sites:
        site = fitting(tape, name, names)
        scored[name] = measure(Map.of(tape, name, names[site.queries], names[site.keys]), chosen)
    return scored
