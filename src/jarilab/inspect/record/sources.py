"""What a tensor was computed from: inputs and parameters, by name."""

from __future__ import annotations

Sources = frozenset[str]
"""Names of the inputs and parameters that a tensor was computed from. Empty for constants."""

INPUT, PARAMETER, UNKNOWN, SLICE = "input ", "parameter ", "unknown ", "slice "
NOTHING: Sources = frozenset()


def union(all_sources: list[Sources], *, joins: bool = False) -> Sources:
    """Sources of a result. Parameters that are only added or multiplied to other tensors do not count."""
    if not joins:
        from_data = [sources for sources in all_sources if not are_parameters(sources)]
        all_sources = from_data or all_sources
    return frozenset().union(*all_sources)


def are_of_different_inputs(all_sources: list[Sources]) -> bool:
    """Whether some of these are of inputs that the first does not have."""
    inputs = [frozenset(filter(_is_input, sources)) for sources in all_sources]
    inputs = [names for names in inputs if names]
    return any(not names & inputs[0] for names in inputs[1:])


def _is_input(name: str) -> bool:
    return name.startswith(INPUT)


def are_parameters(sources: Sources) -> bool:
    """Whether all of them are parameters."""
    return all(name.startswith(PARAMETER) for name in sources)
